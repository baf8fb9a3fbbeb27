package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.lang.ref.Cleaner;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A draft that is uploaded.
 *
 * <p>They are in memory as long as all spools of the JVM together stay within {@code memoryBytes},
 * and no single one takes more than an eighth of that; beyond it the whole spool moves to a file
 * that has no name any more, so that a killed process leaves none behind.
 */
final class Spool extends Draft {

  private static final int CHUNK_BYTES = 64 << 10;
  private static final int COPY_BYTES = 256 << 10;
  private static final AtomicLong RESERVED = new AtomicLong();
  private static final Cleaner CLEANER = Cleaner.create();

  private final FileManagerSettings settings;
  private final Reservation reservation = new Reservation();
  private final List<byte[]> chunks = new ArrayList<>();
  private long sizeBytes;
  private RandomAccessFile disk;

  Spool(FileManagerSettings settings) {
    this.settings = settings;
    CLEANER.register(this, reservation);
  }

  /** Bytes that spools of this JVM hold in memory now. */
  static long reservedBytes() {
    return RESERVED.get();
  }

  boolean isOnDisk() {
    return disk != null;
  }

  @Override
  void take(byte[] source, int offset, int length) throws IOException {
    int done = 0;
    while (done < length) {
      if (disk != null) {
        disk.write(source, offset + done, length - done);
        sizeBytes += length - done;
        return;
      }
      int filled = (int) (sizeBytes % CHUNK_BYTES);
      if (filled == 0 && !grow()) {
        moveToDisk();
        continue;
      }
      int step = Math.min(length - done, CHUNK_BYTES - filled);
      System.arraycopy(source, offset + done, chunks.get(chunks.size() - 1), filled, step);
      sizeBytes += step;
      done += step;
    }
  }

  /** Send everything that was written, from the beginning; may be repeated. */
  void copyTo(OutputStream target) throws IOException {
    if (disk == null) {
      copyChunksTo(target::write);
      return;
    }
    byte[] buffer = new byte[COPY_BYTES];
    disk.seek(0);
    long left = sizeBytes;
    while (left > 0) {
      int step = (int) Math.min(left, buffer.length);
      disk.readFully(buffer, 0, step);
      target.write(buffer, 0, step);
      left -= step;
    }
  }

  @Override
  void drop() {
    dropChunks();
    if (disk != null) {
      try {
        disk.close();
      } catch (IOException ignored) {
        // The file has no name; the system frees it with the process at the latest.
      }
    }
  }

  private boolean grow() {
    long after = (chunks.size() + 1L) * CHUNK_BYTES;
    if (after > settings.memoryBytes() / 8) {
      return false;
    }
    if (!reservation.take(settings.memoryBytes())) {
      return false;
    }
    chunks.add(new byte[CHUNK_BYTES]);
    return true;
  }

  private void moveToDisk() throws IOException {
    Files.createDirectories(settings.spoolDirectory());
    Path file = Files.createTempFile(settings.spoolDirectory(), "ckpt-", ".spool");
    RandomAccessFile opened;
    try {
      opened = new RandomAccessFile(file.toFile(), "rw");
    } finally {
      Files.delete(file);
    }
    try {
      copyChunksTo(opened::write);
    } catch (IOException failure) {
      opened.close();
      throw failure;
    }
    disk = opened;
    dropChunks();
  }

  private void copyChunksTo(Target target) throws IOException {
    long left = sizeBytes;
    for (byte[] chunk : chunks) {
      int step = (int) Math.min(left, chunk.length);
      target.write(chunk, 0, step);
      left -= step;
    }
  }

  private void dropChunks() {
    reservation.run();
    chunks.clear();
  }

  /** This spool's part of the bound; given back even if Spark forgets the stream. */
  private static final class Reservation implements Runnable {

    private final AtomicLong taken = new AtomicLong();

    boolean take(long bound) {
      if (RESERVED.addAndGet(CHUNK_BYTES) > bound) {
        RESERVED.addAndGet(-CHUNK_BYTES);
        return false;
      }
      taken.addAndGet(CHUNK_BYTES);
      return true;
    }

    @Override
    public void run() {
      RESERVED.addAndGet(-taken.getAndSet(0));
    }
  }

  private interface Target {
    void write(byte[] source, int offset, int length) throws IOException;
  }
}

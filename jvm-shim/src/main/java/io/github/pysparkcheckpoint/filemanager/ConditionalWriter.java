package io.github.pysparkcheckpoint.filemanager;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Semaphore;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.AccessControlException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes one object with one request, through a connector that has conditional create.
 *
 * <p>The connector repeats a request that got no answer, or an answer that asks for it (503); we
 * repeat one that was answered by 409. So "it exists" may well be our own first attempt: who wrote
 * it is in its metadata, and one HEAD tells.
 */
final class ConditionalWriter {

  /** Hadoop's option for a create that fails if the file exists; S3A has it since 3.4.2. */
  static final String CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite";

  private static final String WITHOUT_PROBES = "fs.s3a.create.performance";
  private static final String METADATA = "fs.s3a.create.header.";
  private static final String NONCE = "ckpt-nonce";
  private static final String WRITER = "ckpt-writer";

  /**
   * How many files that did not fit into memory are sent at once: the connector may be set to hold
   * each in memory while it sends it.
   */
  private static final Semaphore LARGE_UPLOADS = new Semaphore(8, true);

  private static final int CONFLICT_ATTEMPTS = 6;
  private static final long CONFLICT_PAUSE_MS = 50;

  private static final Logger LOG = LoggerFactory.getLogger(ConditionalWriter.class);
  private static final String THIS_PROCESS = ManagementFactory.getRuntimeMXBean().getName();

  private final FileSystem fileSystem;

  ConditionalWriter(FileSystem fileSystem) {
    this.fileSystem = fileSystem;
  }

  /** Whether the connector knows conditional create; says nothing about the server. */
  static boolean isOfferedBy(FileSystem fileSystem, Path path) throws IOException {
    return fileSystem.hasPathCapability(path, CONDITIONAL_CREATE);
  }

  /** Write, whatever is there. */
  void overwrite(Path path, Spool content) throws IOException {
    send(builder(path), content);
  }

  /**
   * Write if nothing is there.
   *
   * @throws FileAlreadyExistsException if another one's file is there, or was when we asked
   * @throws IOException if the outcome is a failure, or unknown: the file may appear later
   */
  void create(Path path, Spool content) throws IOException {
    String nonce = UUID.randomUUID().toString();
    for (int attempt = 1; !created(path, nonce, content, attempt); attempt++) {
      pause(CONFLICT_PAUSE_MS << attempt);
    }
  }

  /** Whether the object is there and ours; false if the store asks for another attempt. */
  private boolean created(Path path, String nonce, Spool content, int attempt) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = builder(path);
    builder.must(CONDITIONAL_CREATE, true);
    builder.opt(METADATA + NONCE, nonce);
    builder.opt(METADATA + WRITER, THIS_PROCESS);
    try {
      send(builder, content);
      return true;
    } catch (IOException failure) {
      return isOurs(path, nonce, failure, attempt < CONFLICT_ATTEMPTS);
    }
  }

  private FSDataOutputStreamBuilder<?, ?> builder(Path path) {
    FSDataOutputStreamBuilder<?, ?> builder = fileSystem.createFile(path);
    builder.recursive();
    builder.overwrite(true);
    builder.opt(WITHOUT_PROBES, true);
    return builder;
  }

  private void send(FSDataOutputStreamBuilder<?, ?> builder, Spool content) throws IOException {
    if (!content.isOnDisk()) {
      put(builder, content);
      return;
    }
    try {
      LARGE_UPLOADS.acquire();
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while waiting to upload");
    }
    try {
      put(builder, content);
    } finally {
      LARGE_UPLOADS.release();
    }
  }

  /** Only the success path closes the connector's stream: closing is what publishes. */
  private static void put(FSDataOutputStreamBuilder<?, ?> builder, Spool content)
      throws IOException {
    FSDataOutputStream out = builder.build();
    try {
      content.copyTo(out);
    } catch (IOException | RuntimeException failure) {
      out.abort();
      throw failure;
    }
    out.close();
  }

  /**
   * Whether the object is ours after all; else throw what the failure meant. False, if that may be,
   * when the store answered 409: another request for this name was under way, and left nothing.
   */
  private boolean isOurs(Path path, String nonce, IOException failure, boolean mayRepeat)
      throws IOException {
    if (failure instanceof AccessControlException
        || failure instanceof java.nio.file.AccessDeniedException
        || isInterruption(failure)) {
      throw failure;
    }
    Map<String, byte[]> found;
    try {
      found = fileSystem.getXAttrs(path);
    } catch (FileNotFoundException absent) {
      if (isRefusal(failure)) {
        throw exists(path, "it was there when we wrote, and has been removed since", failure);
      }
      if (mayRepeat && isConflict(failure)) {
        return false;
      }
      throw failure;
    } catch (IOException unreadable) {
      if (isInterruption(unreadable)) {
        throw unreadable;
      }
      failure.addSuppressed(unreadable);
      if (isRefusal(failure)) {
        throw new IOException(
            path
                + " exists already, and who wrote it cannot be read: "
                + unreadable.getMessage()
                + ". Start the query again; it needs the permission to read what it creates"
                + " (GetObject)",
            failure);
      }
      throw failure;
    }
    if (nonce.equals(metadata(found, NONCE))) {
      LOG.info("{} was written, although the answer said otherwise: {}", path, failure.toString());
      return true;
    }
    String writer = metadata(found, WRITER);
    throw exists(path, "written by " + (writer == null ? "another writer" : writer), failure);
  }

  private static FileAlreadyExistsException exists(Path path, String who, IOException cause) {
    FileAlreadyExistsException exists =
        new FileAlreadyExistsException(path + " exists already: " + who);
    exists.initCause(cause);
    return exists;
  }

  /**
   * Whether the store itself has refused; else it gave no answer, and another one's file is there.
   */
  static boolean wasRefused(FileAlreadyExistsException exists) {
    return isRefusal(exists.getCause());
  }

  /** The class is the connector's own, which need not be on the class path of this one. */
  private static boolean isRefusal(Throwable failure) {
    return failure != null
        && failure.getClass().getSimpleName().equals("RemoteFileChangedException");
  }

  /**
   * Whether somebody wants this thread to stop. Timeouts are of classes below, and mean no such
   * thing.
   */
  private static boolean isInterruption(IOException failure) {
    return failure.getClass() == InterruptedIOException.class;
  }

  private static boolean isConflict(IOException failure) {
    return String.valueOf(failure.getMessage()).contains("Status Code: 409");
  }

  private static void pause(long milliseconds) throws IOException {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while waiting to create again");
    }
  }

  private static String metadata(Map<String, byte[]> attributes, String name) {
    for (Map.Entry<String, byte[]> attribute : attributes.entrySet()) {
      if (attribute.getKey().equalsIgnoreCase("header." + name)) {
        return new String(attribute.getValue(), StandardCharsets.UTF_8);
      }
    }
    return null;
  }
}

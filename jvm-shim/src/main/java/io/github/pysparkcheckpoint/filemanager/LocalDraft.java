package io.github.pysparkcheckpoint.filemanager;

import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;

/**
 * A draft in a file beside the one that it will become, under a hidden name as Spark's own manager
 * gives it: what a killed process leaves is seen by nobody.
 */
final class LocalDraft extends Draft {

  private static final int BUFFER_BYTES = 64 << 10;

  private final Path path;
  private final FileOutputStream file;
  private final OutputStream buffer;

  private LocalDraft(Path path) throws IOException {
    this.path = path;
    this.file = new FileOutputStream(path.toFile());
    this.buffer = new BufferedOutputStream(file, BUFFER_BYTES);
  }

  static LocalDraft beside(Path target) throws IOException {
    String name = "." + target.getFileName() + "." + UUID.randomUUID() + ".tmp";
    return new LocalDraft(target.resolveSibling(name));
  }

  Path path() {
    return path;
  }

  @Override
  void take(byte[] source, int offset, int length) throws IOException {
    buffer.write(source, offset, length);
  }

  /** Everything that was written is on the disk. */
  void finish() throws IOException {
    buffer.flush();
    file.getFD().sync();
    file.close();
  }

  @Override
  void drop() {
    try {
      file.close();
      Files.deleteIfExists(path);
    } catch (IOException ignored) {
      // Its name is hidden and of this draft alone: whoever lists the directory passes over it.
    }
  }
}

package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.io.OutputStream;

/**
 * The bytes of one file between its first write and the moment when it gets its name.
 *
 * <p>A draft of which one write has failed is never whole again. Not safe for threads: Spark writes
 * a file from one.
 */
abstract class Draft extends OutputStream {

  private boolean released;
  private boolean broken;

  @Override
  public final void write(int b) throws IOException {
    write(new byte[] {(byte) b}, 0, 1);
  }

  @Override
  public final void write(byte[] source, int offset, int length) throws IOException {
    if (released) {
      throw new IOException("the stream is closed");
    }
    requireWhole();
    broken = true;
    take(source, offset, length);
    broken = false;
  }

  /** Refuse to go on after a write that failed: nobody knows how much of it arrived. */
  final void requireWhole() throws IOException {
    if (broken) {
      throw new IOException("an earlier write failed, so that the file would not be whole");
    }
  }

  /** Give memory and disk back; the bytes are gone. May be repeated. */
  final void release() {
    if (!released) {
      released = true;
      drop();
    }
  }

  /** Keep some more bytes. */
  abstract void take(byte[] source, int offset, int length) throws IOException;

  /** Called once, at the end: whatever is still held is of no use any more. */
  abstract void drop();
}

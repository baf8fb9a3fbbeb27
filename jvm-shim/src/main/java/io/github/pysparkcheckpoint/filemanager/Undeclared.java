package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;

/**
 * Spark's interface for file managers declares no exceptions, and expects the plain ones of Hadoop.
 */
final class Undeclared {

  /** Something that fails as files do. */
  interface Request<T> {
    T run() throws IOException;
  }

  private Undeclared() {}

  /** Run it; what it throws passes as it is. */
  static <T> T failures(Request<T> request) {
    try {
      return request.run();
    } catch (IOException failure) {
      throw Undeclared.<RuntimeException>undeclared(failure);
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Exception> RuntimeException undeclared(Exception failure) throws E {
    throw (E) failure;
  }
}

package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import org.apache.hadoop.fs.Path;

/** Who is asked before Spark logs the plan of a batch, and told when it has logged its end. */
public interface LogGate {

  /**
   * Called right before {@code offsets/K} becomes visible, by the thread of the query, which waits.
   *
   * @param location the checkpoint location of the query
   * @param batch K
   * @param offsets the very bytes that are going to be written
   * @throws IOException if the batch must not be planned: nothing is written, and the query fails
   */
  void beforeOffsets(Path location, long batch, byte[] offsets) throws IOException;

  /** Called when {@code commits/N} is visible. Does not wait. */
  void afterCommit(Path location);
}

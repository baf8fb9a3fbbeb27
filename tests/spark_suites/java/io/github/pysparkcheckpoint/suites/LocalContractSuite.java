package io.github.pysparkcheckpoint.suites;

import io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.CheckpointFileManagerTestsOnLocalFs;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/** Spark's contract for checkpoint file managers, held by ours on a directory. */
public final class LocalContractSuite extends CheckpointFileManagerTestsOnLocalFs {

  @Override
  public CheckpointFileManager createManager(Path path) {
    try {
      return new ObjectStoreCheckpointFileManager(path, new Configuration());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}

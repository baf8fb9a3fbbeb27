package io.github.pysparkcheckpoint.suites;

import io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.CheckpointFileManagerTests;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import scala.Function1;
import scala.runtime.BoxedUnit;

/**
 * The same contract on a bucket, through Hadoop's S3A.
 *
 * <p>The bucket is the system property {@code ckpt.suites.bucket}; how it is reached stands in the
 * {@code core-site.xml} on the class path.
 */
public final class S3aContractSuite extends CheckpointFileManagerTests {

  @Override
  public void withTempHadoopPath(Function1<Path, BoxedUnit> body) {
    Path path =
        new Path("s3a://" + System.getProperty("ckpt.suites.bucket") + "/" + UUID.randomUUID());
    try {
      body.apply(path);
    } finally {
      try {
        path.getFileSystem(new Configuration()).delete(path, true);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  /** Checksum files are a matter of Hadoop's local file system. */
  @Override
  public void checkLeakingCrcFiles(Path path) {}

  @Override
  public CheckpointFileManager createManager(Path path) {
    try {
      return new ObjectStoreCheckpointFileManager(path, new Configuration());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}

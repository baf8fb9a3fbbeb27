package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.UnsupportedFileSystemException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** What others use of this package: which manager serves a location, and who is asked by all. */
public final class FileManagers {

  private static final Set<String> S3_SCHEMES = Set.of("s3a", "s3", "s3n");

  private static volatile LogGate gate;

  private FileManagers() {}

  /** Ask from now on, in this JVM, before a batch is planned; null to ask nobody. */
  public static void setGate(LogGate asked) {
    gate = asked;
  }

  /** The stream of a file below {@code root}; of an entry of Spark's logs one that asks first. */
  public static CancellableFSDataOutputStream gated(
      CancellableFSDataOutputStream stream, Path root, Path path) {
    return GatedLog.of(stream, gate, root, path);
  }

  /** The settings of the plugin that mean something without a URL. */
  public static List<String> confNames() {
    return Stream.of(
            "ckpt.fileManager",
            FileManagerSettings.ALLOW_UNFENCED,
            FileManagerSettings.MEMORY_BYTES,
            FileManagerSettings.SPOOL_DIRECTORY)
        .map(name -> "spark." + name)
        .toList();
  }

  /**
   * The manager for a location: ours where a file can be created by one conditional request or one
   * link, else the one that Spark itself would take.
   *
   * @throws IOException if the file system cannot be reached, or the location is not of its kind
   */
  public static CheckpointFileManager choose(Path path, Configuration conf) throws IOException {
    FileSystem fileSystem = path.getFileSystem(conf);
    String scheme = fileSystem.getUri().getScheme();
    if (scheme != null && S3_SCHEMES.contains(scheme.toLowerCase(Locale.ROOT))
        || ConditionalWriter.isOfferedBy(fileSystem, fileSystem.makeQualified(path))) {
      return new ConditionalFileManager(path, fileSystem, conf);
    }
    if (fileSystem instanceof LocalFileSystem local) {
      return new LocalFileManager(path, conf, local, new LocalFileManager.Disk() {});
    }
    return sparkOwn(path, conf);
  }

  private static CheckpointFileManager sparkOwn(Path path, Configuration conf) throws IOException {
    try {
      return new FileContextBasedCheckpointFileManager(path, conf);
    } catch (Exception failure) {
      if (failure instanceof UnsupportedFileSystemException) {
        return new FileSystemBasedCheckpointFileManager(path, conf);
      }
      throw failure;
    }
  }
}

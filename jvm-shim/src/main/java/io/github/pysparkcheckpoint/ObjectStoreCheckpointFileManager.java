package io.github.pysparkcheckpoint;

import io.github.pysparkcheckpoint.filemanager.FileManagers;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * Spark's checkpoint files on an object store, one conditional PUT each.
 *
 * <p>Set {@code spark.sql.streaming.checkpointFileManagerClass} to the name of this class.
 * Locations on S3 are written by {@link ConditionalFileManager}, those on a local disk by {@link
 * LocalFileManager}. All others are left to the managers that Spark itself would take, whose
 * contract rests on the file system's atomic rename: so one conf line serves an application with
 * locations of several kinds.
 */
public final class ObjectStoreCheckpointFileManager implements CheckpointFileManager {

  private final Path root;
  private final CheckpointFileManager manager;

  /** Called by Spark, on the driver and on executors, for every log and every state store. */
  public ObjectStoreCheckpointFileManager(Path path, Configuration conf) throws IOException {
    this.root = path;
    this.manager = FileManagers.choose(path, conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return FileManagers.gated(manager.createAtomic(path, overwriteIfPossible), root, path);
  }

  @Override
  public FSDataInputStream open(Path path) {
    return manager.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return manager.list(path, filter);
  }

  @Override
  public FileStatus[] list(Path path) {
    return manager.list(path);
  }

  @Override
  public void mkdirs(Path path) {
    manager.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return manager.exists(path);
  }

  @Override
  public void delete(Path path) {
    manager.delete(path);
  }

  @Override
  public boolean isLocal() {
    return manager.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return manager.createCheckpointDirectory();
  }

  @Override
  public void close() {
    manager.close();
  }
}

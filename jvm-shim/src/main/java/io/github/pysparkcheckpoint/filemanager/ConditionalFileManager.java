package io.github.pysparkcheckpoint.filemanager;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * The manager for a connector to an object store: one request a file.
 *
 * <p>Directories do not exist in an object store. Those that were made through any manager of this
 * JVM are remembered, up to a number a bucket: they exist, and are empty as long as the store lists
 * nothing in them. Until something is put into one it is listed where it lies; afterwards that is
 * the store's to know, so that a location which somebody else removes lists nothing, though its
 * directories go on to exist here. None of this costs a request.
 */
final class ConditionalFileManager implements CheckpointFileManager {

  /** More than the state of any executor has, and a few megabytes at most. */
  static final int MOST_REMEMBERED = 10_000;

  private static final ConcurrentHashMap<String, MadeDirectories> MADE = new ConcurrentHashMap<>();

  private final Path root;
  private final FileSystem fileSystem;
  private final FileManagerSettings settings;
  private final ConditionalWriter writer;
  private final PendingDeletes deletes;
  private final MadeDirectories made;

  ConditionalFileManager(Path root, FileSystem fileSystem, Configuration conf) throws IOException {
    this.fileSystem = fileSystem;
    this.root = fileSystem.makeQualified(root);
    this.settings = FileManagerSettings.from(conf);
    this.writer = new ConditionalWriter(fileSystem);
    this.deletes = PendingDeletes.of(fileSystem);
    this.made = madeIn(fileSystem);
  }

  /** Those of one bucket of a server, for all its managers. */
  static MadeDirectories madeIn(FileSystem fileSystem) {
    return MADE.computeIfAbsent(
        ConditionProbe.store(fileSystem), store -> new MadeDirectories(MOST_REMEMBERED));
  }

  /** A bad conf fails here, before anything is written; a file that exists fails at close. */
  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    Path file = fileSystem.makeQualified(path);
    Spool content = new Spool(settings);
    if (overwriteIfPossible) {
      return new AtomicUpload<>(
          content,
          bytes -> {
            deletes.await(file);
            writer.overwrite(file, bytes);
            made.fill(file.getParent());
          });
    }
    return new AtomicUpload<>(
        content,
        bytes -> {
          create(file, bytes);
          made.fill(file.getParent());
        });
  }

  private void create(Path file, Spool content) throws IOException {
    deletes.await(file);
    if (ConditionProbe.isFenced(fileSystem, file.getParent(), settings)) {
      writer.create(file, content);
      return;
    }
    if (isFile(file)) {
      throw new FileAlreadyExistsException(file + " exists already");
    }
    writer.overwrite(file, content);
  }

  @Override
  public FSDataInputStream open(Path path) {
    Path file = fileSystem.makeQualified(path);
    return Undeclared.failures(
        () -> {
          if (deletes.contains(file)) {
            throw new FileNotFoundException(file + " has been deleted");
          }
          return fileSystem.open(file);
        });
  }

  /** In the order of the names; one LIST a page. */
  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    Path directory = fileSystem.makeQualified(path);
    return Undeclared.failures(
        () -> {
          FileStatus[] all;
          try {
            all = fileSystem.listStatus(directory);
          } catch (FileNotFoundException absent) {
            if (!made.contains(directory)) {
              throw absent;
            }
            if (made.isFilled(directory)) {
              return new FileStatus[0]; // what was here has been removed, with all that it lay in
            }
            all = new FileStatus[0];
          }
          return Stream.concat(Arrays.stream(all), madeBeside(all, directory))
              .filter(status -> filter.accept(status.getPath()))
              .filter(status -> !deletes.contains(status.getPath()))
              .filter(status -> !ConditionProbe.isProbe(status.getPath()))
              .sorted()
              .toArray(FileStatus[]::new);
        });
  }

  /**
   * The directories that were made in {@code directory} and in which the store never had anything.
   */
  private Stream<FileStatus> madeBeside(FileStatus[] listed, Path directory) {
    if (listed.length > 0) {
      made.fill(directory);
    }
    Set<Path> empty = made.emptyIn(directory);
    for (FileStatus status : listed) {
      if (empty.remove(status.getPath())) {
        made.fill(status.getPath());
      }
    }
    long now = System.currentTimeMillis();
    return empty.stream().map(path -> new FileStatus(0, true, 1, 0, now, path));
  }

  @Override
  public FileStatus[] list(Path path) {
    return list(path, any -> true);
  }

  @Override
  public void mkdirs(Path path) {
    made.add(fileSystem.makeQualified(path));
  }

  /** One HEAD for what can only be a file; nothing for a directory that was made here. */
  @Override
  public boolean exists(Path path) {
    Path qualified = fileSystem.makeQualified(path);
    if (deletes.contains(qualified)) {
      return false;
    }
    if (made.contains(qualified)) {
      return true;
    }
    return Undeclared.failures(
        () ->
            SparkFileNames.isSurelyFile(root, qualified)
                ? isFile(qualified)
                : fileSystem.exists(qualified));
  }

  /**
   * Deprecated by Hadoop because it is a costly way to ask for a kind; here it is the cheap one.
   */
  @SuppressWarnings("deprecation")
  private boolean isFile(Path path) throws IOException {
    return fileSystem.isFile(path);
  }

  @Override
  public void delete(Path path) {
    Path qualified = fileSystem.makeQualified(path);
    Undeclared.failures(
        () -> {
          if (SparkFileNames.isSurelyFile(root, qualified)) {
            deletes.add(qualified);
            return null;
          }
          made.remove(qualified);
          try {
            fileSystem.delete(qualified, true);
          } catch (FileNotFoundException absent) {
            // Gone already: that is what was asked for.
          }
          return null;
        });
  }

  @Override
  public boolean isLocal() {
    return false;
  }

  @Override
  public Path createCheckpointDirectory() {
    mkdirs(root);
    return root;
  }

  @Override
  public void close() {}
}

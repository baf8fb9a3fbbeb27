package io.github.pysparkcheckpoint;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
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
 * JVM are remembered: they exist, are listed in their parents, and are empty as long as the store
 * lists nothing in them.
 */
final class ConditionalFileManager implements CheckpointFileManager {

  private static final Set<Path> MADE = ConcurrentHashMap.newKeySet();

  private final Path root;
  private final FileSystem fileSystem;
  private final FileManagerSettings settings;
  private final ConditionalWriter writer;
  private final PendingDeletes deletes;

  ConditionalFileManager(Path root, FileSystem fileSystem, Configuration conf)
      throws IOException {
    this.fileSystem = fileSystem;
    this.root = fileSystem.makeQualified(root);
    this.settings = FileManagerSettings.from(conf);
    this.writer = new ConditionalWriter(fileSystem);
    this.deletes = PendingDeletes.of(fileSystem);
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
          });
    }
    return new AtomicUpload<>(content, bytes -> create(file, bytes));
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
          FileStatus[] found;
          try {
            found = fileSystem.listStatus(directory);
          } catch (FileNotFoundException absent) {
            if (!MADE.contains(directory)) {
              throw absent;
            }
            found = new FileStatus[0];
          }
          return withMade(directory, found)
              .filter(status -> filter.accept(status.getPath()))
              .filter(status -> !deletes.contains(status.getPath()))
              .filter(status -> !ConditionProbe.isProbe(status.getPath()))
              .sorted()
              .toArray(FileStatus[]::new);
        });
  }

  /** What the store lists, and the directories that were made here and have nothing in them yet. */
  private static Stream<FileStatus> withMade(Path directory, FileStatus[] found) {
    Set<Path> listed = Arrays.stream(found).map(FileStatus::getPath).collect(Collectors.toSet());
    Stream<FileStatus> made =
        MADE.stream()
            .filter(path -> directory.equals(path.getParent()) && !listed.contains(path))
            .map(path -> new FileStatus(0, true, 0, 0, 0, path));
    return Stream.concat(Arrays.stream(found), made);
  }

  @Override
  public FileStatus[] list(Path path) {
    return list(path, any -> true);
  }

  @Override
  public void mkdirs(Path path) {
    for (Path at = fileSystem.makeQualified(path); at != null; at = at.getParent()) {
      MADE.add(at);
    }
  }

  /** One HEAD for what can only be a file; nothing for a directory that was made here. */
  @Override
  public boolean exists(Path path) {
    Path qualified = fileSystem.makeQualified(path);
    if (deletes.contains(qualified)) {
      return false;
    }
    if (MADE.contains(qualified)) {
      return true;
    }
    return Undeclared.failures(
        () ->
            SparkFileNames.isSurelyFile(root, qualified)
                ? isFile(qualified)
                : fileSystem.exists(qualified));
  }

  /** Deprecated by Hadoop because it is a costly way to ask for a kind; here it is the cheap one. */
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
          MADE.removeIf(made -> isAtOrBelow(made, qualified));
          try {
            fileSystem.delete(qualified, true);
          } catch (FileNotFoundException absent) {
            // Gone already: that is what was asked for.
          }
          return null;
        });
  }

  private static boolean isAtOrBelow(Path path, Path ancestor) {
    for (Path at = path; at != null; at = at.getParent()) {
      if (at.equals(ancestor)) {
        return true;
      }
    }
    return false;
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

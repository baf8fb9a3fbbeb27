package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * The manager for a local disk: a file is written once, synced, and gets its name by one link.
 *
 * <p>Hadoop's local file system keeps a second file with checksums beside each, and starts a
 * process for the permissions of either: with many partitions that is most of what a batch waits
 * for. It looks whether a name is taken before it renames, which two drivers can do at the same
 * moment, and it syncs nothing. Here the link is the decision, and what has a name is whole, also
 * after a power cut. The files of RocksDB that a snapshot names are copied by Spark past every
 * manager: they are synced before the snapshot gets its name.
 *
 * <p>Names, places and contents are those of Spark's own manager, which does all the reading.
 * Checksums that are left from an earlier file of the same name speak of other bytes, and go before
 * the new file comes.
 */
final class LocalFileManager extends FileContextBasedCheckpointFileManager {

  /** What a disk must do by itself. */
  interface Disk {

    /** Gives a file a second name, and fails if that is taken. */
    default void link(java.nio.file.Path name, java.nio.file.Path file) throws IOException {
      Files.createLink(name, file);
    }

    /** Returns when the bytes of a file, or the names in a directory, survive a power cut. */
    default void sync(java.nio.file.Path path) throws IOException {
      try (FileChannel channel = channelOf(path)) {
        channel.force(true);
      }
    }

    /** Some file systems sync a file only for who may write it; who may not tries as a reader. */
    static FileChannel channelOf(java.nio.file.Path path) throws IOException {
      if (Files.isRegularFile(path)) {
        try {
          return FileChannel.open(path, StandardOpenOption.WRITE);
        } catch (FileSystemException refused) {
          return FileChannel.open(path, StandardOpenOption.READ);
        }
      }
      return FileChannel.open(path, StandardOpenOption.READ);
    }
  }

  /** Where Spark puts the files that a snapshot of RocksDB names, beside the snapshot. */
  private static final List<String> NAMED_BY_SNAPSHOTS = List.of("SSTs", "logs");

  private final LocalFileSystem fileSystem;
  private final Disk disk;
  private final LocalPermissions permissions;
  private final boolean allowUnfenced;

  /** Files that snapshots name, of those that are still there; none is ever written again. */
  private final Set<java.nio.file.Path> synced = ConcurrentHashMap.newKeySet();

  LocalFileManager(Path root, Configuration conf, LocalFileSystem fileSystem, Disk disk) {
    super(root, conf);
    this.fileSystem = fileSystem;
    this.disk = disk;
    this.permissions = LocalPermissions.from(conf);
    this.allowUnfenced = FileManagerSettings.from(conf).allowUnfenced();
  }

  /** A file that exists fails at close. */
  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    java.nio.file.Path target = localPath(path);
    if (target == null) {
      return super.createAtomic(path, overwriteIfPossible);
    }
    return Undeclared.failures(
        () ->
            new AtomicUpload<>(
                LocalDraft.beside(target),
                draft -> {
                  permissions.applyTo(draft.path());
                  draft.finish();
                  if (SparkFileNames.isSnapshot(target.getFileName().toString())) {
                    syncNamedFiles(target);
                  }
                  if (overwriteIfPossible) {
                    replace(target, draft);
                  } else {
                    create(path, target, draft);
                  }
                }));
  }

  @Override
  public void mkdirs(Path path) {
    java.nio.file.Path directory = localPath(path);
    if (directory == null) {
      super.mkdirs(path);
      return;
    }
    Undeclared.failures(
        () -> {
          make(directory);
          return null;
        });
  }

  private void make(java.nio.file.Path directory) throws IOException {
    if (Files.isDirectory(directory)) {
      return;
    }
    make(directory.getParent());
    try {
      permissions.applyTo(Files.createDirectory(directory));
    } catch (java.nio.file.FileAlreadyExistsException taken) {
      if (!Files.isDirectory(directory)) {
        throw new FileAlreadyExistsException(directory + " is no directory");
      }
    }
  }

  /**
   * Null for a name that this JVM's encoding of file names has no letters for: Hadoop writes
   * others.
   */
  private java.nio.file.Path localPath(Path path) {
    try {
      return fileSystem.pathToFile(path).toPath();
    } catch (InvalidPathException unspeakable) {
      return null;
    }
  }

  /** Sync what a snapshot may name and what was not synced before it. */
  private void syncNamedFiles(java.nio.file.Path snapshot) throws IOException {
    Set<java.nio.file.Path> present = ConcurrentHashMap.newKeySet();
    for (String name : NAMED_BY_SNAPSHOTS) {
      java.nio.file.Path directory = snapshot.resolveSibling(name);
      boolean isNew = false;
      try (DirectoryStream<java.nio.file.Path> files = Files.newDirectoryStream(directory)) {
        for (java.nio.file.Path file : files) {
          isNew |= syncOnce(file);
          present.add(file);
        }
      } catch (NoSuchFileException | NotDirectoryException none) {
        continue;
      }
      if (isNew) {
        syncDirectory(directory);
      }
    }
    synced.retainAll(present);
  }

  private boolean syncOnce(java.nio.file.Path file) throws IOException {
    if (synced.contains(file)) {
      return false;
    }
    try {
      disk.sync(file);
    } catch (IOException failure) {
      if (Files.notExists(file)) {
        return false; // purged meanwhile; a network file system calls that a stale handle, for
        // example
      }
      throw failure;
    }
    return synced.add(file);
  }

  private void replace(java.nio.file.Path target, LocalDraft draft) throws IOException {
    Files.deleteIfExists(checksums(target));
    Files.move(draft.path(), target, StandardCopyOption.ATOMIC_MOVE);
    syncDirectory(target.getParent());
  }

  private void create(Path path, java.nio.file.Path target, LocalDraft draft) throws IOException {
    if (Files.exists(target)) {
      throw new FileAlreadyExistsException(target + " exists already");
    }
    Files.deleteIfExists(checksums(target));
    try {
      disk.link(target, draft.path());
    } catch (java.nio.file.FileAlreadyExistsException taken) {
      if (!isOurs(target, draft)) {
        throw new FileAlreadyExistsException(target + " exists already");
      }
    } catch (UnsupportedOperationException noLinks) {
      createAsSpark(path, draft);
      return;
    } catch (FileSystemException failure) {
      if (!isOurs(target, draft)) {
        if (!allowUnfenced && !MissingLinks.isMeantBy(failure)) {
          throw failure;
        }
        createAsSpark(path, draft);
        return;
      }
    }
    syncDirectory(target.getParent());
  }

  /**
   * A network file system repeats a link whose answer was lost, and is told that the name is taken.
   */
  private static boolean isOurs(java.nio.file.Path target, LocalDraft draft) {
    try {
      return Files.isSameFile(target, draft.path());
    } catch (IOException gone) {
      return false;
    }
  }

  /** For disks without links: the look and the rename of Spark's own manager. */
  private void createAsSpark(Path path, LocalDraft draft) throws IOException {
    CancellableFSDataOutputStream stream = super.createAtomic(path, false);
    try {
      Files.copy(draft.path(), stream);
      stream.close();
    } catch (IOException failure) {
      stream.cancel();
      throw failure;
    }
  }

  private static java.nio.file.Path checksums(java.nio.file.Path target) {
    return target.resolveSibling("." + target.getFileName() + ".crc");
  }

  private void syncDirectory(java.nio.file.Path directory) {
    try {
      disk.sync(directory);
    } catch (IOException impossible) {
      // Not every file system syncs directories. The file is whole and has its name, as with
      // Spark's manager.
    }
  }
}

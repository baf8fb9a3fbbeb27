package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.NonWritableChannelException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/** What the Python tests need to see or to reset, and nobody else. */
public final class TestAccess {

  private TestAccess() {}

  public static long reservedBytes() {
    return Spool.reservedBytes();
  }

  public static void forgetProbes() {
    ConditionProbe.forget();
  }

  public static void flushDeletes(String path, Configuration conf) throws IOException {
    PendingDeletes.of(new Path(path).getFileSystem(conf)).flush();
  }

  /**
   * Close a stream in a thread that is interrupted meanwhile; the class of what it threw, or "".
   */
  public static String interruptedClose(OutputStream stream, long afterMs) throws Exception {
    AtomicReference<String> thrown = new AtomicReference<>("");
    Thread thread =
        new Thread(
            () -> {
              try {
                stream.close();
              } catch (IOException | RuntimeException failure) {
                thrown.set(failure.getClass().getName());
              }
            });
    thread.start();
    Thread.sleep(afterMs);
    thread.interrupt();
    thread.join(60_000);
    return thread.isAlive() ? "still closing" : thrown.get();
  }

  /** The manager of a local disk on which every link fails, for a reason in the system's words. */
  public static CheckpointFileManager failingLinks(String root, String reason, Configuration conf)
      throws IOException {
    return local(
        root,
        conf,
        new LocalFileManager.Disk() {
          @Override
          public void link(java.nio.file.Path name, java.nio.file.Path file) throws IOException {
            throw new FileSystemException(name.toString(), null, reason);
          }
        });
  }

  /** The manager of a local disk that notes what is synced, and which names were there before. */
  public static CheckpointFileManager notingSyncs(
      String root, String watched, List<String> notes, Configuration conf) throws IOException {
    return local(
        root,
        conf,
        new LocalFileManager.Disk() {
          @Override
          public void sync(java.nio.file.Path path) throws IOException {
            LocalFileManager.Disk.super.sync(path);
            boolean after = Files.exists(java.nio.file.Path.of(watched));
            notes.add((after ? "after " : "before ") + path.getFileName());
          }
        });
  }

  /** The manager of a disk that fails to sync a file of some name. */
  public static CheckpointFileManager failingSync(String root, String failing, Configuration conf)
      throws IOException {
    return local(
        root,
        conf,
        new LocalFileManager.Disk() {
          @Override
          public void sync(java.nio.file.Path path) throws IOException {
            if (path.getFileName().toString().equals(failing)) {
              throw new FileSystemException(path.toString(), null, "Input/output error");
            }
            LocalFileManager.Disk.super.sync(path);
          }
        });
  }

  /** The manager of a disk on which a file of some name vanishes while it is synced. */
  public static CheckpointFileManager vanishingAtSync(
      String root, String vanishing, Configuration conf) throws IOException {
    return local(
        root,
        conf,
        new LocalFileManager.Disk() {
          @Override
          public void sync(java.nio.file.Path path) throws IOException {
            if (path.getFileName().toString().equals(vanishing)) {
              Files.delete(path);
              throw new FileSystemException(path.toString(), null, "Stale file handle");
            }
            LocalFileManager.Disk.super.sync(path);
          }
        });
  }

  /** Sync a file as the manager does, and say whether it was opened for writing. */
  public static boolean isSyncedByAWriter(String file) throws IOException {
    java.nio.file.Path path = java.nio.file.Path.of(file);
    new LocalFileManager.Disk() {}.sync(path);
    try (FileChannel channel = LocalFileManager.Disk.channelOf(path)) {
      channel.write(ByteBuffer.allocate(0));
      return true;
    } catch (NonWritableChannelException reader) {
      return false;
    }
  }

  /**
   * Make many directories through a manager; how many of its bucket this JVM remembers afterwards.
   */
  public static int makeDirectories(
      CheckpointFileManager manager, String root, int count, Configuration conf)
      throws IOException {
    for (int number = 0; number < count; number++) {
      manager.mkdirs(new Path(root + "/made/" + number));
    }
    return ConditionalFileManager.madeIn(new Path(root).getFileSystem(conf)).size();
  }

  /** The manager of a network file system that loses the answer to every link, and repeats it. */
  public static CheckpointFileManager repeatingLinks(String root, Configuration conf)
      throws IOException {
    return local(
        root,
        conf,
        new LocalFileManager.Disk() {
          @Override
          public void link(java.nio.file.Path name, java.nio.file.Path file) throws IOException {
            Files.createLink(name, file);
            Files.createLink(name, file);
          }
        });
  }

  private static CheckpointFileManager local(
      String root, Configuration conf, LocalFileManager.Disk disk) throws IOException {
    return new LocalFileManager(new Path(root), conf, FileSystem.getLocal(conf), disk);
  }
}

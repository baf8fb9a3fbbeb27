package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.io.OutputStream;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
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
}

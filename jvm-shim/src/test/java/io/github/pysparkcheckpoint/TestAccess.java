package io.github.pysparkcheckpoint;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** What the Python tests need to see or to reset, and nobody else. */
public final class TestAccess {

  private TestAccess() {}

  public static boolean isSurelyFile(String root, String path) {
    return SparkFileNames.isSurelyFile(new Path(root), new Path(path));
  }

  public static long reservedBytes() {
    return Spool.reservedBytes();
  }

  public static void forgetProbes() {
    ConditionProbe.forget();
  }

  public static void flushDeletes(String path, Configuration conf) throws IOException {
    PendingDeletes.of(new Path(path).getFileSystem(conf)).flush();
  }

  public static String settings(Configuration conf) {
    return FileManagerSettings.from(conf).toString();
  }
}

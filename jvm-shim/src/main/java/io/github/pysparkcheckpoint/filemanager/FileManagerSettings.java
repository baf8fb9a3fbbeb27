package io.github.pysparkcheckpoint.filemanager;

import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;

/**
 * What a user can set for the file manager, read from the Hadoop configuration that Spark hands
 * over.
 *
 * <p>Each name is found as {@code spark.ckpt.fileManager.x} (Spark copies its session confs into
 * the configuration) and as {@code ckpt.fileManager.x} (from {@code
 * spark.hadoop.ckpt.fileManager.x}, or a core-site.xml); the first wins.
 *
 * @param allowUnfenced run on a store without conditional create, unprotected against a second
 *     driver
 * @param memoryBytes what all open streams of this JVM together may hold in memory
 * @param spoolDirectory where the rest waits until it is sent
 */
record FileManagerSettings(boolean allowUnfenced, long memoryBytes, Path spoolDirectory) {

  static final String ALLOW_UNFENCED = "ckpt.fileManager.allowUnfenced";
  static final String MEMORY_BYTES = "ckpt.fileManager.memoryBytes";
  static final String SPOOL_DIRECTORY = "ckpt.fileManager.spoolDirectory";

  private static final long DEFAULT_MEMORY_BYTES = 64L << 20;

  static FileManagerSettings from(Configuration conf) {
    return new FileManagerSettings(
        conf.getBoolean(nameIn(conf, ALLOW_UNFENCED), false),
        conf.getLongBytes(nameIn(conf, MEMORY_BYTES), DEFAULT_MEMORY_BYTES),
        Paths.get(spoolDirectory(conf)));
  }

  private static String nameIn(Configuration conf, String name) {
    String spark = "spark." + name;
    return conf.get(spark) != null ? spark : name;
  }

  /** The user's choice, else Spark's first local directory, else the JVM's temporary one. */
  private static String spoolDirectory(Configuration conf) {
    String[] candidates = {
      conf.get(nameIn(conf, SPOOL_DIRECTORY)),
      System.getenv("LOCAL_DIRS"),
      System.getenv("SPARK_LOCAL_DIRS"),
      conf.get("spark.local.dir"),
    };
    for (String candidate : candidates) {
      if (candidate != null && !candidate.isBlank()) {
        return candidate.split(",")[0].trim();
      }
    }
    return System.getProperty("java.io.tmpdir");
  }
}

package io.github.pysparkcheckpoint.plugin;

import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.apache.spark.internal.config.package$;
import scala.Tuple2;

/**
 * What this side must know of {@code spark.ckpt.*}. Python gets all of them and checks the rest.
 *
 * @param url where checkpoints go; empty if none are wanted
 * @param app whose checkpoints they are
 * @param restore what is restored before the application begins; {@code never} for nothing
 * @param setsFileManager whether checkpoint files on object stores are ours to write
 * @param restoreSeconds how long a restore may take
 * @param startSeconds how long the start of a query waits for the look at its history
 * @param holdSeconds how long the plan of a batch waits until the checkpoint before it is durable;
 *     0 for not at all
 * @param stopSeconds how long the end of the application waits for the last checkpoints
 * @param confs every setting that Python is told, secrets included
 */
record PluginSettings(
    String url,
    String app,
    String restore,
    boolean setsFileManager,
    long restoreSeconds,
    long startSeconds,
    long holdSeconds,
    long stopSeconds,
    Map<String, String> confs) {

  static final String PREFIX = "spark.ckpt.";
  private static final String NEVER = "never";
  private static final String REDACTION = "spark.redaction.regex";

  /**
   * What Spark's own pattern does not know: names of settings, and texts such as a command line.
   */
  private static final String OUR_SECRETS =
      "(?i:spark[.]ckpt[.]secret|account[.]?key|private[.]?key|encryption[.]key|serverEncryptionKey|azure[.]sas"
          + "|connection[.]?string)";

  private static final Pattern SECRET =
      Pattern.compile(
          "spark[.]ckpt[.](secret[.].*|option[.](accessKey|secretKey|sessionToken|accountKey"
              + "|sasToken|connectionString|serverEncryptionKey))",
          Pattern.CASE_INSENSITIVE);

  @Override
  public String toString() {
    return "PluginSettings(" + url + ")";
  }

  boolean restores() {
    return !NEVER.equals(restore);
  }

  /**
   * Read the settings, and take the secrets out of the conf, which the UI shows and tasks get.
   *
   * <p>The secrets are out also when a setting makes no sense, which is an {@code
   * IllegalArgumentException} that names it.
   */
  static PluginSettings take(SparkConf conf) {
    Map<String, String> confs = new TreeMap<>();
    for (Tuple2<String, String> entry : conf.getAll()) {
      if (isForPython(entry._1())) {
        confs.put(entry._1(), entry._2());
      }
    }
    hideSecrets(conf);
    long restoreSeconds = seconds(conf, "restoreTimeoutSeconds", 1800);
    // What is restored or rolled back in place must be whole before its query reads it.
    boolean mends =
        "restore".equalsIgnoreCase(conf.get(PREFIX + "stale", "").trim())
            || "rollback".equalsIgnoreCase(conf.get(PREFIX + "sink", "").trim());
    long startSeconds = mends ? restoreSeconds : seconds(conf, "startTimeoutSeconds", 30);
    return new PluginSettings(
        conf.get(PREFIX + "url", "").trim(),
        app(conf),
        restore(conf),
        isAuto(conf.get(PREFIX + "fileManager", "auto")),
        restoreSeconds,
        startSeconds,
        isBatch(conf) ? Math.max(1, seconds(conf, "durabilityTimeoutSeconds", 300)) : 0,
        seconds(conf, "stopTimeoutSeconds", 5),
        confs);
  }

  /** Whether the application must not run without us, also where other settings make no sense. */
  static boolean mustHold(SparkConf conf) {
    return !NEVER.equals(restore(conf)) || !durability(conf).equals("async");
  }

  /** Whether no batch may begin before the one before it is in the store. */
  boolean holds() {
    return holdSeconds > 0;
  }

  private static String durability(SparkConf conf) {
    return conf.get(PREFIX + "durability", "async").trim().toLowerCase(Locale.ROOT);
  }

  private static boolean isBatch(SparkConf conf) {
    return switch (durability(conf)) {
      case "async" -> false;
      case "batch" -> true;
      default ->
          throw new IllegalArgumentException(
              PREFIX + "durability is async or batch, not '" + durability(conf) + "'");
    };
  }

  private static String restore(SparkConf conf) {
    String restore = conf.get(PREFIX + "restore", NEVER).trim();
    return restore.isEmpty() ? NEVER : restore;
  }

  private static String app(SparkConf conf) {
    String app = conf.get(PREFIX + "app", "").trim();
    return app.isEmpty() ? conf.get("spark.app.name") : app;
  }

  private static boolean isForPython(String name) {
    return name.startsWith(PREFIX)
        || name.startsWith("spark.hadoop.fs.")
        || name.startsWith("spark.hadoop.google.")
        || name.startsWith("spark.sql.catalog.");
  }

  private static void hideSecrets(SparkConf conf) {
    String usual = package$.MODULE$.SECRET_REDACTION_PATTERN().defaultValueString();
    conf.set(REDACTION, conf.get(REDACTION, usual) + "|" + OUR_SECRETS);
    for (Tuple2<String, String> entry : conf.getAll()) {
      if (SECRET.matcher(entry._1()).matches()) {
        conf.remove(entry._1());
      }
    }
  }

  private static boolean isAuto(String value) {
    return switch (value.trim().toLowerCase(Locale.ROOT)) {
      case "auto" -> true;
      case "off" -> false;
      default ->
          throw new IllegalArgumentException(
              PREFIX + "fileManager is auto or off, not '" + value + "'");
    };
  }

  private static long seconds(SparkConf conf, String name, long otherwise) {
    String value = conf.get(PREFIX + name, Long.toString(otherwise)).trim();
    try {
      return Math.max(0, (long) Math.ceil(Double.parseDouble(value)));
    } catch (NumberFormatException error) {
      throw new IllegalArgumentException(
          PREFIX + name + " is a number of seconds, not '" + value + "'", error);
    }
  }
}

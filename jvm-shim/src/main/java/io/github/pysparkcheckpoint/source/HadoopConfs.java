package io.github.pysparkcheckpoint.source;

import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;

/**
 * How Spark reaches file systems and object stores, for a Python that must reach the same ones.
 *
 * <p>The configuration is that of a session: it has the confs of the application, what a program
 * has set on the session or on the context's own configuration, and Hadoop's files. Hadoop's and
 * Spark's defaults are left out, since Python has its own, and what Spark read from the
 * environment, since Python reads that.
 */
final class HadoopConfs {

  static final String PREFIX = "spark.hadoop.";
  private static final String BY_SPARK = "Set by Spark";
  private static final String BY_USER = "'spark.hadoop'";

  private HadoopConfs() {}

  /** Everything about file systems that somebody has chosen, by the names of Spark's own confs. */
  static Map<String, String> chosenIn(Configuration conf) {
    Map<String, String> found = new HashMap<>();
    for (Map.Entry<String, String> entry : conf) {
      String name = entry.getKey();
      if ((name.startsWith("fs.") || name.startsWith("google.")) && isChosen(conf, name)) {
        String value = conf.get(name);
        if (value != null) {
          found.put(PREFIX + name, value);
        }
      }
    }
    return found;
  }

  private static boolean isChosen(Configuration conf, String name) {
    String[] sources = conf.getPropertySources(name);
    String last = sources == null || sources.length == 0 ? "" : sources[sources.length - 1];
    return !last.endsWith("-default.xml") && (!last.startsWith(BY_SPARK) || last.contains(BY_USER));
  }
}

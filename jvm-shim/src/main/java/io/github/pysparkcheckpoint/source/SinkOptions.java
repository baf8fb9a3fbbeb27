package io.github.pysparkcheckpoint.source;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of {@code ckpt-sink} that this side must understand, and those that it adds for
 * Python.
 *
 * <p>What is added begins with {@code __ckpt.}, which no option of a user does.
 */
final class SinkOptions {

  /** What every added option begins with. */
  static final String PREFIX = "__ckpt.";

  private SinkOptions() {}

  /**
   * The columns that {@code keyColumns} names: separated by commas, in backticks where need be. Two
   * backticks inside of them are one.
   */
  static List<String> keyColumns(CaseInsensitiveStringMap options) {
    List<String> names = new ArrayList<>();
    String text = options.getOrDefault("keyColumns", "");
    StringBuilder name = new StringBuilder();
    boolean quoted = false;
    char before = ',';
    for (char letter : text.toCharArray()) {
      if (letter == '`') {
        if (!quoted && before == '`') {
          name.append(letter);
        }
        quoted = !quoted;
      } else if (letter == ',' && !quoted) {
        add(names, name);
      } else {
        name.append(letter);
      }
      before = letter;
    }
    add(names, name);
    return names;
  }

  private static void add(List<String> names, StringBuilder name) {
    String found = name.toString().trim();
    if (!found.isEmpty()) {
      names.add(found);
    }
    name.setLength(0);
  }

  /** A column's name as Spark's expression parser reads it back. */
  static String quoted(String column) {
    return "`" + column.replace("`", "``") + "`";
  }

  /**
   * The same options and more; the names of {@code more} get the prefix, if they have none. Of
   * Hadoop's confs those stay out that are among the options already, with {@code spark.hadoop.} or
   * without.
   */
  static CaseInsensitiveStringMap with(CaseInsensitiveStringMap options, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options.asCaseSensitiveMap());
    for (Map.Entry<String, String> entry : more.entrySet()) {
      String name = entry.getKey();
      if (name.startsWith(HadoopConfs.PREFIX)
          && (options.containsKey(name)
              || options.containsKey(name.substring(HadoopConfs.PREFIX.length())))) {
        continue;
      }
      all.put(name.startsWith("spark.") ? name : PREFIX + name, entry.getValue());
    }
    return new CaseInsensitiveStringMap(all);
  }
}

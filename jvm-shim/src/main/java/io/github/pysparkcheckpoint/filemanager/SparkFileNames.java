package io.github.pysparkcheckpoint.filemanager;

import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;

/**
 * Which paths are surely files, by their names alone. Pure.
 *
 * <p>An object store has no directories: to learn that {@code a/b} is neither a file nor a
 * directory takes two requests, a HEAD and a LIST. Where the name says that it can only be a file,
 * one will do. "Surely" matters more than "often": a directory taken for a file would look absent,
 * and Spark would start from nothing. So a bare number counts only directly in the log that the
 * manager was made for, because the partitions of the state are directories with such names.
 */
final class SparkFileNames {

  /**
   * State files: {@code 7.delta}, {@code 7.snapshot}, {@code 7_uuid.changelog}, {@code 7.zip.crc}.
   */
  private static final Pattern STATE_FILE =
      Pattern.compile("\\d+(_[^/]+)?\\.(delta|snapshot|changelog|zip)(\\.crc)?");

  /** Snapshots of RocksDB, which name files beside them: {@code 7.zip}, {@code 7_uuid.zip}. */
  private static final Pattern SNAPSHOT = Pattern.compile("\\d+(_[^/]+)?\\.zip");

  /** What RocksDB uploads beside them: {@code 000012-uuid.sst}. */
  private static final Pattern ROCKSDB_FILE = Pattern.compile("\\d+-[^/]+\\.(sst|log)");

  /** Log entries: {@code 7}, {@code 9.compact}. */
  private static final Pattern LOG_FILE = Pattern.compile("\\d+(\\.compact)?");

  private SparkFileNames() {}

  /** Whether {@code path} can only be a file, for a manager that was made for {@code root}. */
  static boolean isSurelyFile(Path root, Path path) {
    if (path.equals(root) || path.getParent() == null) {
      return false;
    }
    String name = path.getName();
    if (LOG_FILE.matcher(name).matches()) {
      return isLog(root) && path.getParent().equals(root);
    }
    return STATE_FILE.matcher(name).matches() || ROCKSDB_FILE.matcher(name).matches();
  }

  /** Whether a file of that name is a snapshot of RocksDB. */
  static boolean isSnapshot(String name) {
    return SNAPSHOT.matcher(name).matches();
  }

  private static boolean isLog(Path root) {
    Path parent = root.getParent();
    return switch (root.getName()) {
      case "offsets", "commits", "_spark_metadata" -> true;
      default -> parent != null && parent.getName().equals("sources");
    };
  }
}

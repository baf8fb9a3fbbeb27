package io.github.pysparkcheckpoint.source;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Reads Spark's own logs of a query, wherever its checkpoint location is. */
final class CheckpointLogs {

  private CheckpointLogs() {}

  /** The text of {@code offsets/N}, empty if it is not there. */
  static String offsets(Configuration conf, String location, long batchId) {
    Path file = new Path(new Path(location, "offsets"), Long.toString(batchId));
    try (InputStream stream = file.getFileSystem(conf).open(file)) {
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
    } catch (FileNotFoundException error) {
      return "";
    } catch (IOException error) {
      throw new UncheckedIOException("ckpt-sink: cannot read " + file, error);
    }
  }
}

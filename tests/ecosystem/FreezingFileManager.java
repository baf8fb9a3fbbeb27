import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * Spark's own file manager, which stops for ever at one file: a file named {@code freeze} in a directory
 * above says {@code before} or {@code after} and the end of that file's path. It then makes {@code frozen}
 * beside it.
 */
public final class FreezingFileManager extends FileContextBasedCheckpointFileManager {
  public FreezingFileManager(Path path, Configuration conf) {
    super(path, conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrites) {
    freeze("before", path);
    CancellableFSDataOutputStream stream = super.createAtomic(path, overwrites);
    return new CancellableFSDataOutputStream(stream) {
      @Override
      public void cancel() {
        stream.cancel();
      }

      @Override
      public void close() throws IOException {
        stream.close();
        freeze("after", path);
      }
    };
  }

  private static void freeze(String when, Path path) {
    java.nio.file.Path file = java.nio.file.Path.of(path.toUri().getPath());
    for (java.nio.file.Path above = file.getParent(); above != null; above = above.getParent()) {
      java.nio.file.Path told = above.resolve("freeze");
      try {
        if (!Files.exists(told)) {
          continue;
        }
        String[] words = Files.readString(told).trim().split(" ");
        if (words[0].equals(when) && file.toString().endsWith("/" + words[1])) {
          Files.writeString(above.resolve("frozen"), file.toString());
          Thread.sleep(Long.MAX_VALUE);
        }
      } catch (IOException | InterruptedException error) {
        throw new IllegalStateException(error);
      }
      return;
    }
  }
}

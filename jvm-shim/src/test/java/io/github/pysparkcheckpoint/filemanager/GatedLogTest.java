package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What the gate sees of Spark's logs, and when. */
final class GatedLogTest {

  @TempDir java.nio.file.Path directory;

  private final List<String> seen = new ArrayList<>();
  private boolean refuses;

  private final LogGate gate =
      new LogGate() {
        @Override
        public void beforeOffsets(Path location, long batch, byte[] offsets) throws IOException {
          String text = new String(offsets, StandardCharsets.UTF_8);
          seen.add(location.getName() + " " + batch + " " + text + " " + isThere("offsets/7"));
          if (refuses) {
            throw new IOException("not durable");
          }
        }

        @Override
        public void afterCommit(Path location) {
          seen.add(location.getName() + " commit " + isThere("commits/7"));
        }
      };

  @Test
  void thePlanOfABatchIsVisibleWhenTheGateHasLetItPass() throws Exception {
    write("offsets", "7", gate);
    assertEquals(List.of(directory.getFileName() + " 7 v1 false"), seen);
    assertEquals("v1", Files.readString(directory.resolve("offsets/7")));
  }

  @Test
  void nothingIsLeftOfAPlanThatTheGateRefuses() throws Exception {
    refuses = true;
    assertThrows(IOException.class, () -> write("offsets", "7", gate));
    try (var left = Files.list(directory.resolve("offsets"))) {
      assertEquals(0, left.count());
    }
  }

  @Test
  void theEndOfABatchIsToldWhenItIsVisible() throws Exception {
    write("commits", "7", gate);
    assertEquals(List.of(directory.getFileName() + " commit true"), seen);
  }

  @Test
  void aPlanThatIsCancelledIsNotAskedFor() throws Exception {
    CancellableFSDataOutputStream stream = open("offsets", "7", gate);
    stream.write('x');
    stream.cancel();
    stream.close();
    assertTrue(seen.isEmpty());
    assertFalse(isThere("offsets/7"));
  }

  /** Also what Spark's source logs and state stores write. */
  @Test
  void everythingElsePassesAsItIs() throws Exception {
    write("_spark_metadata", "7", gate);
    write("offsets", "7.tmp", gate);
    assertTrue(seen.isEmpty());
    CancellableFSDataOutputStream stream = open("offsets", "8", null);
    assertSame(stream, GatedLog.of(stream, null, root("offsets"), new Path(root("offsets"), "8")));
    stream.cancel();
  }

  private boolean isThere(String name) {
    return Files.exists(directory.resolve(name));
  }

  private Path root(String log) {
    return new Path(directory.resolve(log).toUri().toString());
  }

  private CancellableFSDataOutputStream open(String log, String name, LogGate asked)
      throws IOException {
    CheckpointFileManager manager = FileManagers.choose(root(log), new Configuration());
    manager.createCheckpointDirectory();
    Path entry = new Path(root(log), name);
    return GatedLog.of(manager.createAtomic(entry, false), asked, root(log), entry);
  }

  private void write(String log, String name, LogGate asked) throws IOException {
    CancellableFSDataOutputStream stream = open(log, name, asked);
    stream.write("v1".getBytes(StandardCharsets.UTF_8));
    stream.close();
  }
}

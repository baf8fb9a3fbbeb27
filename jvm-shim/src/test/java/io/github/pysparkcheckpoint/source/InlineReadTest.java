package io.github.pysparkcheckpoint.source;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** What the jar takes for rows in the pickles of partitions, and what it leaves to Python. */
final class InlineReadTest {

  private static final String HEAD = "\u0080\u0005\u0095ABCDEFGH\u008c%";
  private static final String MODULE = "pyspark_checkpoint.sink.table_reader\u0094\u008c";

  @Test
  void rowsAreWhatFollowsTheirMarkForAsLongAsItSays() {
    byte[] rows = {'a', 'b', ';'};
    assertArrayEquals(
        rows, parsed(HEAD + MODULE + "\u000bInlineSplit\u0094valueckpt-rows:3;ab;rest"));
    assertArrayEquals(
        new byte[0], parsed(HEAD + MODULE + "\u000bInlineSplit\u0094ckpt-rows:0;rest"));
  }

  @Test
  void whateverElseSaysIsNotTakenForRows() {
    assertNull(parsed(""));
    assertNull(parsed(HEAD + MODULE + "\nTableSplit\u0094chains InlineSplit ckpt-rows:3;abc"));
    assertNull(
        parsed(HEAD + "pyspark.sql.datasource\u0094\u008c\u000bInlineSplit ckpt-rows:3;abc"));
    assertNull(parsed(HEAD + MODULE + "\u000bInlineSplit\u0094ckpt-rows:9;abc"));
  }

  private static byte[] parsed(String pickle) {
    InlineRead.Rows found = InlineRead.Rows.parse(pickle.getBytes(StandardCharsets.ISO_8859_1));
    return found == null ? null : found.stream();
  }
}

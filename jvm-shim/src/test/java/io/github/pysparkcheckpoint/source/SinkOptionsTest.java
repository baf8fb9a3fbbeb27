package io.github.pysparkcheckpoint.source;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Map;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;

/** Options of {@code ckpt-sink}. */
final class SinkOptionsTest {

  @Test
  void keyColumnsAreSeparatedByCommas() {
    assertEquals(List.of("a", "b c"), keys(" a , b c ,"));
    assertEquals(List.of(), keys(" "));
    assertEquals(List.of(), SinkOptions.keyColumns(CaseInsensitiveStringMap.empty()));
  }

  @Test
  void backticksHoldCommasAndBackticks() {
    assertEquals(List.of("a,b", "c"), keys("`a,b`, c"));
    assertEquals(List.of("a`b"), keys("`a``b`"));
  }

  @Test
  void aQuotedNameIsReadBack() {
    for (String name : List.of("plain", "a,b", "a`b", "`", "a.b")) {
      assertEquals(List.of(name), keys(SinkOptions.quoted(name)));
    }
  }

  @Test
  void whatIsAddedGetsAPrefixThatNoUserTypes() {
    CaseInsensitiveStringMap options = map(Map.of("keyColumns", "a"));
    assertEquals(
        Map.of("keyColumns", "a", "__ckpt.batch", "7", "spark.hadoop.fs.x", "1"),
        SinkOptions.with(options, Map.of("batch", "7", "spark.hadoop.fs.x", "1"))
            .asCaseSensitiveMap());
  }

  /** An option of the user wins over the session's conf of the same name, in either spelling. */
  @Test
  void hadoopsConfsDoNotReplaceOptions() {
    Map<String, String> session = Map.of("spark.hadoop.fs.s3a.endpoint", "session");
    for (String name : List.of("fs.s3a.endpoint", "spark.hadoop.fs.s3a.endpoint")) {
      CaseInsensitiveStringMap options = map(Map.of(name, "option"));
      assertEquals(Map.of(name, "option"), SinkOptions.with(options, session).asCaseSensitiveMap());
    }
  }

  private static List<String> keys(String text) {
    return SinkOptions.keyColumns(map(Map.of("keyColumns", text)));
  }

  private static CaseInsensitiveStringMap map(Map<String, String> values) {
    return new CaseInsensitiveStringMap(values);
  }
}

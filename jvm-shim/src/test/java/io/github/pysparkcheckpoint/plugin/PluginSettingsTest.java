package io.github.pysparkcheckpoint.plugin;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import org.apache.spark.SparkConf;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What the plugin reads of {@code spark.ckpt.*}. */
final class PluginSettingsTest {

  @Test
  void withoutConfsNothingIsRestoredAndTheFileManagerIsSet() {
    PluginSettings settings = PluginSettings.take(conf(Map.of()));
    assertEquals("", settings.url());
    assertEquals("application", settings.app());
    assertFalse(settings.restores());
    assertTrue(settings.setsFileManager());
    assertEquals(30, settings.startSeconds());
  }

  @Test
  void pythonIsToldItsOwnSettingsAndHowStoresAreReached() {
    Map<String, String> given =
        Map.of(
            "spark.ckpt.url", "s3://bucket/x",
            "spark.hadoop.fs.s3a.endpoint", "http://store",
            "spark.hadoop.google.cloud.auth.type", "none",
            "spark.sql.catalog.lake.type", "rest");
    SparkConf conf = conf(given).set("spark.sql.shuffle.partitions", "2");
    assertEquals(given, PluginSettings.take(conf).confs());
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "spark.ckpt.secret.key",
        "spark.ckpt.option.secretKey",
        "spark.ckpt.option.accountkey",
        "spark.ckpt.option.sasToken",
      })
  void aSecretIsToldToPythonAndTakenOutOfTheConf(String name) {
    SparkConf conf = conf(Map.of(name, "hidden"));
    PluginSettings settings = PluginSettings.take(conf);
    assertEquals("hidden", settings.confs().get(name));
    assertFalse(conf.contains(name));
    assertFalse(settings.toString().contains("hidden"));
  }

  /** The UI shows the conf also when the application runs on without the plugin. */
  @Test
  void secretsAreTakenOutAlsoWhenAnotherSettingMakesNoSense() {
    SparkConf conf =
        conf(Map.of("spark.ckpt.secret.key", "hidden", "spark.ckpt.stopTimeoutSeconds", "soon"));
    IllegalArgumentException error =
        assertThrows(IllegalArgumentException.class, () -> PluginSettings.take(conf));
    assertTrue(error.getMessage().contains("spark.ckpt.stopTimeoutSeconds"), error.getMessage());
    assertFalse(conf.contains("spark.ckpt.secret.key"));
  }

  @Test
  void theUsersPatternOfWhatIsRedactedStays() {
    SparkConf conf = conf(Map.of("spark.redaction.regex", "mine"));
    PluginSettings.take(conf);
    String pattern = conf.get("spark.redaction.regex");
    assertTrue(pattern.startsWith("mine|") && pattern.contains("connection"), pattern);
  }

  @ParameterizedTest
  @CsvSource({"auto, true", "OFF, false", "' Auto ', true"})
  void theFileManagerIsAutoOrOff(String value, boolean isSet) {
    SparkConf conf = conf(Map.of("spark.ckpt.fileManager", value));
    assertEquals(isSet, PluginSettings.take(conf).setsFileManager());
  }

  @Test
  void anotherFileManagerIsRefused() {
    SparkConf conf = conf(Map.of("spark.ckpt.fileManager", "on"));
    assertThrows(IllegalArgumentException.class, () -> PluginSettings.take(conf));
  }

  @ParameterizedTest
  @CsvSource({"2.1, 3", "-5, 0", "0, 0", "' 7 ', 7"})
  void secondsAreRoundedUpAndNeverNegative(String value, long seconds) {
    SparkConf conf = conf(Map.of("spark.ckpt.startTimeoutSeconds", value));
    assertEquals(seconds, PluginSettings.take(conf).startSeconds());
  }

  /** What is restored or rolled back in place must be whole before its query reads it. */
  @ParameterizedTest
  @CsvSource({"stale, restore", "sink, rollback"})
  void aStartWaitsForTheWholeOfWhatIsMended(String setting, String value) {
    SparkConf conf =
        conf(Map.of("spark.ckpt." + setting, value, "spark.ckpt.restoreTimeoutSeconds", "900"));
    assertEquals(900, PluginSettings.take(conf).startSeconds());
  }

  @ParameterizedTest
  @CsvSource({"never, false", "'', false", "latest, true", "savepoint:a, true"})
  void aRestoreIsAskedForByItsConf(String value, boolean asks) {
    SparkConf conf = conf(Map.of("spark.ckpt.restore", value));
    assertEquals(asks, PluginSettings.mustHold(conf));
    assertEquals(asks, PluginSettings.take(conf).restores());
  }

  @ParameterizedTest
  @CsvSource({"async, 7, 0", "Batch, 7, 7", "batch, 0, 1"})
  void batchesAreHeldOnlyIfTheyAreToBeDurable(String value, String seconds, long held) {
    SparkConf conf =
        conf(
            Map.of("spark.ckpt.durability", value, "spark.ckpt.durabilityTimeoutSeconds", seconds));
    assertEquals(held, PluginSettings.take(conf).holdSeconds());
    assertEquals(held > 0, PluginSettings.mustHold(conf));
  }

  /** An application that runs without what it asks for would lose what it believes to be safe. */
  @Test
  void aDurabilityThatNobodyKnowsStopsTheApplication() {
    SparkConf conf = conf(Map.of("spark.ckpt.durability", "bach"));
    assertThrows(IllegalArgumentException.class, () -> PluginSettings.take(conf));
    assertTrue(PluginSettings.mustHold(conf));
  }

  private static SparkConf conf(Map<String, String> values) {
    SparkConf conf = new SparkConf(false).set("spark.app.name", "application");
    values.forEach(conf::set);
    return conf;
  }
}

package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;

/** What a user can set for the file manager. */
final class FileManagerSettingsTest {

  @Test
  void withoutConfsCreatesAreFencedAndMemoryIsBounded() {
    FileManagerSettings settings = settings(Map.of());
    assertFalse(settings.allowUnfenced());
    assertEquals(64L << 20, settings.memoryBytes());
  }

  /** spark.ckpt.* of the session wins over spark.hadoop.ckpt.*. */
  @Test
  void settingsAreFoundUnderBothNames() {
    FileManagerSettings settings =
        settings(
            Map.of(
                "ckpt.fileManager.allowUnfenced", "true",
                "ckpt.fileManager.memoryBytes", "1k",
                "spark.ckpt.fileManager.memoryBytes", "2k"));
    assertTrue(settings.allowUnfenced());
    assertEquals(2048, settings.memoryBytes());
  }

  @Test
  void theUsersDirectoryComesBeforeSparksFirstOne() {
    Map<String, String> spark = Map.of("spark.local.dir", "/first,/second");
    if (System.getenv("SPARK_LOCAL_DIRS") == null && System.getenv("LOCAL_DIRS") == null) {
      assertEquals(Path.of("/first"), settings(spark).spoolDirectory());
    }
    assertEquals(
        Path.of("/own"),
        settings(Map.of("spark.local.dir", "/first", "ckpt.fileManager.spoolDirectory", "/own"))
            .spoolDirectory());
  }

  @Test
  void aSizeThatIsNoneIsRefused() {
    assertThrows(
        IllegalArgumentException.class,
        () -> settings(Map.of("ckpt.fileManager.memoryBytes", "much")));
  }

  @Test
  void everyNameOfASettingBelongsToThePlugin() {
    assertTrue(FileManagers.confNames().contains("spark." + FileManagerSettings.ALLOW_UNFENCED));
    assertTrue(
        FileManagers.confNames().stream().allMatch(n -> n.startsWith("spark.ckpt.fileManager")));
  }

  private static FileManagerSettings settings(Map<String, String> values) {
    Configuration conf = new Configuration(false);
    values.forEach(conf::set);
    return FileManagerSettings.from(conf);
  }
}

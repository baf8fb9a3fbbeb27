package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.NullSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A disk without links, told from a link that failed. */
final class MissingLinksTest {

  @ParameterizedTest
  @ValueSource(
      strings = {
        "Operation not permitted",
        "Operation not supported",
        "Function not implemented",
        "Too many links",
        "Unknown error 524",
        "Unbekannter Fehler 524",
      })
  void everyWordForADiskWithoutLinksIsKnown(String reason) {
    assertTrue(isMeantBy(reason));
  }

  /** Spark's way looks and then renames: a broken disk or server must not lead past the fence. */
  @ParameterizedTest
  @NullSource
  @ValueSource(
      strings = {
        "Input/output error",
        "Stale file handle",
        "Disk quota exceeded",
        "No space left on device",
      })
  void aLinkThatFailedIsNotTakenForADiskWithoutLinks(String reason) {
    assertFalse(isMeantBy(reason));
  }

  /** Whatever language the process speaks: what Linux says where links are not permitted. */
  @Test
  @EnabledOnOs(OS.LINUX)
  void theWordsOfThisSystemAreKnown(@TempDir Path directory) {
    FileSystemException refused =
        assertThrows(
            FileSystemException.class,
            () -> Files.createLink(directory.resolve("link"), directory));
    assertTrue(MissingLinks.isMeantBy(refused));
  }

  private static boolean isMeantBy(String reason) {
    return MissingLinks.isMeantBy(new FileSystemException("file", null, reason));
  }
}

package io.github.pysparkcheckpoint.plugin;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import org.junit.jupiter.api.Test;

/** How often the side process is started again. */
final class SideProcessTest {

  /** Five deaths in a row are enough; five in half a year are none too many. */
  @Test
  void aSideProcessThatLivedLongWasNoFailedStart() {
    assertEquals(5, SideProcess.counted(5, Duration.ofSeconds(30)));
    assertEquals(1, SideProcess.counted(5, Duration.ofHours(1)));
  }
}

package io.github.pysparkcheckpoint.source;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** What the jar reads of the plan that Python has pickled. */
final class InlineWriteTest {

  @Test
  void theFirstMarkCountsAndNamesTheTasksThatRunPython() {
    InlineWrite.Plan plan = parsed("\u0080\u0004xckpt-inline:400:3,17;y ckpt-inline:999:;");
    assertEquals(400, plan.taskBytes());
    assertTrue(plan.allows(0));
    assertFalse(plan.allows(3));
    assertFalse(plan.allows(17));
  }

  @Test
  void withoutAMarkOrWithNoBytesEveryTaskRunsPython() {
    assertFalse(parsed("").allows(0));
    assertFalse(parsed("ckpt-inline:x:;").allows(0));
    assertFalse(parsed("ckpt-inline:0:;").allows(0));
  }

  @Test
  void rowsTakeAQuarterOfWhatTheDriverTakesOfResults() {
    InlineWrite.Plan plan = parsed("ckpt-inline:1000:;");
    assertEquals(1000, plan.below(0, 200).taskBytes());
    assertEquals(1000, plan.below(1 << 30, 200).taskBytes());
    assertEquals(250, plan.below(4000, 4).taskBytes());
    assertFalse(plan.below(100, 200).allows(0));
  }

  private static InlineWrite.Plan parsed(String pickle) {
    return InlineWrite.Plan.parse(pickle.getBytes(StandardCharsets.ISO_8859_1));
  }
}

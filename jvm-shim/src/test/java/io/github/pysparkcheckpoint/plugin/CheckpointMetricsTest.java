package io.github.pysparkcheckpoint.plugin;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

/** The gauges of all queries. */
final class CheckpointMetricsTest {

  private final CheckpointMetrics metrics = new CheckpointMetrics();

  /** Spark tells of the end of a run late; the gauges must not lose sight of the one that runs. */
  @Test
  void aQueryThatIsStartedAgainAtOnceIsStillCounted() {
    metrics.started("run 1", "query");
    metrics.started("run 2", "query");
    metrics.ended("run 1");
    assertEquals(1, gauge("queries"));
  }

  @Test
  void theAgeOfACheckpointBeginsWithTheRun() {
    metrics.captured("query", 1, 2.5);
    metrics.started("run", "query");
    assertTrue(gauge("checkpointAgeSeconds") < 60);
    assertEquals(2.5, gauge("checkpointSeconds"));
  }

  @Test
  void sumsAreKeptOverSeveralSideProcesses() {
    metrics.add(1, 0, 100, 7);
    metrics.add(2, 1, 50, 3);
    assertEquals(3, gauge("checkpoints"));
    assertEquals(1, gauge("failures"));
    assertEquals(150, gauge("uploadedBytes"));
    assertEquals(10, gauge("requests"));
  }

  private double gauge(String name) {
    return (Double) metrics.metricRegistry().getGauges().get(name).getValue();
  }
}

package io.github.pysparkcheckpoint.plugin;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;
import org.apache.spark.metrics.source.Source;

/** The source {@code ckpt} of Spark's metrics system: how the checkpoints of all queries are. */
final class CheckpointMetrics implements Source {

  private final MetricRegistry registry = new MetricRegistry();
  private final Map<String, Last> queries = new ConcurrentHashMap<>();
  private final Map<String, Started> runs = new ConcurrentHashMap<>();
  private final LongAdder captures = new LongAdder();
  private final LongAdder failures = new LongAdder();
  private final LongAdder uploadedBytes = new LongAdder();
  private final LongAdder requests = new LongAdder();

  /** The last capture of a query: when it ended, and how long it took. */
  private record Last(long capturedMs, double seconds) {}

  /** A run that is active: of which query, and since when. */
  private record Started(String query, long startedMs) {}

  CheckpointMetrics() {
    gauge("queries", () -> (double) runs.size());
    gauge("checkpointAgeSeconds", this::oldestSeconds);
    gauge(
        "checkpointSeconds",
        () -> queries.values().stream().mapToDouble(Last::seconds).max().orElse(0));
    gauge("checkpoints", captures::doubleValue);
    gauge("failures", failures::doubleValue);
    gauge("uploadedBytes", uploadedBytes::doubleValue);
    gauge("requests", requests::doubleValue);
  }

  void started(String runId, String query) {
    runs.put(runId, new Started(query, System.currentTimeMillis()));
  }

  /** Spark may tell of the end of a run after the start of the query's next one. */
  void ended(String runId) {
    runs.remove(runId);
  }

  void captured(String query, long capturedMs, double seconds) {
    queries.put(query, new Last(capturedMs, seconds));
  }

  /** Further captures, since the side process told of any: it may be another process each time. */
  void add(long moreCaptures, long moreFailures, long moreBytes, long moreRequests) {
    captures.add(moreCaptures);
    failures.add(moreFailures);
    uploadedBytes.add(moreBytes);
    requests.add(moreRequests);
  }

  @Override
  public String sourceName() {
    return "ckpt";
  }

  @Override
  public MetricRegistry metricRegistry() {
    return registry;
  }

  private void gauge(String name, Gauge<Double> value) {
    registry.register(name, value);
  }

  /** Of the queries that run: since the newest checkpoint of this run, or since its start. */
  private double oldestSeconds() {
    long now = System.currentTimeMillis();
    return runs.values().stream()
        .mapToDouble(run -> (now - Math.max(run.startedMs(), capturedMs(run.query()))) / 1000.0)
        .max()
        .orElse(0);
  }

  private long capturedMs(String query) {
    Last last = queries.get(query);
    return last == null ? 0 : last.capturedMs();
  }
}

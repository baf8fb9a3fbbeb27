package io.github.pysparkcheckpoint;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.ToDoubleFunction;
import org.apache.spark.metrics.source.Source;

/** The source {@code ckpt} of Spark's metrics system: how the checkpoints of all queries are. */
final class CheckpointMetrics implements Source {

    private final MetricRegistry registry = new MetricRegistry();
    private final Map<String, Figures> queries = new ConcurrentHashMap<>();
    private final Map<String, Long> startedMs = new ConcurrentHashMap<>();

    /** What the side process tells of one query. Times are of the last capture, the rest in all. */
    record Figures(
            long capturedMs, double seconds, long captures, long failures, long bytes, long requests) {}

    CheckpointMetrics() {
        gauge("queries", () -> (double) startedMs.size());
        gauge("checkpointAgeSeconds", this::oldestSeconds);
        gauge(
                "checkpointSeconds",
                () -> queries.values().stream().mapToDouble(Figures::seconds).max().orElse(0));
        gauge("checkpoints", () -> sum(Figures::captures));
        gauge("failures", () -> sum(Figures::failures));
        gauge("uploadedBytes", () -> sum(Figures::bytes));
        gauge("requests", () -> sum(Figures::requests));
    }

    void started(String query) {
        startedMs.put(query, System.currentTimeMillis());
    }

    void ended(String query) {
        startedMs.remove(query);
    }

    void put(String query, Figures figures) {
        queries.put(query, figures);
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
        return startedMs.entrySet().stream()
                .mapToDouble(entry -> (now - Math.max(entry.getValue(), capturedMs(entry.getKey()))) / 1000.0)
                .max()
                .orElse(0);
    }

    private long capturedMs(String query) {
        Figures figures = queries.get(query);
        return figures == null ? 0 : figures.capturedMs();
    }

    private double sum(ToDoubleFunction<Figures> figure) {
        return queries.values().stream().mapToDouble(figure).sum();
    }
}

package io.github.pysparkcheckpoint;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What passes between Spark's threads and the side process: events out, figures in.
 *
 * <p>Spark's threads never wait here, but for the start of a query, which waits a limited time for the
 * look at its history. Events that find no room are dropped: they only wake, and the side process looks
 * for itself from time to time.
 */
public final class SideDoor {

    private static final Logger LOG = LoggerFactory.getLogger(SideDoor.class);
    private static final int ROOM = 10_000;
    private static volatile SideDoor current;

    private final SparkContext context;
    private final PluginSettings settings;
    private final CheckpointMetrics metrics;
    private final LinkedBlockingQueue<Map<String, String>> events = new LinkedBlockingQueue<>(ROOM);
    private final Map<String, Run> runs = new ConcurrentHashMap<>();
    private volatile boolean closed;
    private volatile boolean seen;

    /** A run of a query that is active. */
    private record Run(StreamExecution query, Map<String, String> event, CountDownLatch looked) {}

    SideDoor(SparkContext context, PluginSettings settings, CheckpointMetrics metrics) {
        this.context = context;
        this.settings = settings;
        this.metrics = metrics;
    }

    /** The door of the running application; null if there is none. */
    public static SideDoor current() {
        return current;
    }

    void open() {
        current = this;
    }

    void close() {
        closed = true;
        if (current == this) {
            current = null;
        }
        runs.values().forEach(run -> run.looked().countDown());
        events.clear();
    }

    boolean hasSeenQueries() {
        return seen;
    }

    void askToStop() {
        events.offer(Map.of("kind", "stop"));
    }

    /** A query starts: tell the side process, and wait until it has looked at the query's history. */
    void started(String id, String runId, String name, StreamExecution query) {
        Map<String, String> event = event("started", id, runId);
        event.put("name", name == null ? "" : name);
        Run run = new Run(query, event, new CountDownLatch(1));
        runs.put(runId, run);
        metrics.started(id);
        seen = true;
        events.offer(event);
        try {
            if (!closed && !run.looked().await(settings.startSeconds(), TimeUnit.SECONDS)) {
                LOG.warn(
                        "ckpt: query {} starts before its history was looked at, after {} s"
                                + " (spark.ckpt.startTimeoutSeconds)",
                        id,
                        settings.startSeconds());
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    void happened(String kind, String id, String runId, String progress) {
        if (!runs.containsKey(runId)) {
            return;
        }
        Map<String, String> event = event(kind, id, runId);
        if (progress != null) {
            event.put("progress", progress);
        }
        events.offer(event);
        if (kind.equals("terminated")) {
            runs.remove(runId).looked().countDown();
            metrics.ended(id);
        }
    }

    private static Map<String, String> event(String kind, String id, String runId) {
        Map<String, String> event = new HashMap<>();
        event.put("kind", kind);
        event.put("id", id);
        event.put("run_id", runId);
        return event;
    }

    /** Called by the side process when it is ready: active queries are told to it, also a second time. */
    public SparkContext attach() {
        runs.values().forEach(run -> events.offer(run.event()));
        return context;
    }

    /** Called by the side process: the next event as JSON, null if there is none within the time. */
    public String next(long milliseconds) throws InterruptedException {
        Map<String, String> event = events.poll(milliseconds, TimeUnit.MILLISECONDS);
        return event == null ? null : Pickles.json(event);
    }

    /** Called by the side process: the session that a run belongs to, null if it has ended. */
    public SparkSession session(String runId) {
        Run run = runs.get(runId);
        return run == null ? null : run.query().sparkSession();
    }

    /** Called by the side process: the start of a query may go on. */
    public void looked(String runId) {
        Run run = runs.get(runId);
        if (run != null) {
            run.looked().countDown();
        }
    }

    /** Called by the side process: how far the captures of a query are. */
    public void report(
            String query,
            long capturedMs,
            double seconds,
            long captures,
            long failures,
            long bytes,
            long requests) {
        metrics.put(
                query,
                new CheckpointMetrics.Figures(capturedMs, seconds, captures, failures, bytes, requests));
    }
}

package io.github.pysparkcheckpoint.plugin;

import io.github.pysparkcheckpoint.filemanager.FileManagers;
import io.github.pysparkcheckpoint.filemanager.LogGate;
import io.github.pysparkcheckpoint.python.Pickles;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What passes between Spark's threads and the side process: events out, figures in.
 *
 * <p>Spark's threads never wait here, but for two things, and a limited time: the start of a query
 * for the look at its history; and, if every batch is to be durable, the plan of a batch for the
 * checkpoint of the batch before it. Events that find no room are dropped: they only wake, and the
 * side process looks for itself from time to time.
 *
 * <p>A location may be replaced only while its query waits here. So each start has a {@link Step},
 * which changes by compare-and-set alone: the side process says that it restores, and then that it
 * renames; a start whose time is over leaves, unless the renames have begun, whose end it awaits. A
 * query whose location is known to be stale, and is not restored in time, is stopped; so is one of
 * which the side process has said that it must not run. It is held until it is stopped: no time
 * limit lets it go on.
 */
public final class SideDoor implements LogGate {

  private static final Logger LOG = LoggerFactory.getLogger(SideDoor.class);
  private static final int ROOM = 10_000;
  private static final Map<String, String> STOP = Map.of("kind", "stop");
  private static final long REPEAT_NANOS = TimeUnit.SECONDS.toNanos(5);
  private static final String SIDE_ENDED = "the side process has ended, see the driver's log";
  private static volatile SideDoor current;

  private final SparkContext context;
  private final PluginSettings settings;
  private final CheckpointMetrics metrics;
  private final LinkedBlockingQueue<Map<String, String>> events = new LinkedBlockingQueue<>(ROOM);
  private final Map<String, Run> runs = new ConcurrentHashMap<>();
  private volatile boolean closed;
  private volatile boolean seen;
  private volatile boolean mustStop;

  /** How far the start of a query is. */
  private enum Step {
    /** Its history is being looked at. */
    LOOKING,
    /** Its location is stale, and is being restored beside it. */
    RESTORING,
    /** The restored location is taking the place of the stale one. */
    REPLACING,
    /** The side process ended while it replaced: there may be no location at all. */
    BROKEN,
    /** The side process has said that the start may go on. */
    LOOKED,
    /** The side process has said that the query must not run. */
    REFUSED,
    /** Nobody waits any more. */
    LEFT
  }

  /** A batch that is not planned before the checkpoint of the one before it is durable. */
  private static final class Held {
    final Map<String, String> event;
    final CountDownLatch answered = new CountDownLatch(1);
    volatile boolean isDurable;
    volatile String problem = "the side process has not answered";

    Held(Map<String, String> event) {
      this.event = event;
    }
  }

  /** A run of a query that is active. */
  private record Run(
      StreamingQuery query,
      Path location,
      Map<String, String> event,
      AtomicReference<Held> held,
      CountDownLatch looked,
      AtomicReference<Step> step,
      AtomicReference<Boolean> watched) {

    Run(StreamingQuery query, String location, Map<String, String> event) {
      this(
          query,
          new Path(location),
          event,
          new AtomicReference<>(),
          new CountDownLatch(1),
          new AtomicReference<>(Step.LOOKING),
          new AtomicReference<>());
    }

    /** Whether it is checkpointed; not as long as nobody has said so. */
    boolean isWatched() {
      return Boolean.TRUE.equals(watched.get());
    }

    /**
     * Nobody waits any more, unless the location is being replaced; returns how far the start was.
     */
    Step leave() {
      return step.getAndUpdate(
          now -> now == Step.LOOKING || now == Step.RESTORING ? Step.LEFT : now);
    }
  }

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
    FileManagers.setGate(this);
  }

  void close() {
    closed = true;
    if (current == this) {
      current = null;
    }
    if (!settings.holds()) {
      FileManagers.setGate(null); // otherwise no batch of ours may be planned any more
    }
    sideProcessEnded();
    runs.values().forEach(run -> run.looked().countDown());
    runs.values().forEach(run -> release(run.held().get()));
    events.clear();
  }

  /** Whether the side process had, or has, something to do. */
  boolean hasWork() {
    return seen && !closed;
  }

  /** The side process hears of it after all events that wait, however many they are. */
  void askToStop() {
    mustStop = true;
    events.offer(STOP);
  }

  /**
   * A query starts: tell the side process, and wait until it has looked at the query's history.
   *
   * @param facts what else the side process is told; its {@code location} among it
   */
  void started(
      String id, String runId, String name, Map<String, String> facts, StreamingQuery query) {
    Map<String, String> event = event("started", id, runId);
    event.put("name", name == null ? "" : name);
    event.putAll(facts);
    Run run = new Run(query, facts.get("location"), event);
    runs.put(runId, run);
    metrics.started(runId, id);
    seen = true;
    events.offer(event);
    boolean interrupted = false;
    try {
      if (!closed) {
        run.looked().await(settings.startSeconds(), TimeUnit.SECONDS);
      }
    } catch (InterruptedException error) {
      interrupted = true;
    }
    Step last = run.leave();
    while (last == Step.REPLACING) {
      // Two renames: whoever reads the location now, this run or the next one, reads half of it.
      try {
        run.looked().await();
        last = run.step().get();
        last = last == Step.REPLACING ? Step.BROKEN : last;
      } catch (InterruptedException error) {
        interrupted = true;
      }
    }
    goOn(run, id, last, interrupted);
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void goOn(Run run, String id, Step last, boolean interrupted) {
    if (last == Step.LOOKED || !run.query().isActive()) {
      return;
    }
    if (last == Step.LOOKING) {
      if (!closed && !interrupted) {
        LOG.warn(
            "ckpt: query {} starts before its history was looked at, after {} s"
                + " (spark.ckpt.startTimeoutSeconds)",
            id,
            settings.startSeconds());
      }
      return;
    }
    if (last == Step.REFUSED) {
      LOG.error(
          "ckpt: query {} must not run, for the reason that the side process gives: it is stopped"
              + " before its first batch",
          id);
    } else if (last == Step.RESTORING) {
      LOG.error(
          "ckpt: query {} is stopped: its checkpoint location is stale, and {}. Nothing of it has"
              + " run; give it more time (spark.ckpt.restoreTimeoutSeconds), or run ckpt restore",
          id,
          closed
              ? "the side process that restored it has ended"
              : "was not restored within " + settings.startSeconds() + " s");
    } else {
      LOG.error(
          "ckpt: query {} is stopped: the side process ended while it replaced the stale checkpoint"
              + " location, or took the output back. Nothing is lost: start the query again, which"
              + " finishes a rollback; a location that is not there is beside its path, with the"
              + " restored one (*.stale-*, *.restored-*)",
          id);
    }
    stopForSure(run.query());
  }

  /**
   * Stop a query, however often that takes; when this returns, no batch of it can begin. May be
   * called by the thread that is to run it, which is held until then.
   */
  private static void stopForSure(StreamingQuery query) {
    boolean interrupted = false;
    while (query.isActive()) {
      Thread thread = new Thread(() -> stop(query), "ckpt-stop");
      thread.setDaemon(true);
      thread.start();
      // Spark marks the query first, and waits for its thread afterwards: it may be this one.
      while (query.isActive() && thread.isAlive()) {
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(5));
        interrupted |= Thread.interrupted();
      }
      if (query.isActive()) {
        LOG.error("ckpt: query {} does not stop. It is held, and stopped once more", query.id());
        LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static void stop(StreamingQuery query) {
    try {
      query.stop();
    } catch (TimeoutException error) {
      LOG.warn("ckpt: query {} has not stopped yet (spark.sql.streaming.stopTimeout)", query.id());
    } catch (RuntimeException error) {
      LOG.error("ckpt: query {} cannot be stopped", query.id(), error);
    }
  }

  /** A query that is checkpointed plans batch K only if the store has K-1, and this plan of K. */
  @Override
  public void beforeOffsets(Path location, long batch, byte[] offsets) throws IOException {
    Run run = settings.holds() ? find(location) : null;
    if (run == null) {
      return;
    }
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(settings.holdSeconds());
    try {
      await(run.looked(), deadline);
      if (Boolean.FALSE.equals(run.watched().get())) {
        return; // not to be checkpointed; one that could not be was stopped
      }
      Map<String, String> event = new HashMap<>(run.event());
      event.put("kind", "planned");
      event.put("batch", Long.toString(batch));
      event.put("offsets", new String(offsets, StandardCharsets.UTF_8));
      Held held = new Held(event);
      run.held().set(held);
      while (!closed && held.answered.getCount() > 0 && deadline - System.nanoTime() > 0) {
        events.offer(event); // again from time to time: an event that found no room was dropped
        await(held.answered, Math.min(deadline, System.nanoTime() + REPEAT_NANOS));
      }
      run.held().set(null);
      if (!held.isDurable) {
        throw new IOException(notDurable(run, batch, closed ? SIDE_ENDED : held.problem));
      }
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("stopped while batch " + batch + " waited to be planned");
    }
  }

  private String notDurable(Run run, long batch, String problem) {
    return "ckpt: batch "
        + batch
        + " of query "
        + run.query().id()
        + " does not begin, because "
        + (batch == 0 ? "its plan" : "the checkpoint of batch " + (batch - 1))
        + " is not durable (spark.ckpt.durability=batch, after at most "
        + settings.holdSeconds()
        + " s, spark.ckpt.durabilityTimeoutSeconds): "
        + problem
        + ". Nothing is lost; mend that, and start the query again";
  }

  private static void await(CountDownLatch latch, long deadline) throws InterruptedException {
    latch.await(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
  }

  /** The side process learns of a batch's end before Spark tells its listeners. */
  @Override
  public void afterCommit(Path location) {
    Run run = closed ? null : find(location);
    if (run != null && run.isWatched()) {
      Map<String, String> event = new HashMap<>(run.event());
      event.put("kind", "committed");
      events.offer(event);
    }
  }

  /**
   * The active run that has this checkpoint location; null if there is none, or it is not known.
   */
  private Run find(Path location) {
    for (Run run : runs.values()) {
      if (run.location().equals(location) && run.query().isActive()) {
        return run;
      }
    }
    return null;
  }

  private static void release(Held held) {
    if (held != null) {
      held.answered.countDown();
    }
  }

  /**
   * Called by the side process: what became of the checkpoint that a batch waits for. It is {@code
   * durable}, is {@code refused}, or {@code waits} for what is wrong to end.
   */
  public void answer(String runId, long batch, String outcome, String problem) {
    Run run = runs.get(runId);
    Held held = run == null ? null : run.held().get();
    if (held == null || !held.event.get("batch").equals(Long.toString(batch))) {
      return;
    }
    held.problem = problem;
    if (outcome.equals("durable")) {
      held.isDurable = true; // for good: nothing that is said later takes it back
    }
    if (!outcome.equals("waits")) {
      release(held);
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
      metrics.ended(runId);
    }
  }

  private static Map<String, String> event(String kind, String id, String runId) {
    Map<String, String> event = new HashMap<>();
    event.put("kind", kind);
    event.put("id", id);
    event.put("run_id", runId);
    return event;
  }

  /**
   * Called by the side process when it is ready: active queries are told to it, also a second time.
   */
  public SparkContext attach() {
    runs.values().forEach(run -> events.offer(run.event()));
    runs.values().stream()
        .map(run -> run.held().get())
        .filter(held -> held != null)
        .forEach(held -> events.offer(held.event));
    return context;
  }

  /** Called by the side process: the next event as JSON, null if there is none within the time. */
  public String next(long milliseconds) throws InterruptedException {
    Map<String, String> event = events.poll(milliseconds, TimeUnit.MILLISECONDS);
    if (event == null && mustStop) {
      return Pickles.json(STOP);
    }
    return event == null ? null : Pickles.json(event);
  }

  /** Called by the side process: the session that a run belongs to, null if it has ended. */
  public SparkSession session(String runId) {
    Run run = runs.get(runId);
    return run == null ? null : run.query().sparkSession();
  }

  /**
   * Called by the side process: the start of a query may go on; it is checkpointed from now on, or
   * not.
   */
  public void looked(String runId, boolean isWatched) {
    Run run = runs.get(runId);
    if (run != null) {
      run.watched().set(isWatched);
      run.step().updateAndGet(now -> now == Step.LEFT || now == Step.REFUSED ? now : Step.LOOKED);
      run.looked().countDown();
    }
  }

  /**
   * Called by the side process: its location is stale. Whether the start waits until it is
   * restored.
   */
  public boolean restores(String runId) {
    Run run = runs.get(runId);
    return run != null
        && (run.step().compareAndSet(Step.LOOKING, Step.RESTORING)
            || run.step().get() == Step.RESTORING);
  }

  /**
   * Called by the side process before it renames anything: whether the start waits until it is
   * done.
   */
  public boolean replaces(String runId) {
    Run run = runs.get(runId);
    return run != null && run.step().compareAndSet(Step.RESTORING, Step.REPLACING);
  }

  /**
   * Called by the side process: the query must not run. Its start does not go on, whatever becomes
   * of the side process; a query that has not waited is stopped where it is.
   */
  public void refuses(String runId) {
    Run run = runs.get(runId);
    if (run == null) {
      return;
    }
    Step before =
        run.step().getAndUpdate(now -> now == Step.LEFT || now == Step.LOOKED ? now : Step.REFUSED);
    run.looked().countDown();
    if (before == Step.LEFT || before == Step.LOOKED) {
      LOG.error("ckpt: query {} must not run, and has begun: it is stopped", run.query().id());
      Thread thread = new Thread(() -> stopForSure(run.query()), "ckpt-stop-begun");
      thread.setDaemon(true);
      thread.start();
    }
  }

  /** The side process has ended: what it was replacing is neither here nor there. */
  void sideProcessEnded() {
    for (Run run : runs.values()) {
      if (run.step().compareAndSet(Step.REPLACING, Step.BROKEN)) {
        run.looked().countDown();
      }
    }
  }

  /**
   * Called by listeners of the application: whether the side process checkpoints a run, to this
   * URL.
   */
  public boolean watches(String runId, String url) {
    Run run = runs.get(runId);
    return run != null && run.isWatched() && withoutSlash(url).equals(withoutSlash(settings.url()));
  }

  private static String withoutSlash(String url) {
    return url.endsWith("/") ? withoutSlash(url.substring(0, url.length() - 1)) : url;
  }

  /**
   * Called by the side process: the last capture of a query; and what it did since it last said so.
   */
  public void report(
      String query,
      long capturedMs,
      double seconds,
      long captures,
      long failures,
      long bytes,
      long requests) {
    metrics.captured(query, capturedMs, seconds);
    metrics.add(captures, failures, bytes, requests);
  }
}

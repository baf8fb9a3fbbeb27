package io.github.pysparkcheckpoint.plugin;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Which queries go on from their start, and which are stopped there. */
@Timeout(30)
@Execution(ExecutionMode.CONCURRENT)
final class SideDoorTest {

  private static final String RUN = "run";
  private static final Path LOCATION = new Path("file:/location");

  private final FakeQuery query = new FakeQuery();
  private SideDoor door = door(20);

  @Test
  void aQueryThatWasLookedAtGoesOn() throws Exception {
    Thread start = start();
    door.looked(RUN, true);
    start.join();
    assertTrue(query.isActive.get());
    assertTrue(door.watches(RUN, "/store/"));
    assertFalse(door.watches(RUN, "/elsewhere"));
  }

  @Test
  void aQueryThatNobodyLooksAtInTimeGoesOn() throws Exception {
    door = door(0);
    start().join();
    assertTrue(query.isActive.get());
  }

  /** What the side process says afterwards, or whether it says anything, does not matter. */
  @Test
  void aQueryThatMustNotRunIsStoppedBeforeItGoesOn() throws Exception {
    Thread start = start();
    door.refuses(RUN);
    door.looked(RUN, false);
    start.join();
    assertFalse(query.isActive.get());
  }

  /** Spark swallows what a listener throws: to hold the thread is the only way that is sure. */
  @Test
  void aQueryThatDoesNotStopIsHeldUntilItDoes() throws Exception {
    query.failingStops.set(2);
    Thread start = start();
    door.refuses(RUN);
    while (query.stops.get() < 2) {
      assertTrue(start.isAlive(), "it must not go on");
      Thread.sleep(5);
    }
    start.join();
    assertFalse(query.isActive.get());
    assertEquals(3, query.stops.get());
  }

  /** Who interrupts the start of a query has not stopped it, unless it is marked as stopped. */
  @Test
  void anInterruptionDoesNotLetAQueryGoOnThatMustNotRun() throws Exception {
    query.failingStops.set(1);
    Thread start = start();
    door.refuses(RUN);
    start.interrupt();
    start.join();
    assertFalse(query.isActive.get());
  }

  @Test
  void aQueryThatHasBegunAndMustNotRunIsStoppedWhereItIs() throws Exception {
    door = door(0);
    start().join();
    door.refuses(RUN);
    while (query.isActive.get()) {
      Thread.sleep(5);
    }
  }

  @Test
  void aQueryWhoseLocationIsNotRestoredInTimeIsStopped() throws Exception {
    door = door(1);
    Thread start = start();
    assertTrue(door.restores(RUN));
    start.join();
    assertFalse(query.isActive.get());
    assertFalse(door.replaces(RUN), "nobody waits any more");
  }

  @Test
  void aQueryWaitsForTheEndOfAReplacementThatHasBegun() throws Exception {
    door = door(1);
    Thread start = start();
    assertTrue(door.restores(RUN) && door.replaces(RUN));
    start.join(1500);
    assertTrue(start.isAlive(), "its time is over, but the renames are not");
    door.looked(RUN, true);
    start.join();
    assertTrue(query.isActive.get());
  }

  @Test
  void aQueryIsStoppedIfTheSideProcessEndsWhileItReplaces() throws Exception {
    Thread start = start();
    assertTrue(door.restores(RUN) && door.replaces(RUN));
    door.sideProcessEnded();
    start.join();
    assertFalse(query.isActive.get());
  }

  @Test
  void aReplacementThatFailedStopsItsQuery() throws Exception {
    Thread start = start();
    assertTrue(door.restores(RUN) && door.replaces(RUN));
    door.refuses(RUN);
    start.join();
    assertFalse(query.isActive.get());
  }

  @Test
  void aBatchWaitsForTheCheckpointBeforeItAndTheSideProcessHearsItsVeryBytes() throws Exception {
    Held held = held(30, true);
    String event = door.next(10_000);
    assertTrue(event.contains("planned") && event.contains("\"7\"") && event.contains("v1"), event);
    door.answer(RUN, 6, "durable", "");
    door.answer(RUN, 7, "waits", "the store is away");
    held.thread.join(300);
    assertTrue(
        held.thread.isAlive(), "neither an answer for another batch nor patience lets it go");
    door.answer(RUN, 7, "durable", "");
    door.answer(RUN, 7, "waits", "a plan that was told twice");
    held.thread.join();
    assertNull(held.failure.get());
  }

  @Test
  void aBatchWhoseCheckpointIsRefusedOrLateDoesNotBegin() throws Exception {
    Held refused = held(30, true);
    door.answer(RUN, 7, "refused", "fenced");
    while (refused.thread.isAlive()) {
      door.answer(RUN, 7, "refused", "fenced");
      Thread.sleep(5);
    }
    assertTrue(refused.failure.get().getMessage().contains("fenced"));
    Held late = held(1, true);
    late.thread.join();
    assertTrue(late.failure.get().getMessage().contains("durabilityTimeoutSeconds"));
  }

  /** Spark stops a query by an interruption, and the end of the application closes the door. */
  @Test
  void aBatchThatWaitsIsLetGoByAStopAndByTheEndOfTheSideProcess() throws Exception {
    Held stopped = held(60, true);
    stopped.thread.interrupt();
    stopped.thread.join();
    assertInstanceOf(InterruptedIOException.class, stopped.failure.get());
    Held closed = held(60, true);
    door.close();
    closed.thread.join();
    assertTrue(closed.failure.get().getMessage().contains("side process has ended"));
    assertThrows(IOException.class, () -> door.beforeOffsets(LOCATION, 8, new byte[0]));
  }

  @Test
  void aQueryThatIsNotCheckpointedIsNotHeld() throws Exception {
    Held held = held(60, false);
    held.thread.join();
    assertNull(held.failure.get());
    door.beforeOffsets(new Path("file:/other"), 7, new byte[0]);
  }

  @Test
  void theSideProcessHearsOfACommitAtOnce() throws Exception {
    Thread start = start();
    door.looked(RUN, true);
    start.join();
    door.afterCommit(LOCATION);
    assertTrue(door.next(10_000).contains("committed"));
  }

  /** A batch that asks whether it may begin, in a thread of its own. */
  private record Held(Thread thread, AtomicReference<Exception> failure) {}

  private Held held(int seconds, boolean isWatched) throws Exception {
    SparkConf conf = conf(20).set("spark.ckpt.durability", "batch");
    conf.set("spark.ckpt.durabilityTimeoutSeconds", Integer.toString(seconds));
    door = new SideDoor(null, PluginSettings.take(conf), new CheckpointMetrics());
    SideDoor asked = door;
    Thread start = start();
    door.looked(RUN, isWatched);
    start.join();
    AtomicReference<Exception> failure = new AtomicReference<>();
    Thread thread =
        new Thread(
            () -> {
              try {
                asked.beforeOffsets(LOCATION, 7, "v1\n{}".getBytes(StandardCharsets.UTF_8));
              } catch (IOException error) {
                failure.set(error);
              }
            });
    thread.setDaemon(true);
    thread.start();
    return new Held(thread, failure);
  }

  private static SideDoor door(int startSeconds) {
    return new SideDoor(null, PluginSettings.take(conf(startSeconds)), new CheckpointMetrics());
  }

  private static SparkConf conf(int startSeconds) {
    return new SparkConf(false)
        .set("spark.app.name", "application")
        .set("spark.ckpt.url", "/store")
        .set("spark.ckpt.startTimeoutSeconds", Integer.toString(startSeconds));
  }

  /** Begin a start in a thread of its own, as Spark does; returns when the door knows of it. */
  private Thread start() throws InterruptedException {
    SideDoor entered = door;
    Thread thread =
        new Thread(
            () ->
                entered.started(
                    "id", RUN, null, Map.of("location", "file:/location"), query.proxy()));
    thread.setDaemon(true);
    thread.start();
    assertTrue(door.next(10_000).contains("started"));
    return thread;
  }

  /** A query that can be asked whether it is active, and be stopped. */
  private static final class FakeQuery {
    final AtomicBoolean isActive = new AtomicBoolean(true);
    final AtomicInteger stops = new AtomicInteger();
    final AtomicInteger failingStops = new AtomicInteger();

    StreamingQuery proxy() {
      InvocationHandler handler =
          (proxy, method, arguments) ->
              switch (method.getName()) {
                case "isActive" -> isActive.get();
                case "id" -> new UUID(0, 0);
                case "stop" -> stop();
                default -> throw new UnsupportedOperationException(method.getName());
              };
      return (StreamingQuery)
          Proxy.newProxyInstance(
              StreamingQuery.class.getClassLoader(),
              new Class<?>[] {StreamingQuery.class},
              handler);
    }

    private Object stop() {
      if (stops.incrementAndGet() <= failingStops.get()) {
        throw new IllegalStateException("it does not stop");
      }
      isActive.set(false);
      return null;
    }
  }
}

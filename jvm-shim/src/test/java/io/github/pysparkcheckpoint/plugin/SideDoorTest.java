package io.github.pysparkcheckpoint.plugin;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
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

  private static SideDoor door(int startSeconds) {
    SparkConf conf =
        new SparkConf(false)
            .set("spark.app.name", "application")
            .set("spark.ckpt.url", "/store")
            .set("spark.ckpt.startTimeoutSeconds", Integer.toString(startSeconds));
    return new SideDoor(null, PluginSettings.take(conf), new CheckpointMetrics());
  }

  /** Begin a start in a thread of its own, as Spark does; returns when the door knows of it. */
  private Thread start() throws InterruptedException {
    SideDoor entered = door;
    Thread thread = new Thread(() -> entered.started("id", RUN, null, query.proxy()));
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

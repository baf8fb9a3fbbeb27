package io.github.pysparkcheckpoint.plugin;

import io.github.pysparkcheckpoint.python.PythonModules;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.Py4JServer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The Python process beside the driver, which makes the checkpoints.
 *
 * <p>It is started in the background, and again if it dies while the application runs. It ends with
 * this JVM, however that ends, because it reads a pipe whose other end only this JVM holds.
 */
final class SideProcess {

  private static final Logger LOG = LoggerFactory.getLogger(SideProcess.class);
  private static final int MOST_STARTS = 5;
  private static final Duration LONG_LIFE = Duration.ofMinutes(10);
  private static final int SETTINGS_STATUS = 2;

  private final SparkContext context;
  private final PluginSettings settings;
  private final SideDoor door;
  private final Thread keeper = new Thread(this::keep, "ckpt-side-process");
  private volatile Process process;
  private volatile boolean stopping;

  SideProcess(SparkContext context, PluginSettings settings, SideDoor door) {
    this.context = context;
    this.settings = settings;
    this.door = door;
    keeper.setDaemon(true);
    // What Python names is looked up by the threads that this one starts.
    keeper.setContextClassLoader(SideProcess.class.getClassLoader());
  }

  void start() {
    door.open();
    keeper.start();
  }

  /** Let it capture what is left, for a few seconds at most; then it is gone. */
  void stop() {
    stopping = true;
    door.askToStop();
    try {
      if (door.hasWork() && !hasEndedWell(process)) {
        LOG.warn(
            "ckpt: the last checkpoints were not all made, {} s are given to them"
                + " (spark.ckpt.stopTimeoutSeconds)",
            settings.stopSeconds());
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    } finally {
      door.close();
      destroy();
      keeper.interrupt();
    }
  }

  private boolean hasEndedWell(Process running) throws InterruptedException {
    return running != null
        && running.waitFor(settings.stopSeconds(), TimeUnit.SECONDS)
        && running.exitValue() == 0;
  }

  private void keep() {
    PluginPython python;
    try {
      python = PluginPython.of(context.conf(), settings);
    } catch (RuntimeException | LinkageError error) {
      door.close();
      if (!stopping) {
        LOG.warn(
            "{}. The application runs on; its queries are not checkpointed", error.getMessage());
      }
      return;
    }
    for (int number = 1; number <= MOST_STARTS && !stopping; number++) {
      long beganNanos = System.nanoTime();
      try {
        if (live(python) == SETTINGS_STATUS) {
          break;
        }
        number = counted(number, Duration.ofNanos(System.nanoTime() - beganNanos));
        if (!stopping) {
          LOG.warn("ckpt: the side process has ended; it is started again ({})", number);
          TimeUnit.SECONDS.sleep(number);
        }
      } catch (InterruptedException error) {
        return;
      } catch (RuntimeException | LinkageError error) {
        LOG.warn("ckpt: the side process cannot be started", error);
      }
    }
    if (!stopping) {
      door.close();
      LOG.error(
          "ckpt: the side process has ended for good; queries are not checkpointed. The lines before"
              + " say why; start the application again when that is mended");
    }
  }

  /** An application may run for months: one that has lived for long was no failed start. */
  static int counted(int number, Duration lived) {
    return lived.compareTo(LONG_LIFE) < 0 ? number : 1;
  }

  private int live(PluginPython python) throws InterruptedException {
    Py4JServer server = new Py4JServer(context.conf());
    server.start();
    try {
      process =
          python.start(
              PythonModules.SIDE_PROCESS,
              Map.of(
                  "PYSPARK_GATEWAY_PORT", Integer.toString(server.getListeningPort()),
                  "PYSPARK_GATEWAY_SECRET", server.secret()));
      if (stopping) {
        destroy();
      }
      PluginPython.log(process, new ArrayList<>());
      return process.waitFor();
    } finally {
      destroy();
      door.sideProcessEnded();
      server.shutdown();
    }
  }

  private void destroy() {
    Process running = process;
    if (running != null) {
      running.destroyForcibly();
    }
  }
}

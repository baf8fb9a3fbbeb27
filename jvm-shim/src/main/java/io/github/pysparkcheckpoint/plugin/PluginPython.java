package io.github.pysparkcheckpoint.plugin;

import io.github.pysparkcheckpoint.python.Pickles;
import io.github.pysparkcheckpoint.python.PythonEnvironment;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.api.python.PythonUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver's Python, as the plugin runs it: modules of the package, told everything on standard
 * input.
 *
 * <p>The settings are the first line; the pipe then stays open as long as this JVM lives, so that a
 * process that reads it to the end knows when to go. What a process writes is logged here.
 */
final class PluginPython {

  private static final Logger LOG = LoggerFactory.getLogger("io.github.pysparkcheckpoint.ckpt");
  private static final String ANSWER = "LOCATION ";
  private static final List<String> NOT_FOR_PYTHON =
      List.of(
          "SPARK_CONNECT_MODE_ENABLED",
          "SPARK_REMOTE",
          "SPARK_LOCAL_REMOTE",
          "SPARK_API_MODE",
          "PYSPARK_SUBMIT_ARGS",
          "_PYSPARK_DRIVER_CONN_INFO_PATH");

  private final PythonEnvironment environment;
  private final String executorPython;
  private final PluginSettings settings;

  private PluginPython(
      PythonEnvironment environment, String executorPython, PluginSettings settings) {
    this.environment = environment;
    this.executorPython = executorPython;
    this.settings = settings;
  }

  /** Find the driver's Python, and what it lacks: one clear message. */
  static PluginPython of(SparkConf conf, PluginSettings settings) {
    String path = PythonUtils.sparkPythonPath();
    return new PluginPython(
        PythonEnvironment.forPlugin("ckpt", onDriver(conf), path, settings.url()),
        onExecutors(conf),
        settings);
  }

  /** The Python that runs beside the driver. */
  static String onDriver(SparkConf conf) {
    return conf.get("spark.pyspark.driver.python", onExecutors(conf));
  }

  /** The Python that tasks of the side process run with. */
  static String onExecutors(SparkConf conf) {
    String variable = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    return conf.get("spark.pyspark.python", variable);
  }

  /** Start a module. Its output must be read, with {@link #log}. */
  Process start(String module, Map<String, String> variables) {
    ProcessBuilder builder = new ProcessBuilder(environment.executable(), "-m", module);
    Map<String, String> env = builder.environment();
    NOT_FOR_PYTHON.forEach(env::remove);
    env.put("PYTHONPATH", environment.pathWithJar());
    env.put("PYTHONUNBUFFERED", "1");
    env.put(PythonEnvironment.SAFE_PATH, "1");
    env.put("PYSPARK_PYTHON", executorPython);
    env.putAll(variables);
    builder.redirectErrorStream(true);
    Process process = null;
    try {
      process = builder.start();
      process.getOutputStream().write(settingsLine().getBytes(StandardCharsets.US_ASCII));
      process.getOutputStream().flush();
      return process;
    } catch (IOException error) {
      if (process != null) {
        process.destroyForcibly();
      }
      throw new UncheckedIOException("ckpt: cannot start " + environment.executable(), error);
    }
  }

  /** Run a module to its end and return its answers; anything but success in time is an error. */
  List<String> run(String module, long limitSeconds) {
    Process process = start(module, Map.of());
    List<String> answers = new CopyOnWriteArrayList<>();
    Thread reader = new Thread(() -> log(process, answers), "ckpt-output");
    reader.setDaemon(true);
    reader.start();
    try {
      if (!process.waitFor(limitSeconds, TimeUnit.SECONDS)) {
        throw new IllegalStateException(
            "ckpt: the restore was not done in "
                + limitSeconds
                + " s. Nothing was started; repeat it with a larger"
                + " spark.ckpt.restoreTimeoutSeconds, and it goes on where it was");
      }
      reader.join(TimeUnit.SECONDS.toMillis(5));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("ckpt: the restore was interrupted", error);
    } finally {
      process.destroyForcibly();
    }
    if (process.exitValue() != 0) {
      throw new IllegalStateException(
          "ckpt: spark.ckpt.restore="
              + settings.restore()
              + " failed; the lines before say why. The application is not started, because it"
              + " would begin without its state");
    }
    return answers;
  }

  /** Log what a process writes until it ends; a line begins with its level, or is an answer. */
  static void log(Process process, List<String> answers) {
    try (BufferedReader lines =
        new BufferedReader(
            new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        if (line.startsWith(ANSWER)) {
          answers.add(line.substring(ANSWER.length()));
        } else {
          logLine(line);
        }
      }
    } catch (IOException error) {
      LOG.debug("ckpt: the output of the side process ended", error);
    }
  }

  private static void logLine(String line) {
    int space = line.indexOf(' ');
    String level = space < 0 ? "" : line.substring(0, space).toUpperCase(Locale.ROOT);
    String text = line.substring(space + 1);
    switch (level) {
      case "CRITICAL", "ERROR" -> LOG.error("ckpt: {}", text);
      case "WARNING" -> LOG.warn("ckpt: {}", text);
      case "INFO" -> LOG.info("ckpt: {}", text);
      default -> LOG.info("ckpt: {}", line);
    }
  }

  private String settingsLine() {
    Map<String, String> told = new HashMap<>(settings.confs());
    told.put("jar", PythonEnvironment.ownJar());
    told.put("app", settings.app());
    return Pickles.json(told) + "\n";
  }
}

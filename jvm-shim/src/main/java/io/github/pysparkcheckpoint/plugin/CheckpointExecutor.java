package io.github.pysparkcheckpoint.plugin;

import io.github.pysparkcheckpoint.python.PythonEnvironment;
import java.io.File;
import java.io.Serializable;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkFiles;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.python.PythonUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The plugin on an executor: it looks once whether the Python there has what uploads need, and
 * tells the driver what is missing. In the background; an executor never waits for it, nor fails
 * for it.
 */
public final class CheckpointExecutor implements ExecutorPlugin {

  /** What the driver tells executors: the Python that tasks of the side process run with. */
  static final String PYTHON = "python";

  private static final Logger LOG = LoggerFactory.getLogger(CheckpointExecutor.class);
  private volatile Thread prober;

  /**
   * What an executor tells the driver of its Python, if something is wrong with it.
   *
   * @param host where the executor runs
   * @param problem what is wrong, and how to mend it; the same text on every host that lacks the
   *     same
   */
  record PythonFinding(String host, String problem) implements Serializable {
    private static final long serialVersionUID = 1L;
  }

  /** Called by the plugin. */
  public CheckpointExecutor() {}

  @Override
  public void init(PluginContext plugin, Map<String, String> told) {
    String python = told.get(PYTHON);
    if (python == null) {
      return;
    }
    Thread thread = new Thread(() -> look(plugin, python), "ckpt-python-probe");
    thread.setDaemon(true);
    thread.start();
    prober = thread;
  }

  @Override
  public void shutdown() {
    Thread thread = prober;
    if (thread != null) {
      thread.interrupt();
    }
  }

  /** Catches everything: an exception that leaves a thread of an executor ends that executor. */
  private static void look(PluginContext plugin, String python) {
    try {
      String problem = find(plugin.conf(), python);
      if (problem != null && !Thread.currentThread().isInterrupted()) {
        LOG.warn("{}", problem);
        plugin.send(
            new PythonFinding(SparkEnv.get().blockManager().blockManagerId().host(), problem));
      }
    } catch (Throwable error) {
      LOG.info("ckpt: the Python of this executor could not be looked at", error);
    }
  }

  /** What is wrong with the Python here; null if nothing is. */
  private static String find(SparkConf conf, String python) {
    try {
      String url = conf.get(PluginSettings.PREFIX + "url", "");
      PythonEnvironment.forPlugin("ckpt, on executors", python, path(conf), url);
      return null;
    } catch (IllegalStateException problem) {
      return problem.getMessage();
    }
  }

  /** The Python path of a worker: Spark's own, and what {@code --py-files} has brought. */
  private static String path(SparkConf conf) {
    StringJoiner path = new StringJoiner(File.pathSeparator);
    path.add(PythonUtils.sparkPythonPath());
    for (String file : conf.get("spark.submit.pyFiles", "").split(",")) {
      if (!file.isBlank()) {
        path.add(SparkFiles.get(new File(file.trim()).getName()));
      }
    }
    return path.toString();
  }
}

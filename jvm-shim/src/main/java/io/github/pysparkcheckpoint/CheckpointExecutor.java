package io.github.pysparkcheckpoint;

import java.io.File;
import java.io.IOException;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkFiles;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.python.PythonUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The plugin on an executor: it looks once whether the Python there has what uploads need, and tells
 * the driver what is missing. In the background; an executor never waits for it, nor fails for it.
 */
final class CheckpointExecutor implements ExecutorPlugin {

    /** What the driver tells executors: the Python that tasks of the side process run with. */
    static final String PYTHON = "python";

    private static final Logger LOG = LoggerFactory.getLogger(CheckpointExecutor.class);
    private volatile Thread prober;

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

    private static void look(PluginContext plugin, String python) {
        SparkConf conf = plugin.conf();
        try {
            PythonEnvironment.forPlugin(
                    "ckpt, on executors", python, path(conf), conf.get(PluginSettings.PREFIX + "url", ""));
        } catch (IllegalStateException problem) {
            if (!Thread.currentThread().isInterrupted()) {
                tell(plugin, new PythonFinding(plugin.hostname(), problem.getMessage()));
            }
        } catch (RuntimeException error) {
            LOG.info("ckpt: the Python of this executor could not be looked at", error);
        }
    }

    private static void tell(PluginContext plugin, PythonFinding finding) {
        LOG.warn("{}", finding.problem());
        try {
            plugin.send(finding);
        } catch (IOException | RuntimeException error) {
            LOG.warn("ckpt: the driver could not be told of it", error);
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

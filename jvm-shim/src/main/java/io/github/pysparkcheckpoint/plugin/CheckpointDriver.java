package io.github.pysparkcheckpoint.plugin;

import io.github.pysparkcheckpoint.filemanager.FileManagers;
import io.github.pysparkcheckpoint.python.PythonModules;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The plugin on the driver.
 *
 * <p>{@code init} runs before the application's code, inside the constructor of the SparkContext:
 * it sets the file manager and the listener, and restores what is missing, by Python without a
 * Spark job. {@code registerMetrics} starts the side process, in the background. {@code shutdown}
 * gives it a few seconds for the last checkpoints. Nothing but a restore that fails stops the
 * application.
 */
public final class CheckpointDriver implements DriverPlugin {

  private static final Logger LOG = LoggerFactory.getLogger(CheckpointDriver.class);
  static final String FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass";
  private static final String LISTENERS = "spark.sql.streaming.streamingQueryListeners";

  private final String fileManager;
  private PluginSettings settings;
  private SparkContext context;
  private SideProcess side;
  private final Set<String> said = ConcurrentHashMap.newKeySet();

  /**
   * Made by the plugin.
   *
   * @param fileManager the class that writes checkpoint files, unless the application names another
   */
  public CheckpointDriver(String fileManager) {
    this.fileManager = fileManager;
  }

  @Override
  public Map<String, String> init(SparkContext context, PluginContext plugin) {
    this.context = context;
    SparkConf conf = context.conf();
    try {
      settings = PluginSettings.take(conf);
    } catch (IllegalArgumentException error) {
      if (PluginSettings.mustHold(conf)) {
        throw error;
      }
      LOG.error("ckpt: {}. The application runs on, without the plugin", error.getMessage());
      return Map.of();
    }
    if (settings.setsFileManager()) {
      conf.setIfMissing(FILE_MANAGER, fileManager);
    }
    if (settings.url().isEmpty()) {
      checkSettingsWithoutUrl();
      return Map.of();
    }
    if (settings.holds() && !fileManager.equals(conf.get(FILE_MANAGER, ""))) {
      throw new IllegalStateException(
          "ckpt: spark.ckpt.durability=batch needs our file manager, which holds the plan of a batch;"
              + " leave "
              + FILE_MANAGER
              + " and spark.ckpt.fileManager out, or set durability to async");
    }
    String others = conf.get(LISTENERS, "").trim();
    String ours = QueryEvents.class.getName();
    conf.set(LISTENERS, others.isEmpty() ? ours : others + "," + ours);
    if (settings.restores()) {
      restore();
    }
    return forExecutors(conf);
  }

  /** Where executors have a Python of their own, they are to look at it. */
  private Map<String, String> forExecutors(SparkConf conf) {
    String python = PluginPython.onExecutors(conf);
    boolean isOne = context.isLocal() && python.equals(PluginPython.onDriver(conf));
    return isOne ? Map.of() : Map.of(CheckpointExecutor.PYTHON, python);
  }

  /**
   * An executor found something wrong with its Python: it is said once, however many find the same.
   */
  @Override
  public Object receive(Object message) {
    if (message instanceof CheckpointExecutor.PythonFinding finding
        && said.add(finding.problem())) {
      LOG.warn(
          "{} (found on {}). The application runs on; state of more than 32 MB, which executors"
              + " upload themselves, is not checkpointed until that is mended",
          finding.problem(),
          finding.host());
    }
    return null;
  }

  @Override
  public void registerMetrics(String appId, PluginContext plugin) {
    if (settings == null || settings.url().isEmpty()) {
      return;
    }
    CheckpointMetrics metrics = new CheckpointMetrics();
    SparkEnv.get().metricsSystem().registerSource(metrics);
    side = new SideProcess(context, settings, new SideDoor(context, settings, metrics));
    side.start();
  }

  @Override
  public void shutdown() {
    if (side != null) {
      side.stop();
    }
  }

  private void restore() {
    PluginPython python = PluginPython.of(context.conf(), settings);
    LOG.info("ckpt: looking for what is to be restored from {}", settings.url());
    for (String location : python.run(PythonModules.AUTO_RESTORE, settings.restoreSeconds())) {
      checkIsThere(new Path(location));
    }
  }

  /** A location that only Hadoop reaches cannot be restored without Spark; it must be there. */
  private void checkIsThere(Path location) {
    try {
      FileSystem files = location.getFileSystem(context.hadoopConfiguration());
      if (!files.exists(new Path(location, "metadata"))) {
        throw new IllegalStateException(
            "ckpt: the checkpoint location "
                + location
                + " is not there, and before Spark runs it cannot be restored. Restore it in a"
                + " session: pyspark_checkpoint.restore(..., spark=spark); or start without"
                + " spark.ckpt.restore");
      }
    } catch (IOException error) {
      throw new UncheckedIOException("ckpt: cannot tell whether " + location + " is there", error);
    }
  }

  private void checkSettingsWithoutUrl() {
    if (settings.holds()) {
      throw new IllegalStateException(
          "ckpt: spark.ckpt.durability=batch, but spark.ckpt.url is not set, so that nothing would be"
              + " durable. Set it, for example to s3://bucket/checkpoints");
    }
    if (settings.restores()) {
      throw new IllegalStateException(
          "ckpt: spark.ckpt.restore="
              + settings.restore()
              + ", but spark.ckpt.url is not set, so that it is not known from where. The"
              + " application is not started, because it would begin without its state");
    }
    List<String> alone = FileManagers.confNames();
    List<String> names =
        settings.confs().keySet().stream()
            .filter(name -> name.startsWith(PluginSettings.PREFIX))
            .filter(name -> !alone.contains(name))
            .collect(Collectors.toList());
    if (!names.isEmpty()) {
      LOG.warn(
          "ckpt: spark.ckpt.url is not set, so that no query is checkpointed, but {} is. Without it"
              + " there are only {}",
          names,
          alone);
    }
  }
}

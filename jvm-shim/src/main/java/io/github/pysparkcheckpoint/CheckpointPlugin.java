package io.github.pysparkcheckpoint;

import io.github.pysparkcheckpoint.plugin.CheckpointDriver;
import io.github.pysparkcheckpoint.plugin.CheckpointExecutor;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * {@code spark.plugins=io.github.pysparkcheckpoint.CheckpointPlugin}: checkpoints of every
 * streaming query of an application, by configuration alone.
 *
 * <p>Almost all of it happens on the driver; see {@link CheckpointDriver}. Executors need the jar,
 * which Spark brings them, and look at their own Python once; see {@link CheckpointExecutor}.
 */
public final class CheckpointPlugin implements SparkPlugin {

  /** Called by Spark. */
  public CheckpointPlugin() {}

  @Override
  public DriverPlugin driverPlugin() {
    return new CheckpointDriver(ObjectStoreCheckpointFileManager.class.getName());
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new CheckpointExecutor();
  }
}

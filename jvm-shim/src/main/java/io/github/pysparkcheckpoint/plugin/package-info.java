/**
 * The plugin. Internal: {@link io.github.pysparkcheckpoint.plugin.CheckpointDriver} and {@link
 * io.github.pysparkcheckpoint.plugin.CheckpointExecutor} are made by {@link
 * io.github.pysparkcheckpoint.CheckpointPlugin}, {@link
 * io.github.pysparkcheckpoint.plugin.QueryEvents} by Spark, and {@link
 * io.github.pysparkcheckpoint.plugin.SideDoor} is called by the Python package.
 *
 * <p>{@code CheckpointDriver} sets the file manager and the listener, restores what is missing and
 * starts the {@code SideProcess}; {@code PluginSettings} reads the confs and takes the secrets out
 * of them; {@code PluginPython} runs modules of the Python package; {@code QueryEvents} is Spark's
 * listener, and {@code SideDoor} what passes between it and Python; {@code CheckpointMetrics} is
 * the source of metrics. {@code CheckpointExecutor} looks at an executor's Python, once, and tells
 * the driver what is wrong with it.
 *
 * <p>What holds: nothing but a restore that was asked for and failed stops an application; Spark's
 * threads wait for Python at the start of a query only, and for a limited time; no process outlives
 * the driver.
 */
package io.github.pysparkcheckpoint.plugin;

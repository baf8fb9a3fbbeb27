/**
 * What pyspark-checkpoint needs inside Spark's JVM.
 *
 * <h2>The checkpoint file manager</h2>
 *
 * <p>Spark writes its own logs (offsets, commits, metadata) and state files through a {@code
 * CheckpointFileManager}. {@link io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager} is
 * one for object stores, where each file is one conditional PUT, and for local disks, where each is
 * one synced file and one link. It is set by one conf, {@code
 * spark.sql.streaming.checkpointFileManagerClass}, and needs nothing else of this project.
 *
 * <p>What holds:
 *
 * <ol>
 *   <li>Nothing is visible before {@code close()}. A stream that is cancelled, or whose process
 *       dies, leaves nothing behind; on a local disk a killed process leaves a file with a hidden
 *       name.
 *   <li>A create without overwrite is one PUT with {@code If-None-Match: *}, or one link. Of any
 *       number of creators, in any number of JVMs, exactly one succeeds; the others get {@code
 *       FileAlreadyExistsException}, which Spark reports as a concurrent query.
 *   <li>A write that failed is an exception, always. A write whose answer was lost is settled by a
 *       nonce in the object's metadata: ours is success, another one's is a lost race. Equal
 *       content proves nothing, because two drivers write the same offsets.
 *   <li>A store that does not honour the condition is found by a probe, once per JVM and bucket,
 *       before the first create, and refused unless the user accepts to run without the fence.
 *   <li>Memory is bounded over all streams of the JVM: what exceeds the bound waits on disk.
 * </ol>
 *
 * <p>Where each part lives: {@code ObjectStoreCheckpointFileManager} chooses by file system; {@code
 * ConditionalFileManager} is the manager for a connector with conditional create, {@code
 * LocalFileManager} that for a local disk; {@code AtomicUpload} is the stream that they hand out, a
 * {@code Draft} holds its bytes: {@code Spool} those of an upload, {@code LocalDraft} those of a
 * file, which gets its {@code LocalPermissions}; {@code MissingLinks} knows the disks that have
 * none; {@code MadeDirectories} are those that a store without directories would not know; {@code
 * ConditionalWriter} does the PUT and settles its outcome; {@code ConditionProbe} asks the server;
 * {@code PendingDeletes} batches deletes; {@code SparkFileNames} is the pure part: which names are
 * surely files; {@code FileManagerSettings} reads the confs.
 *
 * <h2>The data source</h2>
 *
 * <p>{@link io.github.pysparkcheckpoint.CheckpointSink} is {@code format("ckpt-sink")}: Spark's own
 * wrapper of a Python data source, plus update mode, plus the distribution of a keyed table, plus
 * what only the driver's JVM knows of a query. It is the only class of the data source that touches
 * Spark's private API. {@code PythonEnvironment} finds the Python and what it lacks, {@code
 * Pickles} writes the two pickles that Python gets from here, {@code SinkOptions} reads and adds
 * options, {@code HadoopConfs} finds how the session reaches file systems, and {@code
 * CheckpointLogs} reads Spark's offset log.
 *
 * <h2>The plugin</h2>
 *
 * <p>{@link io.github.pysparkcheckpoint.CheckpointPlugin} is what {@code spark.plugins} names.
 * {@code CheckpointDriver} sets the file manager and the listener, restores what is missing and
 * starts the {@code SideProcess}; {@code PluginSettings} reads the confs and takes the secrets out
 * of them; {@code PluginPython} runs modules of the Python package; {@code QueryEvents} is Spark's
 * listener, and {@code SideDoor} what passes between it and Python; {@code CheckpointMetrics} is
 * the source of metrics. {@code CheckpointExecutor} looks at an executor's Python, once, and sends
 * a {@code PythonFinding}.
 *
 * <p>What holds: nothing but a restore that was asked for and failed stops an application; Spark's
 * threads wait for Python at the start of a query only, and for a limited time; no process outlives
 * the driver.
 *
 * <p>Everything but the three class names is private to this jar, also where Spark or Python need
 * it public.
 */
package io.github.pysparkcheckpoint;

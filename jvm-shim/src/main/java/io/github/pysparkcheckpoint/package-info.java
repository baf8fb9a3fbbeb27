/**
 * What pyspark-checkpoint needs inside Spark's JVM: three classes that users name.
 *
 * <ul>
 *   <li>{@link io.github.pysparkcheckpoint.ObjectStoreCheckpointFileManager}, in {@code
 *       spark.sql.streaming.checkpointFileManagerClass}: Spark's checkpoint files, one conditional
 *       request or one link each. See {@link io.github.pysparkcheckpoint.filemanager}.
 *   <li>{@link io.github.pysparkcheckpoint.CheckpointSink}, as {@code format("ckpt-sink")}: a table
 *       whose epochs are checkpoints. See {@link io.github.pysparkcheckpoint.source}.
 *   <li>{@link io.github.pysparkcheckpoint.CheckpointPlugin}, in {@code spark.plugins}: checkpoints
 *       of every query of an application. See {@link io.github.pysparkcheckpoint.plugin}.
 * </ul>
 *
 * <p>Their names are the public API of this jar, and stay. The packages below are internal: they
 * may change with every release, also where a class is public because Spark, Python or another
 * package of this jar calls it. Each of them says which classes those are. They depend on each
 * other in one direction: {@code plugin} and {@code source} use {@link
 * io.github.pysparkcheckpoint.python}, {@code plugin} uses {@code filemanager} for the names of its
 * settings, and none of them uses this package.
 */
package io.github.pysparkcheckpoint;

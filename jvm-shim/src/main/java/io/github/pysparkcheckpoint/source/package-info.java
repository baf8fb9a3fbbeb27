/**
 * The data source {@code ckpt-sink}. Internal: only {@link
 * io.github.pysparkcheckpoint.source.SinkDataSource} is used from outside.
 *
 * <p>It is Spark's own wrapper of a Python data source, plus update mode, plus the distribution of
 * a keyed table, plus what only the driver's JVM knows of a query. {@code SinkOptions} reads and
 * adds options, {@code KeyedWrite} brings rows to the partition of their key, {@code CountedWrite}
 * tells whether every task ran once, {@code InlineWrite} and {@code InlineRead} spare small tasks
 * and small reads their Python, {@code HadoopConfs} finds how the session reaches file systems, and
 * {@code CheckpointLogs} reads Spark's offset log.
 */
package io.github.pysparkcheckpoint.source;

package io.github.pysparkcheckpoint;

import io.github.pysparkcheckpoint.source.SinkDataSource;

/**
 * {@code format("ckpt-sink")}: the table whose epochs are checkpoints.
 *
 * <p>This is the name under which Spark finds it; what it does is in {@link SinkDataSource}.
 */
public final class CheckpointSink extends SinkDataSource {

  /** Called by Spark for each read and each write. */
  public CheckpointSink() {}
}

package io.github.pysparkcheckpoint;

import java.io.IOException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * The stream of a file that appears whole, once, when it is closed.
 *
 * <p>Until then the bytes are in a {@link Spool} and no request is made. The first call of
 * {@code close} or {@code cancel} decides; later ones do nothing, also when the first one failed,
 * because Spark cancels a stream whose closing threw. A stream of which a write has failed is never
 * published: Java's own streams close what they wrap even if they could not flush it.
 */
final class AtomicUpload extends CancellableFSDataOutputStream {

  /** What makes the file: called at most once. */
  interface Publication {
    void publish(Spool content) throws IOException;
  }

  private final Spool content;
  private final Publication publication;
  private boolean decided;

  AtomicUpload(Spool content, Publication publication) {
    super(content);
    this.content = content;
    this.publication = publication;
  }

  @Override
  public synchronized void close() throws IOException {
    if (decided) {
      return;
    }
    decided = true;
    try {
      content.requireWhole();
      publication.publish(content);
    } finally {
      content.release();
    }
  }

  @Override
  public synchronized void cancel() {
    decided = true;
    content.release();
  }
}

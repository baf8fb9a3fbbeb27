package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * The stream of a file that appears whole, once, when it is closed.
 *
 * <p>Until then the bytes are in a {@link Draft}. The first call of {@code close} or {@code cancel}
 * decides; later ones do nothing, also when the first one failed, because Spark cancels a stream
 * whose closing threw. A stream of which a write has failed is never published: Java's own streams
 * close what they wrap even if they could not flush it.
 */
final class AtomicUpload<D extends Draft> extends CancellableFSDataOutputStream {

  /** What makes the file: called at most once. */
  interface Publication<D> {
    void publish(D content) throws IOException;
  }

  private final D content;
  private final Publication<D> publication;
  private boolean decided;

  AtomicUpload(D content, Publication<D> publication) {
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

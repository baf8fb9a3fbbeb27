package io.github.pysparkcheckpoint.filemanager;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * An entry of the offset log or of the commit log, on its way past the {@link LogGate}.
 *
 * <p>The bytes are held back until the gate has let them pass. As with every stream of a file that
 * appears whole, the first call of {@code close} or {@code cancel} decides.
 */
final class GatedLog extends CancellableFSDataOutputStream {

  private static final Pattern ENTRY = Pattern.compile("\\d{1,18}");

  private final ByteArrayOutputStream bytes;
  private final CancellableFSDataOutputStream target;
  private final LogGate gate;
  private final Path entry;
  private boolean decided;

  private GatedLog(
      ByteArrayOutputStream bytes, CancellableFSDataOutputStream target, LogGate gate, Path entry) {
    super(bytes);
    this.bytes = bytes;
    this.target = target;
    this.gate = gate;
    this.entry = entry;
  }

  /** The stream itself, unless it is of such an entry and there is a gate. */
  static CancellableFSDataOutputStream of(
      CancellableFSDataOutputStream target, LogGate gate, Path root, Path entry) {
    boolean isLog = root.getName().equals("offsets") || root.getName().equals("commits");
    if (gate == null || !isLog || root.getParent() == null) {
      return target;
    }
    boolean isEntry = ENTRY.matcher(entry.getName()).matches();
    return isEntry && root.getName().equals(entry.getParent().getName())
        ? new GatedLog(new ByteArrayOutputStream(), target, gate, new Path(root, entry.getName()))
        : target;
  }

  @Override
  public synchronized void close() throws IOException {
    if (decided) {
      return;
    }
    decided = true;
    Path log = entry.getParent();
    boolean isPlan = log.getName().equals("offsets");
    try {
      if (isPlan) {
        gate.beforeOffsets(log.getParent(), Long.parseLong(entry.getName()), bytes.toByteArray());
      }
      bytes.writeTo(target);
    } catch (IOException | RuntimeException failure) {
      target.cancel();
      throw failure;
    }
    target.close();
    if (!isPlan) {
      gate.afterCommit(log.getParent());
    }
  }

  @Override
  public synchronized void cancel() {
    decided = true;
    target.cancel();
  }
}

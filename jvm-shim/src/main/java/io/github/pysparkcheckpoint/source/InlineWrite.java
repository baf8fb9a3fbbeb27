package io.github.pysparkcheckpoint.source;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Iterator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.StructType;

/**
 * Tasks with few rows run no Python: their rows travel to the driver in their commit messages.
 *
 * <p>A Python task costs some 50 ms of CPU, whatever it does. The driver does for all small tasks
 * together what each of them would have done, in one process. A task with more rows, or one that
 * Python's plan wants in Python, is Spark's own task from its first row on.
 */
final class InlineWrite {

  private InlineWrite() {}

  /**
   * What Python's plan allows: bytes a task, and the tasks that must run Python whatever they have.
   */
  record Plan(int taskBytes, BitSet inPython) implements java.io.Serializable {

    private static final Pattern MARK = Pattern.compile("ckpt-inline:([0-9]{1,9}):([0-9,]*);");

    /** No task without Python. */
    static final Plan NONE = new Plan(0, new BitSet());

    /**
     * Read the plan from the pickled writer that Python gave Spark for its tasks. It is the first
     * text in there, written by {@code InlinePlan.mark} for this.
     */
    static Plan parse(byte[] writer) {
      Matcher found = MARK.matcher(new String(writer, StandardCharsets.ISO_8859_1));
      if (!found.find()) {
        return NONE;
      }
      BitSet inPython = new BitSet();
      for (String task : found.group(2).split(",")) {
        if (!task.isEmpty()) {
          inPython.set(Integer.parseInt(task));
        }
      }
      return new Plan(Integer.parseInt(found.group(1)), inPython);
    }

    /**
     * The plan for results of which the driver takes so many bytes in all, 0 being any number: rows
     * have a quarter of them, since Arrow may take more than Spark's own form.
     */
    Plan below(long mostResults, int tasks) {
      long most = mostResults == 0 ? taskBytes : mostResults / 4 / Math.max(1, tasks);
      return new Plan((int) Math.min(taskBytes, most), inPython);
    }

    boolean allows(int partition) {
      return taskBytes > 0 && !inPython.get(partition);
    }
  }

  /** Makes writers that run Python only if they must. */
  static final class Factory implements StreamingDataWriterFactory {
    private static final long serialVersionUID = 1L;
    private final StreamingDataWriterFactory python;
    private final StructType schema;
    private final Plan plan;

    Factory(StreamingDataWriterFactory python, StructType schema, Plan plan) {
      this.python = python;
      this.schema = schema;
      this.plan = plan;
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partitionId, long taskId, long epochId) {
      DataWriter<InternalRow> writer = python.createWriter(partitionId, taskId, epochId);
      return plan.allows(partitionId)
          ? new Writer(writer, schema, plan.taskBytes(), partitionId)
          : writer;
    }
  }

  /** Keeps rows while they are few; Spark's own writer does nothing before it is given rows. */
  private static final class Writer implements DataWriter<InternalRow> {
    private final DataWriter<InternalRow> python;
    private final StructType schema;
    private final int taskBytes;
    private final int partition;
    private final List<InternalRow> kept = new ArrayList<>();
    private boolean inPython;

    Writer(DataWriter<InternalRow> python, StructType schema, int taskBytes, int partition) {
      this.python = python;
      this.schema = schema;
      this.taskBytes = taskBytes;
      this.partition = partition;
    }

    @Override
    public void write(InternalRow row) throws IOException {
      inPython = true;
      python.write(row);
    }

    @Override
    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      long bytes = 0;
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        // What is not in Spark's binary form does not say how large it is.
        bytes += row instanceof UnsafeRow known ? known.getSizeInBytes() : taskBytes + 1L;
        kept.add(row.copy());
        if (bytes > taskBytes) {
          inPython = true;
          python.writeAll(new Joined(kept.iterator(), rows));
          kept.clear();
          return;
        }
      }
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      return inPython ? python.commit() : InlineRows.of(partition, schema, kept);
    }

    @Override
    public void abort() throws IOException {
      python.abort();
    }

    @Override
    public void close() throws IOException {
      python.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return inPython ? python.currentMetricsValues() : new CustomTaskMetric[0];
    }
  }

  /** The rows that were kept, each given away once, and then those that are still to come. */
  private record Joined(Iterator<InternalRow> kept, Iterator<InternalRow> rest)
      implements Iterator<InternalRow> {

    @Override
    public boolean hasNext() {
      return kept.hasNext() || rest.hasNext();
    }

    @Override
    public InternalRow next() {
      return kept.hasNext() ? kept.next() : rest.next();
    }
  }
}

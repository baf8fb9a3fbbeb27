package io.github.pysparkcheckpoint.source;

import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;

/**
 * Finds out whether every task of a batch ran once.
 *
 * <p>Python's task context counts the attempts of a task alone, and that count begins anew when the
 * task's stage runs again. So each task's message goes to the driver together with both counts.
 */
final class CountedWrite {

  private CountedWrite() {}

  /** Whether no task had a second attempt: no retry, no speculation, no stage that ran again. */
  static boolean ranOnce(WriterCommitMessage[] messages) {
    boolean speculates = SparkEnv.get().conf().getBoolean("spark.speculation", false);
    return !speculates && Arrays.stream(messages).allMatch(m -> m instanceof Counted c && c.first);
  }

  /** The messages as the tasks' own writers gave them; null where a task has failed. */
  static WriterCommitMessage[] unwrap(WriterCommitMessage[] messages) {
    return Arrays.stream(messages)
        .map(m -> m instanceof Counted c ? c.message : m)
        .toArray(WriterCommitMessage[]::new);
  }

  /** A task's message, and whether it comes from the first attempt of the task and of its stage. */
  private static final class Counted implements WriterCommitMessage {
    private static final long serialVersionUID = 1L;
    private final WriterCommitMessage message;
    private final boolean first;

    Counted(WriterCommitMessage message, boolean first) {
      this.message = message;
      this.first = first;
    }
  }

  /** Makes writers that count. */
  static final class Factory implements StreamingDataWriterFactory {
    private static final long serialVersionUID = 1L;
    private final StreamingDataWriterFactory factory;

    Factory(StreamingDataWriterFactory factory) {
      this.factory = factory;
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partitionId, long taskId, long epochId) {
      return new Writer(factory.createWriter(partitionId, taskId, epochId));
    }
  }

  /** Writes as the writer that it holds does. */
  private static final class Writer implements DataWriter<InternalRow> {
    private final DataWriter<InternalRow> writer;

    Writer(DataWriter<InternalRow> writer) {
      this.writer = writer;
    }

    @Override
    public void write(InternalRow row) throws IOException {
      writer.write(row);
    }

    @Override
    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      writer.writeAll(rows);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      TaskContext task = TaskContext.get();
      boolean first = task.attemptNumber() == 0 && task.stageAttemptNumber() == 0;
      return new Counted(writer.commit(), first);
    }

    @Override
    public void abort() throws IOException {
      writer.abort();
    }

    @Override
    public void close() throws IOException {
      writer.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return writer.currentMetricsValues();
    }
  }
}

package io.github.pysparkcheckpoint.source;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.List;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * The rows of a task that ran no Python, on their way to the driver: a stream of Arrow batches,
 * empty without rows.
 *
 * <p>They are made by Spark's own writer, with the settings that it takes for Python's tasks, so
 * that Python sees the same batches wherever it runs.
 */
final class InlineRows implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;
  final int partition;
  final byte[] data;

  private InlineRows(int partition, byte[] data) {
    this.partition = partition;
    this.data = data;
  }

  static InlineRows of(int partition, StructType schema, List<InternalRow> rows)
      throws IOException {
    return new InlineRows(partition, rows.isEmpty() ? new byte[0] : encoded(schema, rows));
  }

  private static byte[] encoded(StructType schema, List<InternalRow> rows) throws IOException {
    SQLConf conf = SQLConf.get();
    int most = conf.arrowMaxRecordsPerBatch();
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    ArrowWriter writer =
        ArrowWriter.create(schema, conf.sessionLocalTimeZone(), true, conf.arrowUseLargeVarTypes());
    try (VectorSchemaRoot root = writer.root();
        ArrowStreamWriter stream = new ArrowStreamWriter(root, null, Channels.newChannel(out))) {
      int count = 0;
      for (InternalRow row : rows) {
        writer.write(row);
        count++;
        if (count == most) {
          writer.finish();
          stream.writeBatch();
          writer.reset();
          count = 0;
        }
      }
      if (count > 0) {
        writer.finish();
        stream.writeBatch();
      }
      stream.end();
    }
    return out.toByteArray();
  }
}

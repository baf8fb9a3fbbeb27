package io.github.pysparkcheckpoint.source;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Map;

/**
 * Reads of few rows run no Python on executors: the process that plans them sends the rows along.
 *
 * <p>Everything else is Spark's own scan of a Python source, which also reads what is larger.
 */
final class InlineRead implements Scan, SupportsMetadata {
  /** What the messages of all tasks of a read have of its rows, at most. */
  private static final long MOST_BYTES_IN_MESSAGES = 512 * 1024;

  private final PythonScan scan;

  InlineRead(PythonScan scan) {
    this.scan = scan;
  }

  @Override
  public StructType readSchema() {
    return scan.readSchema();
  }

  @Override
  public String description() {
    return scan.description();
  }

  @Override
  public Map<String, String> getMetaData() {
    return scan.getMetaData();
  }

  @Override
  public Batch toBatch() {
    return new PlannedBatch(scan.toBatch(), readSchema());
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return scan.toMicroBatchStream(checkpointLocation);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return scan.supportedCustomMetrics();
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.UNSUPPORTED;
  }

  /** Asks Python once; its partitions are either all for Python's tasks or all have their rows. */
  private static final class PlannedBatch implements Batch {
    private final Batch python;
    private final StructType schema;
    private InputPartition[] partitions;

    PlannedBatch(Batch python, StructType schema) {
      this.python = python;
      this.schema = schema;
    }

    @Override
    public synchronized InputPartition[] planInputPartitions() {
      if (partitions == null) {
        InputPartition[] planned = python.planInputPartitions();
        Rows[] rows = Arrays.stream(planned).map(Rows::find).toArray(Rows[]::new);
        partitions = Arrays.stream(rows).allMatch(found -> found != null) ? sent(rows) : planned;
      }
      return partitions;
    }

    /**
     * A message has the rows of a small read itself. Those of a larger one are fetched by the
     * tasks: one task of Spark may be given the partitions of many reads, as after a union and a
     * coalesce, and fails if its message has more than {@code spark.rpc.message.maxSize}.
     */
    private static Rows[] sent(Rows[] rows) {
      if (Arrays.stream(rows).mapToLong(Rows::size).sum() <= MOST_BYTES_IN_MESSAGES) {
        return rows;
      }
      JavaSparkContext context = JavaSparkContext.fromSparkContext(SparkContext.getOrCreate());
      return Arrays.stream(rows).map(one -> one.apart(context)).toArray(Rows[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return planInputPartitions() instanceof Rows[]
          ? new Factory(schema)
          : python.createReaderFactory();
    }
  }

  /** The rows of a task: a stream of Arrow batches, here or to be fetched where the task runs. */
  record Rows(byte[] here, Broadcast<byte[]> elsewhere) implements InputPartition {

    /** How the pickle of a partition begins that has its rows: {@code InlineSplit} in Python. */
    private static final Pattern HEAD =
        Pattern.compile(
            "\\A.{0,16}pyspark_checkpoint[.]sink[.]table_reader.{0,4}InlineSplit"
                + ".{0,64}?ckpt-rows:([0-9]{1,9});",
            Pattern.DOTALL);

    private static final int HEAD_BYTES = 192;

    /** The rows in what Python has planned, null if a task in Python must read them. */
    static Rows find(InputPartition planned) {
      return planned instanceof PythonInputPartition found ? parse(found.pickedPartition()) : null;
    }

    /** The same for the pickle of a partition. */
    static Rows parse(byte[] pickle) {
      int length = Math.min(HEAD_BYTES, pickle.length);
      Matcher head = HEAD.matcher(new String(pickle, 0, length, StandardCharsets.ISO_8859_1));
      if (!head.find()) {
        return null;
      }
      int end = head.end() + Integer.parseInt(head.group(1));
      return end > pickle.length
          ? null
          : new Rows(Arrays.copyOfRange(pickle, head.end(), end), null);
    }

    int size() {
      return here.length;
    }

    /** The same rows, left with the driver until a task asks for them. */
    Rows apart(JavaSparkContext context) {
      return new Rows(new byte[0], context.broadcast(here));
    }

    byte[] stream() {
      return elsewhere == null ? here : elsewhere.value();
    }
  }

  /** Makes readers of rows that came with the plan. */
  private static final class Factory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;
    private final StructType schema;

    Factory(StructType schema) {
      this.schema = schema;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new Reader(((Rows) partition).stream(), schema);
    }
  }

  /** Gives the rows of a stream as Spark's own reader gives those of a task in Python. */
  private static final class Reader implements PartitionReader<InternalRow> {
    private final BufferAllocator allocator;
    private final ArrowStreamReader stream;
    private final UnsafeProjection projection;
    private ColumnarBatch batch;
    private Iterator<InternalRow> rows = Collections.emptyIterator();

    Reader(byte[] data, StructType schema) {
      allocator = ArrowUtils.rootAllocator().newChildAllocator("ckpt-sink", 0, Long.MAX_VALUE);
      stream = new ArrowStreamReader(new ByteArrayInputStream(data), allocator);
      projection = UnsafeProjection.create(schema);
    }

    @Override
    public boolean next() throws IOException {
      while (!rows.hasNext()) {
        if (!stream.loadNextBatch()) {
          return false;
        }
        VectorSchemaRoot root = stream.getVectorSchemaRoot();
        if (batch == null) {
          batch =
              new ColumnarBatch(
                  root.getFieldVectors().stream()
                      .map(ArrowColumnVector::new)
                      .toArray(ColumnVector[]::new));
        }
        batch.setNumRows(root.getRowCount());
        rows = batch.rowIterator();
      }
      return true;
    }

    @Override
    public InternalRow get() {
      return projection.apply(rows.next());
    }

    @Override
    public void close() throws IOException {
      stream.close();
      allocator.close();
    }
  }
}

package io.github.pysparkcheckpoint.source;

import io.github.pysparkcheckpoint.python.Pickles;
import io.github.pysparkcheckpoint.python.PythonEnvironment;
import io.github.pysparkcheckpoint.python.PythonModules;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceWriteInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * {@code format("ckpt-sink")}: Spark's own wrapper of a Python data source, and what it lacks.
 *
 * <p>It adds update mode; it lets Spark bring each row of a keyed table to the partition that owns
 * its key; it tells Python the query, the run, the output mode and the source offsets; and it finds
 * the Python package in this jar, so that {@code --packages} is all that a user types.
 *
 * <p>Of the data source only this class and those of inline tasks and reads touch Spark's private
 * API. They are compiled against the oldest supported Spark and use what is the same in all of
 * them.
 */
public class SinkDataSource extends PythonDataSourceV2 implements DataSourceRegister {

  private static final String NAME = "ckpt-sink";

  /** Where Spark tells the jobs of a batch its number; set before the batch is planned. */
  private static final String BATCH_ID = "streaming.sql.batchId";

  private static final String RESOLUTION =
      "org.apache.spark.sql.catalyst.analysis.ResolveDataSource";
  private static final String LOAD_BATCH = "loadV2Source";

  private Source source;
  private byte[] seen = new byte[0];
  private Metadata layout;
  private boolean begun;

  /** Called by Spark for each read and each write. */
  public SinkDataSource() {
    super.setShortName(NAME);
  }

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public void setShortName(String name) {
    // Spark calls this with what the user typed, which may be this class's name.
  }

  @Override
  public synchronized Source source() {
    if (source == null) {
      source = new Source(PythonChoice.ofDriver(), seen);
    }
    return source;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    Map<String, String> added = new HashMap<>(hadoopConfs());
    added.put("streaming", Boolean.toString(isForStream()));
    CaseInsensitiveStringMap all = SinkOptions.with(options, added);
    StructType schema = super.inferSchema(all);
    seen = getOrCreateDataSourceInPython(NAME, all, Option.empty()).dataSource();
    return schema;
  }

  /**
   * Whether a stream is being resolved. Spark asks for the schema of a table and of a stream in the
   * same way, but a stream of changes has two columns more; only the caller's name tells them
   * apart.
   */
  private static boolean isForStream() {
    return StackWalker.getInstance()
        .walk(
            frames -> {
              List<StackWalker.StackFrame> all = frames.toList();
              return all.stream().anyMatch(f -> f.getClassName().startsWith(RESOLUTION))
                  && all.stream().noneMatch(f -> f.getMethodName().equals(LOAD_BATCH));
            });
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    source();
    return new SinkTable(schema, properties.getOrDefault("path", ""));
  }

  /** Ask Python once how the table is laid out; it also refuses here what it would refuse later. */
  private synchronized Metadata layout(CaseInsensitiveStringMap options, StructType schema) {
    if (layout == null) {
      Map<String, String> question = Map.of("ask", "layout", "schema", schema.json());
      CaseInsensitiveStringMap asked = SinkOptions.with(options, question);
      StructType answer = source().createDataSourceInPython(NAME, asked, Option.empty()).schema();
      layout = answer.fields()[0].metadata();
    }
    return layout;
  }

  private static Map<String, String> hadoopConfs() {
    return HadoopConfs.chosenIn(SparkSession.active().sessionState().newHadoopConf());
  }

  /** The table of a path; its description is how the listener knows the sink. */
  private final class SinkTable extends PythonTable {
    private final String path;

    SinkTable(StructType schema, String path) {
      super(SinkDataSource.this, NAME, schema);
      this.path = absolute(path);
    }

    /**
     * A relative path is meant from where the driver is, also for those who read of it elsewhere.
     */
    private static String absolute(String path) {
      boolean isRelative = !path.isEmpty() && path.indexOf(':') < 0 && !path.startsWith("~");
      return isRelative ? Path.of(path).toAbsolutePath().toString() : path;
    }

    @Override
    public String name() {
      return NAME + " " + path;
    }

    @Override
    public String toString() {
      return name();
    }

    /**
     * A source of its own for each scan. Spark's wrapper keeps what the first scan has planned,
     * also what its filters left out, for all later scans of the same DataFrame.
     */
    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      SinkDataSource own = new SinkDataSource();
      own.source = source().after(seen);
      Map<String, String> added = new HashMap<>(hadoopConfs());
      added.put("scan", "own");
      return new FilteredScan(
          new PythonScanBuilder(own, NAME, schema(), SinkOptions.with(options, added)));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      SparkSession session = SparkSession.active();
      StreamExecution query = activeQuery(session, info.queryId());
      Map<String, String> facts = facts(session, query);
      Map<String, String> added = new HashMap<>(hadoopConfs());
      added.putAll(facts);
      CaseInsensitiveStringMap options = SinkOptions.with(info.options(), added);
      List<String> keys = SinkOptions.keyColumns(options);
      int partitions = 0;
      if (!keys.isEmpty()) {
        partitions = (int) layout(options, info.schema()).getLong("partitions");
        options = SinkOptions.with(options, Map.of("partitions", Integer.toString(partitions)));
      }
      return new SinkBuilder(new RicherWriteInfo(info, options), keys, partitions, query, facts);
    }
  }

  private static StreamExecution activeQuery(SparkSession session, String queryId) {
    return session.sharedState().activeStreamingQueries().get(UUID.fromString(queryId));
  }

  private Map<String, String> facts(SparkSession session, StreamExecution query) {
    Map<String, String> facts = new HashMap<>();
    facts.put("spark_version", session.version());
    facts.put("app_name", session.sparkContext().appName());
    facts.put("shuffle_partitions", session.conf().get("spark.sql.shuffle.partitions"));
    if (query != null) {
      facts.put("query_id", query.id().toString());
      facts.put("run_id", query.runId().toString());
      facts.put("query_name", query.name() == null ? "" : query.name());
      facts.put("output_mode", query.outputMode().toString().toLowerCase(Locale.ROOT));
      facts.put("checkpoint_location", query.resolvedCheckpointRoot());
      facts.put("begun", Boolean.toString(begun));
    }
    return facts;
  }

  /** Builds the write; being of this interface is what allows update mode. */
  private final class SinkBuilder extends PythonWriteBuilder
      implements SupportsStreamingUpdateAsAppend {
    private final RicherWriteInfo info;
    private final List<String> keys;
    private final int partitions;
    private final StreamExecution query;
    private final Map<String, String> facts;

    SinkBuilder(
        RicherWriteInfo info,
        List<String> keys,
        int partitions,
        StreamExecution query,
        Map<String, String> facts) {
      super(SinkDataSource.this, NAME, info);
      this.info = info;
      this.keys = keys;
      this.partitions = partitions;
      this.query = query;
      this.facts = facts;
    }

    @Override
    public Write build() {
      return new KeyedWrite(
          super.build(),
          keys,
          partitions,
          NAME,
          write -> new SinkStreamingWrite(write, info, query, facts));
    }
  }

  /** Adds to the messages of the tasks one with what only the driver knows. */
  private final class SinkStreamingWrite implements StreamingWrite {
    private final StreamingWrite write;
    private final RicherWriteInfo info;
    private final StreamExecution query;
    private final Map<String, String> facts;
    private byte[] planned = new byte[0];

    SinkStreamingWrite(
        StreamingWrite write,
        RicherWriteInfo info,
        StreamExecution query,
        Map<String, String> facts) {
      this.write = write;
      this.info = info;
      this.query = query;
      this.facts = facts;
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
      String batch = SparkSession.active().sparkContext().getLocalProperty(BATCH_ID);
      info.add(Map.of("tasks", Integer.toString(physical.numPartitions())));
      info.add(Map.of("batch", batch == null ? "" : batch));
      StreamingDataWriterFactory python = write.createStreamingWriterFactory(physical);
      planned = source().takePlanned();
      long mostResults = SparkEnv.get().conf().getSizeAsBytes("spark.driver.maxResultSize", "1g");
      InlineWrite.Plan plan =
          InlineWrite.Plan.parse(planned).below(mostResults, physical.numPartitions());
      return new CountedWrite.Factory(new InlineWrite.Factory(python, info.schema(), plan));
    }

    @Override
    public boolean useCommitCoordinator() {
      return write.useCommitCoordinator();
    }

    @Override
    public void commit(long epochId, WriterCommitMessage[] messages) {
      Map<String, String> known = new HashMap<>(facts);
      if (query != null) {
        Configuration conf = SparkSession.active().sessionState().newHadoopConf();
        known.put("offsets", CheckpointLogs.offsets(conf, query.resolvedCheckpointRoot(), epochId));
      }
      known.put("once", Boolean.toString(CountedWrite.ranOnce(messages)));
      known.put("batch", Long.toString(epochId));
      List<WriterCommitMessage> all = new ArrayList<>();
      boolean inline = false;
      for (WriterCommitMessage message : CountedWrite.unwrap(messages)) {
        inline |= message instanceof InlineRows;
        all.add(message instanceof InlineRows rows ? pickled(rows) : message);
      }
      if (inline) {
        all.add(new PythonWriterCommitMessage(planned));
      }
      all.add(
          new PythonWriterCommitMessage(
              Pickles.call(PythonModules.MESSAGES, PythonModules.QUERY_FACTS, known)));
      write.commit(epochId, all.toArray(WriterCommitMessage[]::new));
      begun = true;
    }

    private static WriterCommitMessage pickled(InlineRows rows) {
      String partition = Integer.toString(rows.partition);
      return new PythonWriterCommitMessage(
          Pickles.call(PythonModules.MESSAGES, PythonModules.INLINE_ROWS, partition, rows.data));
    }

    @Override
    public void abort(long epochId, WriterCommitMessage[] messages) {
      // Python's writer does nothing here; what tasks have sent without Python, it could not read.
      write.abort(epochId, new WriterCommitMessage[0]);
    }
  }

  /** What a JVM must know to choose its Python; travels from the driver to the executors. */
  private static final class PythonChoice implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final String configured;

    private PythonChoice(String configured) {
      this.configured = configured;
    }

    static PythonChoice ofDriver() {
      SparkConf conf = SparkEnv.get().conf();
      return new PythonChoice(conf.get("spark.pyspark.python", System.getenv("PYSPARK_PYTHON")));
    }

    /** Conf first, then the variable of the driver, of this JVM, then {@code python3}. */
    PythonEnvironment environment() {
      SparkEnv env = SparkEnv.get();
      String chosen = configured;
      if ("driver".equals(env.executorId())) {
        chosen = env.conf().get("spark.pyspark.driver.python", configured);
      }
      if (chosen == null) {
        chosen = System.getenv("PYSPARK_PYTHON");
      }
      return PythonEnvironment.of(
          chosen == null ? "python3" : chosen, PythonUtils.sparkPythonPath());
    }

    PythonFunction function(byte[] command) {
      PythonEnvironment python = environment();
      return new SimplePythonFunction(
          command,
          python.variables(),
          python.includes(),
          python.executable(),
          python.version(),
          new ArrayList<>(),
          null);
    }
  }

  /** The Python class of the data source, run by the Python of whichever JVM runs it. */
  private static final class Source extends UserDefinedPythonDataSource {
    private static final long serialVersionUID = 1L;
    private final PythonChoice choice;
    private final transient byte[] seen;
    private transient byte[] planned;

    Source(PythonChoice choice, byte[] seen) {
      super(
          choice.function(
              Pickles.reference(PythonModules.DATA_SOURCE, PythonModules.DATA_SOURCE_CLASS)));
      this.choice = choice;
      this.seen = seen;
    }

    /** The same for scans of a table whose schema was asked for: what was seen then goes along. */
    Source after(byte[] seen) {
      return new Source(choice, seen);
    }

    /**
     * Only for a schema that nobody knows a process is asked. With one there is nothing to ask: the
     * process that plans makes the data source by itself.
     */
    @Override
    public PythonDataSourceCreationResult createDataSourceInPython(
        String name, CaseInsensitiveStringMap options, Option<StructType> schema) {
      if (schema.isEmpty()) {
        return super.createDataSourceInPython(name, options, schema);
      }
      String text = Pickles.json(options);
      byte[] made =
          Pickles.callWithObject(
              PythonModules.DATA_SOURCE, PythonModules.SCANNED_SOURCE, text, seen);
      return new PythonDataSourceCreationResult(made, schema.get());
    }

    @Override
    public PythonFunction createPythonFunction(byte[] command) {
      return choice.function(command);
    }

    /** Plans a batch. The writer that Python makes for it has its plan, which the commit needs. */
    @Override
    public PythonDataSourceWriteInfo createWriteInfoInPython(
        String provider,
        StructType schema,
        CaseInsensitiveStringMap options,
        boolean overwrite,
        boolean streaming) {
      PythonDataSourceWriteInfo info =
          super.createWriteInfoInPython(provider, schema, options, overwrite, streaming);
      planned = info.writer();
      return info;
    }

    /** The pickled writer of the batch that was planned last. */
    byte[] takePlanned() {
      byte[] taken = planned;
      planned = null;
      return taken == null ? new byte[0] : taken;
    }
  }
}

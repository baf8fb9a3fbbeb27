package io.github.pysparkcheckpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BiConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.spi.ToolProvider;
import org.junit.jupiter.api.Test;

/**
 * Which classes touch what Spark does not promise to keep, and which packages use each other.
 *
 * <p>Whoever tries a new version of Spark looks at the classes of this list first. A class that
 * comes to it needs a reason, and a test on the oldest Spark and on the newest.
 */
final class DependenciesTest {

  private static final String OURS = "io.github.pysparkcheckpoint.";

  /** Packages and classes of Spark that its documentation offers to users and to plugins. */
  private static final List<String> PUBLIC =
      List.of(
          "SparkConf",
          "SparkContext",
          "SparkEnv",
          "SparkFiles",
          "TaskContext",
          "api.java.JavaSparkContext",
          "api.plugin.",
          "broadcast.Broadcast",
          "sql.Row",
          "sql.SparkSession",
          "sql.connector.",
          "sql.sources.",
          "sql.streaming.",
          "sql.types.",
          "sql.util.CaseInsensitiveStringMap");

  /** Class by class: what it uses of the rest. */
  private static final String PRIVATE =
      """
      ObjectStoreCheckpointFileManager
        sql.execution.streaming.checkpointing.CheckpointFileManager
      filemanager.AtomicUpload
        sql.execution.streaming.checkpointing.CheckpointFileManager
      filemanager.ConditionalFileManager
        sql.execution.streaming.checkpointing.CheckpointFileManager
      filemanager.FileManagers
        sql.execution.streaming.checkpointing.CheckpointFileManager
        sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager
        sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
      filemanager.GatedLog
        sql.execution.streaming.checkpointing.CheckpointFileManager
      filemanager.LocalFileManager
        sql.execution.streaming.checkpointing.CheckpointFileManager
        sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager
      plugin.CheckpointDriver
        metrics.MetricsSystem
        metrics.source.Source
      plugin.CheckpointExecutor
        api.python.PythonUtils
        storage.BlockManager
        storage.BlockManagerId
      plugin.CheckpointMetrics
        metrics.source.Source
      plugin.PluginPython
        api.python.PythonUtils
      plugin.PluginSettings
        internal.config.ConfigEntry
        internal.config.package
      plugin.QueryEvents
        sql.classic.RuntimeConfig
        sql.classic.SparkSession
        sql.execution.streaming.runtime.StreamExecution
        sql.internal.SharedState
      plugin.SideProcess
        api.python.Py4JServer
      source.CountedWrite
        sql.catalyst.InternalRow
      source.FilteredScan
        sql.execution.datasources.v2.python.PythonScan
        sql.execution.datasources.v2.python.PythonScanBuilder
        sql.internal.SQLConf
      source.InlineRead
        sql.catalyst.InternalRow
        sql.catalyst.expressions.UnsafeProjection
        sql.catalyst.expressions.UnsafeRow
        sql.execution.datasources.v2.python.PythonInputPartition
        sql.execution.datasources.v2.python.PythonScan
        sql.internal.connector.SupportsMetadata
        sql.util.ArrowUtils
        sql.vectorized.ArrowColumnVector
        sql.vectorized.ColumnVector
        sql.vectorized.ColumnarBatch
      source.InlineRows
        sql.catalyst.InternalRow
        sql.execution.arrow.ArrowWriter
        sql.internal.SQLConf
      source.InlineWrite
        sql.catalyst.InternalRow
        sql.catalyst.expressions.UnsafeRow
      source.SinkDataSource
        api.python.PythonFunction
        api.python.PythonUtils
        api.python.SimplePythonFunction
        sql.classic.RuntimeConfig
        sql.classic.SparkSession
        sql.execution.datasources.v2.python.PythonDataSourceCreationResult
        sql.execution.datasources.v2.python.PythonDataSourceV2
        sql.execution.datasources.v2.python.PythonDataSourceWriteInfo
        sql.execution.datasources.v2.python.PythonScanBuilder
        sql.execution.datasources.v2.python.PythonTable
        sql.execution.datasources.v2.python.PythonWriteBuilder
        sql.execution.datasources.v2.python.PythonWriterCommitMessage
        sql.execution.datasources.v2.python.UserDefinedPythonDataSource
        sql.execution.streaming.runtime.StreamExecution
        sql.internal.SessionState
        sql.internal.SharedState
        sql.internal.connector.SupportsStreamingUpdateAsAppend
        util.CollectionAccumulator
      """;

  /** Which package uses which other one. */
  private static final String PACKAGES =
      """
      plugin
        filemanager
        python
      public
        filemanager
        plugin
        source
      source
        python
      """;

  @Test
  void onlyTheseClassesTouchThePrivateApiOfSpark() throws Exception {
    Map<String, Set<String>> found = new TreeMap<>();
    forEachUse(
        (user, used) -> {
          String spark = used.replaceFirst("^org[.]apache[.]spark[.]", "");
          if (!spark.equals(used) && PUBLIC.stream().noneMatch(spark::startsWith)) {
            found.computeIfAbsent(user, key -> new TreeSet<>()).add(spark);
          }
        });
    assertEquals(PRIVATE, text(found));
  }

  @Test
  void packagesDependOnEachOtherInOneDirection() throws Exception {
    Map<String, Set<String>> found = new TreeMap<>();
    forEachUse(
        (user, used) -> {
          String ours = used.replace(OURS, "");
          if (!ours.equals(used) && !packageOf(ours).equals(packageOf(user))) {
            found.computeIfAbsent(packageOf(user), key -> new TreeSet<>()).add(packageOf(ours));
          }
        });
    assertEquals(PACKAGES, text(found));
  }

  private static String packageOf(String name) {
    return name.contains(".") ? name.substring(0, name.indexOf('.')) : "public";
  }

  private static String text(Map<String, Set<String>> uses) {
    StringBuilder text = new StringBuilder();
    uses.forEach((user, used) -> text.append(user + "\n  " + String.join("\n  ", used) + "\n"));
    return text.toString();
  }

  /** What the compiled classes name; nested classes count as the one that they are in. */
  private static void forEachUse(BiConsumer<String, String> use) throws Exception {
    Pattern line = Pattern.compile("\\s+(\\S+)\\s+-> (\\S+)\\s.*");
    for (String text : jdeps().split("\n")) {
      Matcher found = line.matcher(text);
      if (found.matches()) {
        use.accept(outer(found.group(1)).replace(OURS, ""), outer(found.group(2)));
      }
    }
  }

  private static String outer(String name) {
    return name.replaceFirst("[$].*", "");
  }

  private static String jdeps() throws Exception {
    Path classes =
        Path.of(CheckpointPlugin.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    StringWriter output = new StringWriter();
    ToolProvider tool = ToolProvider.findFirst("jdeps").orElseThrow();
    PrintWriter out = new PrintWriter(output);
    int status = tool.run(out, out, "-verbose:class", "-filter:none", classes.toString());
    assertEquals(0, status, output.toString());
    return output.toString();
  }
}

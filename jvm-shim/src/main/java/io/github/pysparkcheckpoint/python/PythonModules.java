package io.github.pysparkcheckpoint.python;

/**
 * What this jar names of the Python package. A test of the Python side looks whether each is there.
 */
public final class PythonModules {

  /** The Python package, in this jar and on the Python path. */
  public static final String PACKAGE = "pyspark_checkpoint";

  /** Restores what is missing, before the application begins. */
  public static final String AUTO_RESTORE = PACKAGE + ".plugin.auto_restore";

  /** The side process. */
  public static final String SIDE_PROCESS = PACKAGE + ".plugin.process";

  /** Where the data source is, whose wrapper {@code ckpt-sink} is. */
  public static final String DATA_SOURCE = PACKAGE + ".sink.datasource";

  /** The class of the data source, in {@link #DATA_SOURCE}. */
  public static final String DATA_SOURCE_CLASS = "CheckpointSinkSource";

  /** Makes the data source for a scan without another process, in {@link #DATA_SOURCE}. */
  public static final String SCANNED_SOURCE = "scanned_source";

  /** What tasks and driver tell the commit of a batch. */
  public static final String MESSAGES = PACKAGE + ".sink.task";

  /** Reads what only the driver's JVM knows of a batch, in {@link #MESSAGES}. */
  public static final String QUERY_FACTS = "query_facts";

  /** What a task sends that ran no Python, in {@link #MESSAGES}. */
  public static final String INLINE_ROWS = "inline_rows";

  private PythonModules() {}
}

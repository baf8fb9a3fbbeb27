package io.github.pysparkcheckpoint.source;

import java.util.Map;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Spark's write info with more options; Python is given those that are there when a batch is
 * planned.
 */
final class RicherWriteInfo implements LogicalWriteInfo {
  private final LogicalWriteInfo info;
  private CaseInsensitiveStringMap options;

  RicherWriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
    this.info = info;
    this.options = options;
  }

  /** Add what becomes known only after the write was built. */
  void add(Map<String, String> more) {
    options = SinkOptions.with(options, more);
  }

  @Override
  public CaseInsensitiveStringMap options() {
    return options;
  }

  @Override
  public String queryId() {
    return info.queryId();
  }

  @Override
  public StructType schema() {
    return info.schema();
  }
}

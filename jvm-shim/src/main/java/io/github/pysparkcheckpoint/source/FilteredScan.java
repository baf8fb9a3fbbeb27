package io.github.pysparkcheckpoint.source;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;

/**
 * Hands filters down to the reader in Python, whatever the session says of Python sources: this
 * reader takes them. A scan without filters asks Python nothing.
 */
final class FilteredScan implements SupportsPushDownFilters {

  private static final String HAND_DOWN = "spark.sql.python.filterPushdown.enabled";

  private final PythonScanBuilder scan;

  FilteredScan(PythonScanBuilder scan) {
    this.scan = scan;
  }

  @Override
  public Filter[] pushFilters(Filter[] filters) {
    if (filters.length == 0) {
      return filters;
    }
    SQLConf conf = SQLConf.get().clone();
    conf.setConfString(HAND_DOWN, "true");
    return SQLConf.withExistingConf(conf, () -> scan.pushFilters(filters));
  }

  @Override
  public Filter[] pushedFilters() {
    return scan.pushedFilters();
  }

  @Override
  public Scan build() {
    return new InlineRead((PythonScan) scan.build());
  }
}

package io.github.pysparkcheckpoint.source;

import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import scala.Product;
import scala.collection.Iterable;

/**
 * Hands filters down to the reader in Python, whatever the session says of Python sources: this
 * reader takes them. A scan without filters asks Python nothing.
 *
 * <p>Spark evaluates every filter as well. So one is kept back whose value would not arrive as it
 * is.
 */
final class FilteredScan implements SupportsPushDownFilters {

  private static final String HAND_DOWN = "spark.sql.python.filterPushdown.enabled";

  /**
   * On the way to Python a day or a moment is one of {@code java.sql}, which has another calendar
   * for early ones and moves those that this one does not have. Python has none after its year
   * 9999, and fails.
   */
  private static final Instant FIRST = Instant.parse("1900-01-02T00:00:00Z");

  private static final Instant LAST = Instant.parse("9999-12-30T00:00:00Z");

  private final PythonScanBuilder scan;

  FilteredScan(PythonScanBuilder scan) {
    this.scan = scan;
  }

  @Override
  public Filter[] pushFilters(Filter[] filters) {
    Filter[] exact = Arrays.stream(filters).filter(FilteredScan::isExact).toArray(Filter[]::new);
    if (exact.length > 0) {
      SQLConf conf = SQLConf.get().clone();
      conf.setConfString(HAND_DOWN, "true");
      SQLConf.withExistingConf(conf, () -> scan.pushFilters(exact));
    }
    return filters;
  }

  /** Whether Python is told the very values that Spark compares with. */
  static boolean isExact(Object part) {
    if (part instanceof Object[] values) {
      return Arrays.stream(values).allMatch(FilteredScan::isExact);
    }
    if (part instanceof Row row) {
      return IntStream.range(0, row.size()).allMatch(at -> isExact(row.get(at)));
    }
    if (part instanceof Iterable<?> values) {
      return values.forall(FilteredScan::isExact);
    }
    if (part instanceof Product fields) {
      return IntStream.range(0, fields.productArity())
          .allMatch(at -> isExact(fields.productElement(at)));
    }
    Instant moment = moment(part);
    return moment == null || (moment.isAfter(FIRST) && moment.isBefore(LAST));
  }

  private static Instant moment(Object value) {
    if (value instanceof java.util.Date date) {
      return Instant.ofEpochMilli(date.getTime());
    }
    if (value instanceof LocalDate date) {
      return date.atStartOfDay().toInstant(ZoneOffset.UTC);
    }
    if (value instanceof LocalDateTime time) {
      return time.toInstant(ZoneOffset.UTC);
    }
    return value instanceof Instant instant ? instant : null;
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

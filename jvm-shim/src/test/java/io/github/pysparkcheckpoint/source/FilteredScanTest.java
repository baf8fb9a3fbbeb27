package io.github.pysparkcheckpoint.source;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Date;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.Not;
import org.junit.jupiter.api.Test;

/** Which filters Python is told of, and which it would get with another value. */
final class FilteredScanTest {

  @Test
  void valuesThatPythonHasAreHandedDown() {
    assertTrue(FilteredScan.isExact(new IsNull("c")));
    for (Object value :
        new Object[] {
          null,
          1L,
          "a",
          new byte[] {1},
          Date.valueOf("2020-02-29"),
          Timestamp.valueOf("1970-01-01 00:00:00"),
          LocalDate.of(1900, 2, 1),
          LocalDateTime.of(9999, 12, 1, 0, 0),
          Instant.EPOCH
        }) {
      assertTrue(FilteredScan.isExact(new EqualTo("c", value)));
      assertTrue(FilteredScan.isExact(new Not(new In("c", new Object[] {value, null}))));
    }
  }

  @Test
  void daysOfAnotherCalendarAndBeyondPythonsYearsAreKeptBack() {
    for (Object value :
        new Object[] {
          Date.valueOf("1582-10-15"),
          Timestamp.valueOf("1700-01-01 00:00:00"),
          LocalDate.of(-1, 1, 1),
          LocalDate.of(12000, 1, 1),
          LocalDateTime.of(12000, 1, 1, 0, 0),
          Instant.MAX
        }) {
      assertFalse(FilteredScan.isExact(new EqualTo("c", value)));
      assertFalse(FilteredScan.isExact(new Not(new In("c", new Object[] {null, value}))));
      assertFalse(FilteredScan.isExact(new EqualTo("c", RowFactory.create("a", value))));
    }
  }
}

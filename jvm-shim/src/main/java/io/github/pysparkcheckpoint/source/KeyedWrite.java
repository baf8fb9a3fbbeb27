package io.github.pysparkcheckpoint.source;

import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * A write whose rows come to the partition of their key; without keys, wherever they are.
 *
 * <p>Task p of P then holds exactly the rows with {@code pmod(hash(keys), P) = p}, by Spark's own
 * hash. Where an aggregation by the same keys has brought them there, nothing moves again.
 */
final class KeyedWrite implements RequiresDistributionAndOrdering {
  private final Write write;
  private final List<String> keys;
  private final int partitions;
  private final String name;
  private final UnaryOperator<StreamingWrite> streaming;

  KeyedWrite(
      Write write,
      List<String> keys,
      int partitions,
      String name,
      UnaryOperator<StreamingWrite> streaming) {
    this.write = write;
    this.keys = keys;
    this.partitions = partitions;
    this.name = name;
    this.streaming = streaming;
  }

  @Override
  public Distribution requiredDistribution() {
    if (keys.isEmpty()) {
      return Distributions.unspecified();
    }
    Expression[] columns =
        keys.stream().map(SinkOptions::quoted).map(Expressions::column).toArray(Expression[]::new);
    return Distributions.clustered(columns);
  }

  @Override
  public int requiredNumPartitions() {
    return keys.isEmpty() ? 0 : partitions;
  }

  @Override
  public SortOrder[] requiredOrdering() {
    return new SortOrder[0];
  }

  @Override
  public String description() {
    return name;
  }

  @Override
  public String toString() {
    return name;
  }

  @Override
  public BatchWrite toBatch() {
    return write.toBatch();
  }

  @Override
  public StreamingWrite toStreaming() {
    return streaming.apply(write.toStreaming());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return write.supportedCustomMetrics();
  }
}

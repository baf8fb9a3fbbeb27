package io.github.pysparkcheckpoint;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.Trigger;

/**
 * A plain application in Java that knows nothing of checkpoints: running totals of words, one file
 * a batch.
 *
 * <p>Arguments: a directory for everything, and how many seconds a batch takes at least.
 */
public final class TotalsApp {

  private TotalsApp() {}

  /** Runs until the input is read. */
  public static void main(String[] arguments) throws Exception {
    Path home = Path.of(arguments[0]);
    long pause = (long) (Double.parseDouble(arguments[1]) * 1000);
    Path results = Files.createDirectories(home.resolve("results"));
    SparkSession spark = SparkSession.builder().getOrCreate();
    Dataset<Row> lines =
        spark
            .newSession()
            .readStream()
            .schema("value string")
            .option("maxFilesPerTrigger", 1)
            .text(home.resolve("input").toString());
    VoidFunction2<Dataset<Row>, Long> keep =
        (rows, batch) -> {
          keep(rows, results, batch);
          Thread.sleep(pause);
        };
    lines
        .groupBy("value")
        .count()
        .writeStream()
        .outputMode("update")
        .queryName("totals")
        .option("checkpointLocation", home.resolve("location/totals").toString())
        .trigger(Trigger.AvailableNow())
        .foreachBatch(keep)
        .start()
        .awaitTermination();
    Files.createFile(home.resolve("done"));
    while (Files.exists(home.resolve("stay"))) {
      Thread.sleep(100);
    }
    spark.stop();
  }

  private static void keep(Dataset<Row> rows, Path results, long batch) throws Exception {
    List<String> lines =
        rows.collectAsList().stream()
            .map(row -> row.getString(0) + " " + row.getLong(1))
            .sorted()
            .collect(Collectors.toList());
    Path temporary = results.resolve("." + batch);
    Files.writeString(temporary, String.join("\n", lines));
    Files.move(
        temporary,
        results.resolve(String.format("%03d", batch)),
        StandardCopyOption.REPLACE_EXISTING);
  }
}

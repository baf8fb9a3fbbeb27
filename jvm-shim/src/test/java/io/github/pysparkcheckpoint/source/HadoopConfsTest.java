package io.github.pysparkcheckpoint.source;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;

/** How Python reaches the file systems that Spark reaches. */
final class HadoopConfsTest {

  /**
   * Not Hadoop's defaults, Spark's, or what Spark found in the environment: the stores have their
   * own.
   */
  @Test
  void onlySettingsThatSomebodyHasChosenAreTold() {
    Configuration conf = new Configuration();
    conf.set("fs.s3a.endpoint", "http://chosen");
    conf.set("fs.s3a.downgrade.syncable.exceptions", "true", "Set by Spark to default values");
    conf.set("fs.s3a.session.token", "x", "Set by Spark on host from AWS_SESSION_TOKEN");
    conf.set("fs.gs.project.id", "p", "Set by Spark from keys starting with 'spark.hadoop'");
    conf.set("google.cloud.auth.type", "UNAUTHENTICATED");
    conf.set("spark.sql.shuffle.partitions", "2");
    assertEquals(
        Map.of(
            "spark.hadoop.fs.s3a.endpoint", "http://chosen",
            "spark.hadoop.fs.gs.project.id", "p",
            "spark.hadoop.google.cloud.auth.type", "UNAUTHENTICATED"),
        HadoopConfs.chosenIn(conf));
  }
}

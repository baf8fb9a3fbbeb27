// Counts words into a table, in Scala. Nothing in it knows of checkpoints in a store:
//
//   spark-shell --packages io.github.pyspark-checkpoint:ckpt-spark_2.13:<version> \
//     --conf spark.plugins=io.github.pysparkcheckpoint.CheckpointPlugin \
//     --conf spark.ckpt.url=s3://bucket/checkpoints -i examples/word_count.scala
//
// The environment variable DIRECTORY says where input, table and location are.
import org.apache.spark.sql.streaming.Trigger
val directory = sys.env("DIRECTORY")
val lines = spark.readStream.option("maxFilesPerTrigger", 1).text(s"$directory/input")
val counts = lines.selectExpr("explode(split(value, ' ')) as word").groupBy("word").count()
val writer = counts.writeStream.format("ckpt-sink").outputMode("update").option("keyColumns", "word")
val placed = writer.queryName("totals").option("checkpointLocation", s"$directory/location")
placed.trigger(Trigger.AvailableNow()).start(s"$directory/table").awaitTermination()

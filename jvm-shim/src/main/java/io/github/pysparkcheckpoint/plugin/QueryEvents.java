package io.github.pysparkcheckpoint.plugin;

import java.util.Map;
import java.util.UUID;
import java.util.regex.Pattern;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.streaming.StreamingQueryListener;

/**
 * The listener that Spark adds to every session, because the plugin names it in {@code
 * spark.sql.streaming.streamingQueryListeners}. It hands everything to the {@link SideDoor}.
 */
public final class QueryEvents extends StreamingQueryListener {

  private static final long serialVersionUID = 1L;

  /** What Spark makes for a query that was given no checkpoint location, and deletes with it. */
  private static final Pattern TEMPORARY =
      Pattern.compile("/temporary-[0-9a-f]{8}-[0-9a-f-]{27}/?$");

  /** Called by Spark, once for each session. */
  public QueryEvents() {}

  @Override
  public void onQueryStarted(QueryStartedEvent event) {
    SideDoor door = SideDoor.current();
    if (door != null) {
      StreamExecution query =
          SparkSession.active().sharedState().activeStreamingQueries().get(event.id());
      if (query != null && !TEMPORARY.matcher(query.resolvedCheckpointRoot()).find()) {
        Map<String, String> facts =
            Map.of(
                "location", query.resolvedCheckpointRoot(),
                "execution", query.getClass().getSimpleName(),
                "file_manager", query.sparkSession().conf().get(CheckpointDriver.FILE_MANAGER, ""));
        door.started(text(event.id()), text(event.runId()), event.name(), facts, query);
      }
    }
  }

  @Override
  public void onQueryProgress(QueryProgressEvent event) {
    tell("progress", event.progress().id(), event.progress().runId(), event.progress().json());
  }

  @Override
  public void onQueryIdle(QueryIdleEvent event) {
    tell("idle", event.id(), event.runId(), null);
  }

  @Override
  public void onQueryTerminated(QueryTerminatedEvent event) {
    tell("terminated", event.id(), event.runId(), null);
  }

  private static void tell(String kind, UUID id, UUID runId, String progress) {
    SideDoor door = SideDoor.current();
    if (door != null) {
      door.happened(kind, text(id), text(runId), progress);
    }
  }

  private static String text(UUID id) {
    return id.toString();
  }
}

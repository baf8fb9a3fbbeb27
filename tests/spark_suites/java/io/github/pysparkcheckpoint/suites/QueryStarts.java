package io.github.pysparkcheckpoint.suites;

import java.util.Map;
import org.apache.spark.sql.streaming.StreamingQueryListener;

/** Tells which queries a suite has started, so that those that were checkpointed can be counted. */
public final class QueryStarts extends StreamingQueryListener {

  @Override
  public void onQueryStarted(QueryStartedEvent event) {
    EventReporter.tell(Map.of("kind", "query-started", "query", event.id().toString()));
  }

  @Override
  public void onQueryProgress(QueryProgressEvent event) {}

  @Override
  public void onQueryTerminated(QueryTerminatedEvent event) {}
}

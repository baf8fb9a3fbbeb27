package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Deletes of files of one file system, sent in batches.
 *
 * <p>Spark purges logs and old state one file at a time. Here each waits a second for company and
 * goes in one request with as many as the connector allows (250, unless set otherwise). In this JVM
 * a file is gone at once: the manager asks {@link #contains}, and a create of the same name first
 * waits for its delete. A process that dies in that second leaves garbage that Spark finds by
 * listing, as it does after a crash of its own. A delete that the store refused is thrown by the
 * next one that is added.
 */
final class PendingDeletes {

  private static final long LINGER_MS = 1000;
  private static final Logger LOG = LoggerFactory.getLogger(PendingDeletes.class);
  private static final Map<FileSystem, PendingDeletes> BY_FILE_SYSTEM = new WeakHashMap<>();
  private static final ScheduledExecutorService TIMER =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "ckpt-deletes");
            thread.setDaemon(true);
            return thread;
          });

  /**
   * Weak, as the map's key is: a file system that nobody uses any more must not stay for our sake.
   */
  private final WeakReference<FileSystem> fileSystem;

  private final Object sending = new Object();
  private final Set<Path> waiting = new LinkedHashSet<>();
  private final Set<Path> onTheWay = new LinkedHashSet<>();
  private final int pageSize;
  private boolean scheduled;
  private IOException refused;

  private PendingDeletes(FileSystem fileSystem) throws IOException {
    this.fileSystem = new WeakReference<>(fileSystem);
    try (BulkDelete bulk = bulkDelete(fileSystem)) {
      this.pageSize = isShared(fileSystem) ? bulk.pageSize() : 1;
    }
  }

  /**
   * Whether all managers of a bucket get the same instance, as they do unless its cache is off. If
   * not, another one would not know what waits here, and could lose a file that it has just
   * created: then nothing waits.
   */
  private static boolean isShared(FileSystem fileSystem) {
    String scheme = fileSystem.getUri().getScheme();
    return !fileSystem.getConf().getBoolean("fs." + scheme + ".impl.disable.cache", false);
  }

  /** The one of this file system; makes no request. */
  static PendingDeletes of(FileSystem fileSystem) throws IOException {
    synchronized (BY_FILE_SYSTEM) {
      PendingDeletes known = BY_FILE_SYSTEM.get(fileSystem);
      if (known == null) {
        known = new PendingDeletes(fileSystem);
        BY_FILE_SYSTEM.put(fileSystem, known);
      }
      return known;
    }
  }

  /** Delete a file soon; one that does not exist is deleted. */
  void add(Path file) throws IOException {
    boolean full;
    synchronized (this) {
      if (refused != null) {
        IOException failure =
            new IOException(
                "an earlier delete failed: "
                    + refused.getMessage()
                    + ". The query needs the permission to delete in its location (DeleteObject)",
                refused);
        refused = null;
        throw failure;
      }
      waiting.add(file);
      full = waiting.size() >= pageSize;
      if (!full && !scheduled) {
        scheduled = true;
        TIMER.schedule(this::flushOnTimer, LINGER_MS, TimeUnit.MILLISECONDS);
      }
    }
    if (full) {
      flush();
    }
  }

  /** Whether the file is as good as gone. */
  synchronized boolean contains(Path file) {
    return waiting.contains(file) || onTheWay.contains(file);
  }

  /** Return when a delete of this file that was asked for before has been done. */
  void await(Path file) throws IOException {
    if (contains(file)) {
      flush();
    }
  }

  /** Send everything that waits now, and wait for it. */
  void flush() throws IOException {
    synchronized (sending) {
      int left = waitingNow();
      while (left > 0) {
        // Not what comes meanwhile: that would go in ever smaller pages.
        List<Path> files = nextPage(left);
        left -= files.size();
        try {
          send(files);
        } finally {
          synchronized (this) {
            onTheWay.clear();
          }
        }
      }
    }
  }

  private synchronized int waitingNow() {
    return waiting.size();
  }

  private synchronized List<Path> nextPage(int most) {
    List<Path> page = new ArrayList<>();
    for (Path file : waiting) {
      if (page.size() == Math.min(pageSize, most)) {
        break;
      }
      page.add(file);
    }
    page.forEach(waiting::remove);
    onTheWay.addAll(page);
    return page;
  }

  private void send(List<Path> files) throws IOException {
    FileSystem target = fileSystem.get();
    if (target == null) {
      return;
    }
    try (BulkDelete bulk = bulkDelete(target)) {
      for (Map.Entry<Path, String> failure : bulk.bulkDelete(files)) {
        throw new IOException("cannot delete " + failure.getKey() + ": " + failure.getValue());
      }
    }
  }

  private static BulkDelete bulkDelete(FileSystem target) throws IOException {
    return target.createBulkDelete(new Path(target.getUri().toString() + "/"));
  }

  private void flushOnTimer() {
    synchronized (this) {
      scheduled = false;
    }
    try {
      flush();
    } catch (IOException | RuntimeException failure) {
      LOG.warn("cannot delete files", failure);
      synchronized (this) {
        refused = failure instanceof IOException io ? io : new IOException(failure);
      }
    }
  }
}

package io.github.pysparkcheckpoint.filemanager;

import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.fs.Path;

/**
 * The directories that were made in this JVM on stores that have none.
 *
 * <p>A directory is known here alone as long as nothing was put into it; once something was, the
 * store lists it, and stops to when somebody else removes it. At most a given number is remembered:
 * those that were asked for least recently are forgotten, each before the directories that it lies
 * in. A directory that is forgotten exists as long as the store has a file in it, and whoever asks
 * pays the requests for that answer.
 */
final class MadeDirectories {

  private static final class Directory {
    final Set<Path> inside = new HashSet<>(2);
    boolean filled;
  }

  private final int most;

  /** Least recently used first. */
  private final Map<Path, Directory> made = new LinkedHashMap<>(16, 0.75f, true);

  MadeDirectories(int most) {
    this.most = most;
  }

  /** Remember a directory and all that it lies in. */
  synchronized void add(Path directory) {
    Path child = null;
    for (Path at = directory; at != null; at = at.getParent()) {
      Directory found = made.computeIfAbsent(at, path -> new Directory());
      if (child != null) {
        found.inside.add(child);
      }
      child = at;
    }
    Iterator<Path> eldest = made.keySet().iterator();
    Set<Path> forgotten = new HashSet<>();
    for (int excess = made.size() - most; excess > 0; excess--) {
      forgotten.add(eldest.next());
      eldest.remove();
    }
    forgotten.forEach(this::leaveParent);
  }

  /** Whether it was made and is remembered; those that it lies in count as asked for as well. */
  synchronized boolean contains(Path directory) {
    return find(directory) != null;
  }

  /**
   * The store has something in a directory, and so in all that it lies in: it knows them from now
   * on.
   */
  synchronized void fill(Path directory) {
    for (Path at = directory; at != null; at = at.getParent()) {
      Directory found = made.get(at);
      if (found != null) {
        found.filled = true;
      }
    }
  }

  /** Whether the store ever had something in it. */
  synchronized boolean isFilled(Path directory) {
    Directory found = find(directory);
    return found != null && found.filled;
  }

  /** Those that were made directly in a directory, and that the store cannot know. */
  synchronized Set<Path> emptyIn(Path directory) {
    Set<Path> empty = new HashSet<>();
    Directory found = find(directory);
    if (found != null) {
      for (Path path : found.inside) {
        if (!isFilled(path)) {
          empty.add(path);
        }
      }
    }
    return empty;
  }

  /** Forget a directory and everything below it. */
  synchronized void remove(Path directory) {
    leaveParent(directory);
    Directory found = made.remove(directory);
    if (found != null) {
      Set.copyOf(found.inside).forEach(this::remove);
    }
  }

  synchronized int size() {
    return made.size();
  }

  private void leaveParent(Path directory) {
    Path parent = directory.getParent();
    Directory found = parent == null ? null : find(parent);
    if (found != null) {
      found.inside.remove(directory);
    }
  }

  /**
   * A directory is used with all that it lies in, themselves last: so it is forgotten before them.
   */
  private Directory find(Path directory) {
    Directory found = made.get(directory);
    if (found != null) {
      for (Path at = directory.getParent(); at != null; at = at.getParent()) {
        made.get(at);
      }
    }
    return found;
  }
}

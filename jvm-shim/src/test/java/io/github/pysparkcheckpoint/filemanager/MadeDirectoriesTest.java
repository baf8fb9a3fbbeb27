package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.junit.jupiter.api.Test;

/** The directories of stores that have none. */
final class MadeDirectoriesTest {

  /**
   * Also after a listing, and after one that lay in it was forgotten: else a delete misses some.
   */
  @Test
  void aDirectoryIsForgottenBeforeThoseThatItLiesIn() {
    assertEquals(List.of("q"), remembered(3, List.of("q/0"), List.of("y")));
    assertEquals(List.of("q", "q/0"), remembered(4, List.of("q/0/left"), List.of("y", "z")));
  }

  private static List<String> remembered(int most, List<String> made, List<String> later) {
    MadeDirectories directories = new MadeDirectories(most);
    made.forEach(name -> directories.add(at(name)));
    directories.emptyIn(at("q"));
    later.forEach(name -> directories.add(at(name)));
    return List.of("q", "q/0", "q/0/left").stream()
        .filter(name -> directories.contains(at(name)))
        .toList();
  }

  @Test
  void aDirectoryIsListedHereUntilTheStoreHasSomethingInIt() {
    MadeDirectories directories = new MadeDirectories(10);
    directories.add(at("q/0"));
    directories.add(at("q/1"));
    directories.fill(at("q/1"));
    assertEquals(Set.of(at("q/0")), directories.emptyIn(at("q")));
    assertTrue(directories.isFilled(at("q")));
    assertFalse(directories.isFilled(at("q/0")));
  }

  @Test
  void aRemovedDirectoryIsGoneWithAllBelowIt() {
    MadeDirectories directories = new MadeDirectories(10);
    directories.add(at("q/0/left"));
    directories.remove(at("q/0"));
    assertTrue(directories.contains(at("q")));
    assertFalse(directories.contains(at("q/0")));
    assertFalse(directories.contains(at("q/0/left")));
    assertEquals(Set.of(), directories.emptyIn(at("q")));
  }

  private static Path at(String name) {
    return new Path("s3a://bucket/" + name);
  }
}

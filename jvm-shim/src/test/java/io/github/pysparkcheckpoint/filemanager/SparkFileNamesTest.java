package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.apache.hadoop.fs.Path;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Which names are surely files. */
final class SparkFileNamesTest {

  /** A directory that is taken for a file looks absent, and Spark starts from nothing. */
  @ParameterizedTest
  @CsvSource({
    "q/offsets, q/offsets/7, true",
    "q/commits, q/commits/7, true",
    "q/sources/0, q/sources/0/9.compact, true",
    "t/_spark_metadata, t/_spark_metadata/9, true",
    "q/state/0/3, q/state/0/3/7.delta, true",
    "q/state/0/3, q/state/0/3/7_0f-1a.changelog.crc, true",
    "q/state/0/3, q/state/0/3/SSTs/000012-0f.sst, true",
    "q/state/0, q/state/0/3, false",
    "q/state, q/state/0, false",
    "q/sources, q/sources/0, false",
    "offsets, offsets/7/offsets, false",
    "offsets/7, offsets/7, false",
    "7.delta, 7.delta, false",
    "q, q/offsets, false",
    "q, q/metadata, false",
    "q, '', false",
  })
  void onlyNamesThatSparkGivesToFilesAreTakenForFiles(String root, String path, boolean isFile) {
    assertEquals(isFile, SparkFileNames.isSurelyFile(at(root), at(path)));
  }

  @ParameterizedTest
  @CsvSource({
    "7.zip, true",
    "7_0f-1a.zip, true",
    "7.zip.crc, false",
    "7.changelog, false",
    "x.zip, false",
  })
  void snapshotsOfRocksDbAreKnownByName(String name, boolean isSnapshot) {
    assertEquals(isSnapshot, SparkFileNames.isSnapshot(name));
  }

  private static Path at(String name) {
    return new Path("s3a://b/" + name);
  }
}

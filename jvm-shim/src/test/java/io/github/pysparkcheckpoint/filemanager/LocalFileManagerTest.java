package io.github.pysparkcheckpoint.filemanager;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.NonWritableChannelException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The manager on disks that fail, or have no links. Whole disks are tested from Python. */
final class LocalFileManagerTest {

  private static final String SST = "000004-a.sst";

  private final Configuration conf = new Configuration();
  private Path disk;

  @BeforeEach
  void makeDisk(@TempDir Path home) {
    disk = home.resolve("location");
  }

  /** Creating still refuses what exists, and nothing is left beside. */
  @Test
  void aDiskWithoutLinksIsWrittenAsSparkDoes() throws IOException {
    LocalFileManager manager = manager(new FailingLinks("Operation not permitted"));
    write(manager, "4", "first", false);
    refuse(manager, "4");
    assertEquals("first", read("4"));
    assertEquals(List.of("4"), names().stream().filter(name -> !name.endsWith(".crc")).toList());
  }

  /** Spark's way looks and then renames: a broken disk or server must not lead past the fence. */
  @ParameterizedTest
  @ValueSource(
      strings = {
        "Input/output error",
        "Stale file handle",
        "Disk quota exceeded",
        "No space left on device",
      })
  void aLinkThatFailsIsNotTakenForADiskWithoutLinks(String reason) throws IOException {
    LocalFileManager manager = manager(new FailingLinks(reason));
    FileSystemException failure =
        assertThrows(FileSystemException.class, () -> write(manager, "4", "first", false));
    assertEquals(reason, failure.getReason());
    assertEquals(List.of(), names());
  }

  /** A file is created as Spark does it; what exists is still refused. */
  @Test
  void aUserCanChooseToRunWhereLinksFailInUnknownWords() throws IOException {
    conf.setBoolean(FileManagerSettings.ALLOW_UNFENCED, true);
    LocalFileManager manager = manager(new FailingLinks("Nicht unterstützt"));
    write(manager, "4", "first", false);
    refuse(manager, "4");
    assertEquals("first", read("4"));
  }

  /** A network file system repeats a link, and finds the name taken: by the very same file. */
  @Test
  void aLinkWhoseAnswerWasLostIsOurs() throws IOException {
    LocalFileManager manager =
        manager(
            new LocalFileManager.Disk() {
              @Override
              public void link(Path name, Path file) throws IOException {
                Files.createLink(name, file);
                Files.createLink(name, file);
              }
            });
    write(manager, "6", "mine", false);
    assertEquals("mine", read("6"));
    refuse(manager, "6");
    assertEquals(List.of("6"), names());
  }

  /** Spark copies them past the manager, with checksums beside them; each is synced once. */
  @Test
  void filesThatASnapshotNamesAreSyncedBeforeItHasItsName() throws IOException {
    List<String> synced = new ArrayList<>();
    LocalFileManager manager =
        manager(
            new LocalFileManager.Disk() {
              @Override
              public void sync(Path path) throws IOException {
                LocalFileManager.Disk.super.sync(path);
                boolean after = Files.exists(disk.resolve("5.zip"));
                synced.add((after ? "after " : "before ") + path.getFileName());
              }
            });
    copyPast("SSTs/" + SST);
    copyPast("logs/000005-b.log");
    write(manager, "5.zip", "names them", true);
    Set<String> expected = new HashSet<>(Set.of("after location"));
    for (String name :
        List.of(SST, "." + SST + ".crc", "000005-b.log", ".000005-b.log.crc", "SSTs", "logs")) {
      expected.add("before " + name);
    }
    assertEquals(expected, Set.copyOf(synced));
    assertEquals("after location", synced.get(synced.size() - 1));

    synced.clear();
    copyPast("SSTs/000006-c.sst");
    write(manager, "6_a.zip", "names them", true);
    assertEquals(
        Set.of("after 000006-c.sst", "after .000006-c.sst.crc", "after SSTs", "after location"),
        Set.copyOf(synced));
    assertEquals(4, synced.size());

    synced.clear();
    write(manager, "7.changelog", "names none", false);
    assertEquals(List.of("after location"), synced);
  }

  /** The batch fails; what the snapshot would have replaced stays. */
  @Test
  void aSnapshotWhoseFilesCannotBeSyncedIsNotPublished() throws IOException {
    LocalFileManager manager = manager(new FailingSync("Input/output error", false));
    write(manager, "5.zip", "old", true);
    copyPast("SSTs/" + SST);
    assertThrows(FileSystemException.class, () -> write(manager, "5.zip", "new", true));
    assertEquals("old", read("5.zip"));
  }

  /** Spark's maintenance purges files meanwhile; a network file system has its words for that. */
  @Test
  void aFileThatVanishesWhileItIsSyncedDoesNotFailTheSnapshot() throws IOException {
    LocalFileManager manager = manager(new FailingSync("Stale file handle", true));
    copyPast("SSTs/" + SST);
    copyPast("SSTs/000005-b.sst");
    write(manager, "5.zip", "names one of them", true);
    assertEquals("names one of them", read("5.zip"));
  }

  /** Some file systems sync nothing for a reader; a directory has only readers. */
  @Test
  void filesAreSyncedByAWriterWhereOneMayWrite() throws IOException {
    Path file = Files.writeString(Files.createDirectories(disk).resolve(SST), "copied");
    Object before = Files.getLastModifiedTime(file);
    assertTrue(isSyncedByAWriter(file));
    assertEquals("copied", Files.readString(file));
    assertEquals(before, Files.getLastModifiedTime(file));
    assertFalse(isSyncedByAWriter(disk));
  }

  /** Nobody may write a program that runs, not even root: it stands for every file not ours. */
  @Test
  @EnabledOnOs(OS.LINUX)
  void aFileThatCannotBeOpenedForWritingIsSyncedByAReader() throws Exception {
    Path program = Files.createDirectories(disk).resolve("program");
    Files.copy(Path.of("/bin/cat"), program, StandardCopyOption.COPY_ATTRIBUTES);
    Process running = new ProcessBuilder(program.toString()).start();
    try {
      running.getOutputStream().write('x');
      running.getOutputStream().flush();
      assertEquals('x', running.getInputStream().read(), "it runs");
      assertFalse(isSyncedByAWriter(program));
    } finally {
      running.getOutputStream().close();
    }
    assertEquals(0, running.waitFor());
  }

  private static boolean isSyncedByAWriter(Path path) throws IOException {
    new LocalFileManager.Disk() {}.sync(path);
    try (FileChannel channel = LocalFileManager.Disk.channelOf(path)) {
      channel.write(ByteBuffer.allocate(0));
      return true;
    } catch (NonWritableChannelException reader) {
      return false;
    }
  }

  private LocalFileManager manager(LocalFileManager.Disk behaviour) throws IOException {
    org.apache.hadoop.fs.Path root = new org.apache.hadoop.fs.Path(disk.toUri());
    LocalFileManager manager =
        new LocalFileManager(root, conf, FileSystem.getLocal(conf), behaviour);
    manager.mkdirs(root);
    return manager;
  }

  /** As Spark does: close, or cancel if that fails. */
  private void write(LocalFileManager manager, String name, String text, boolean overwrites)
      throws IOException {
    CancellableFSDataOutputStream stream = manager.createAtomic(at(name), overwrites);
    try {
      stream.write(text.getBytes(StandardCharsets.UTF_8));
      stream.close();
    } catch (IOException failure) {
      stream.cancel();
      throw failure;
    }
  }

  private void refuse(LocalFileManager manager, String name) {
    assertThrows(
        FileAlreadyExistsException.class, () -> write(manager, name, "second", false), name);
  }

  /** Write a file as Hadoop's local file system does, with its checksums beside it. */
  private void copyPast(String name) throws IOException {
    try (var stream = FileSystem.getLocal(conf).create(at(name))) {
      stream.writeBytes("copied");
    }
  }

  private String read(String name) throws IOException {
    return Files.readString(disk.resolve(name));
  }

  private List<String> names() throws IOException {
    try (Stream<Path> files = Files.list(disk)) {
      return files.map(path -> path.getFileName().toString()).sorted().toList();
    }
  }

  private org.apache.hadoop.fs.Path at(String name) {
    return new org.apache.hadoop.fs.Path(disk.resolve(name).toUri());
  }

  /** A disk on which every link fails, for a reason in the system's words. */
  private record FailingLinks(String reason) implements LocalFileManager.Disk {
    @Override
    public void link(Path name, Path file) throws IOException {
      throw new FileSystemException(name.toString(), null, reason);
    }
  }

  /** A disk that fails to sync one file, which may vanish meanwhile. */
  private record FailingSync(String reason, boolean vanishes) implements LocalFileManager.Disk {
    @Override
    public void sync(Path path) throws IOException {
      if (path.getFileName().toString().equals(SST)) {
        if (vanishes) {
          Files.delete(path);
        }
        throw new FileSystemException(path.toString(), null, reason);
      }
      LocalFileManager.Disk.super.sync(path);
    }
  }
}

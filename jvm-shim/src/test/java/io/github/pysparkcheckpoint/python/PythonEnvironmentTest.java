package io.github.pysparkcheckpoint.python;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What is understood of a Python's answers. A shell script plays the Python. */
final class PythonEnvironmentTest {

  @TempDir private Path directory;

  @Test
  void aPythonThatHasEverythingIsTaken() throws IOException {
    PythonEnvironment python =
        PythonEnvironment.of(python("good", "python=3.12", "missing="), "/spark/python");
    assertEquals("3.12", python.version());
    assertTrue(python.variables().get("PYTHONPATH").startsWith("/spark/python"));
    assertEquals(List.of(PythonEnvironment.ownJar()), python.includes());
    assertTrue(python.pathWithJar().endsWith(PythonEnvironment.ownJar()));
  }

  @Test
  void anInstalledPackageIsUsedInPlaceOfTheJar() throws IOException {
    String script = python("installed", "python=3.12", "missing=", "package=0.1.0");
    assertEquals(List.of(), PythonEnvironment.of(script, "").includes());
  }

  @Test
  void aPythonThatIsTooOldIsNamedWithTheCure() throws IOException {
    String problem = problem(python("old", "python=3.10", "missing=pyarrow"));
    assertTrue(problem.contains("is 3.10, and 3.11 or newer is needed"), problem);
    assertTrue(problem.contains("Set spark.pyspark.python"), problem);
  }

  @Test
  void librariesThatAreMissingAreNamedAsPipKnowsThem() throws IOException {
    String script = python("bare", "python=3.12", "missing=orjson google.cloud.storage");
    String problem =
        assertThrows(
                IllegalStateException.class,
                () -> PythonEnvironment.forPlugin("ckpt", script, "", "gs://bucket/x"))
            .getMessage();
    assertTrue(problem.startsWith("ckpt: the Python that Spark runs, " + script), problem);
    assertTrue(problem.contains(script + " -m pip install orjson google-cloud-storage;"), problem);
  }

  @Test
  void aLibraryThatCannotBeLoadedIsNamedWithTheReason() throws IOException {
    String problem =
        problem(python("other", "python=3.12", "missing=", "broken=orjson", "why=wrong machine"));
    assertTrue(problem.contains("has orjson, but cannot load it (wrong machine)"), problem);
    assertTrue(problem.contains("--force-reinstall orjson;"), problem);
  }

  @Test
  void aProgramThatIsNoPythonIsNamedWithTheCure() throws IOException {
    String failing = directory.resolve("failing").toString();
    script(failing, "exit 3");
    assertTrue(problem(failing).contains("it ends with status 3"));
    String absent = problem("/no/such/python");
    assertTrue(absent.contains("cannot run the Python /no/such/python"), absent);
    assertTrue(absent.contains("Set spark.pyspark.python, or PYSPARK_PYTHON"), absent);
  }

  @Test
  void aPythonIsAskedOnceForWhatAnotherStoreDoesNotNeed() throws IOException {
    String count = directory.resolve("count").toString();
    String counting = directory.resolve("counting").toString();
    script(counting, "echo \"$@\" | tail -n 1 >> " + count, "echo python=3.12", "echo missing=");
    for (String url : List.of("s3://b/x", "s3a://b/y", "/local", "file:/local")) {
      PythonEnvironment.forPlugin("ckpt", counting, "", url);
    }
    List<String> asked = Files.readAllLines(Path.of(count));
    assertEquals(2, asked.size(), asked.toString());
    assertTrue(asked.get(0).endsWith("boto3"), asked.toString());
    assertFalse(asked.get(1).contains("boto3"), asked.toString());
  }

  private static String problem(String executable) {
    return assertThrows(IllegalStateException.class, () -> PythonEnvironment.of(executable, ""))
        .getMessage();
  }

  private String python(String name, String... answers) throws IOException {
    String path = directory.resolve(name).toString();
    String[] lines = new String[answers.length];
    for (int i = 0; i < answers.length; i++) {
      lines[i] = "echo '" + answers[i] + "'";
    }
    script(path, lines);
    return path;
  }

  private static void script(String path, String... lines) throws IOException {
    Files.writeString(Path.of(path), "#!/bin/sh\n" + String.join("\n", lines) + "\n");
    Files.setPosixFilePermissions(Path.of(path), PosixFilePermissions.fromString("rwx------"));
  }
}

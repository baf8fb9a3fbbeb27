package io.github.pysparkcheckpoint.python;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * The Python that this JVM runs for the data source and the plugin: which one, and what it has.
 *
 * <p>It is asked once per JVM and executable. A package that is missing, or installed in another
 * version than this jar's, is one clear message instead of a stack trace in a worker.
 */
public final class PythonEnvironment {

  /** Keeps what lies in the directory that the application was started in from being imported. */
  public static final String SAFE_PATH = "PYTHONSAFEPATH";

  private static final long TIME_LIMIT_SECONDS = 120;
  private static final String SCRIPT = "describe_python.py";
  private static final int OLDEST_MINOR = 11;
  private static final Map<String, PythonEnvironment> KNOWN = new ConcurrentHashMap<>();
  private static final List<String> FOR_SINK =
      List.of("pyarrow", "numpy", "pandas", "orjson", "cryptography");
  private static final List<String> FOR_PLUGIN = List.of("pyspark", "orjson", "cryptography");
  private static final Map<String, String> FOR_SCHEME =
      Map.of(
          "s3", "boto3",
          "s3a", "boto3",
          "s3n", "boto3",
          "gs", "google.cloud.storage",
          "gcs", "google.cloud.storage",
          "az", "azure.storage.blob",
          "abfss", "azure.storage.blob",
          "abfs", "azure.storage.blob",
          "wasbs", "azure.storage.blob",
          "wasb", "azure.storage.blob");
  private static final Map<String, String> PIP_NAMES =
      Map.of(
          "google.cloud.storage", "google-cloud-storage",
          "azure.storage.blob", "azure-storage-blob");

  private final String executable;
  private final String path;
  private final Map<String, String> answers;

  private PythonEnvironment(String executable, String path, Map<String, String> answers) {
    this.executable = executable;
    this.path = path;
    this.answers = answers;
  }

  /** Ask the Python at {@code executable}, with Spark's own Python path and this JVM's. */
  public static PythonEnvironment of(String executable, String sparkPath) {
    return asked(executable, sparkPath, "ckpt-sink", FOR_SINK);
  }

  /** The same for the plugin with checkpoints at {@code url}; {@code who} begins every message. */
  public static PythonEnvironment forPlugin(
      String who, String executable, String sparkPath, String url) {
    List<String> needed = new ArrayList<>(FOR_PLUGIN);
    int colon = url.indexOf(':');
    String scheme = colon < 0 ? "" : url.substring(0, colon).toLowerCase(Locale.ROOT);
    if (FOR_SCHEME.containsKey(scheme)) {
      needed.add(FOR_SCHEME.get(scheme));
    }
    return asked(executable, sparkPath, who, needed);
  }

  private static PythonEnvironment asked(
      String executable, String sparkPath, String who, List<String> needed) {
    String path = joined(sparkPath, System.getenv("PYTHONPATH"));
    return KNOWN.computeIfAbsent(
        executable + " " + needed,
        key ->
            new PythonEnvironment(executable, path, ask(who, executable, path, needed))
                .checked(who));
  }

  /** The program that was asked. */
  public String executable() {
    return executable;
  }

  /** Its version, such as 3.12. */
  public String version() {
    return answers.get("python");
  }

  /** The environment of the workers; mutable, as Spark wants it. */
  public Map<String, String> variables() {
    Map<String, String> variables = new HashMap<>();
    variables.put("PYTHONPATH", path);
    return variables;
  }

  /** What workers must add to their path: this jar, unless the package is installed. */
  public List<String> includes() {
    List<String> includes = new ArrayList<>();
    if (!answers.containsKey("package")) {
      includes.add(ownJar());
    }
    return includes;
  }

  /** The path of a Python that this JVM starts itself: this jar comes last. */
  public String pathWithJar() {
    return joined(path, ownJar());
  }

  private PythonEnvironment checked(String who) {
    String python = who + ": the Python that Spark runs, " + executable + ", ";
    String pip = " Run: " + executable + " -m pip install ";
    if (isTooOld(answers.getOrDefault("python", ""))) {
      throw new IllegalStateException(
          String.format(
              "%sis %s, and 3.%d or newer is needed. Set spark.pyspark.python to such a one, or ship"
                  + " an environment with --archives and set it to that one's bin/python",
              python, answers.get("python"), OLDEST_MINOR));
    }
    String missing = answers.getOrDefault("missing", "");
    if (!missing.isEmpty()) {
      throw new IllegalStateException(
          String.format(
              "%slacks %s.%s%s; or ship an environment with --archives and set spark.pyspark.python"
                  + " to its bin/python",
              python, missing, pip, pipNames(missing)));
    }
    String broken = answers.get("broken");
    if (broken != null) {
      throw new IllegalStateException(
          String.format(
              "%shas %s, but cannot load it (%s).%s--force-reinstall %s; or ship an environment for"
                  + " this version of Python and this kind of machine with --archives and set"
                  + " spark.pyspark.python to its bin/python",
              python, broken, answers.get("why"), pip, pipNames(broken)));
    }
    String installed = answers.get("package");
    String ours = PythonEnvironment.class.getPackage().getImplementationVersion();
    if (installed != null && ours != null && !installed.equals(ours)) {
      throw new IllegalStateException(
          String.format(
              "%s: the jar has version %s, but %s has %s %s installed. Use the same version of both,"
                  + " or uninstall the Python package: the jar carries its own",
              who, ours, executable, PythonModules.PACKAGE, installed));
    }
    return this;
  }

  private static boolean isTooOld(String version) {
    String[] parts = version.split("[.]");
    return parts.length == 2
        && (Integer.parseInt(parts[0]) < 3
            || (Integer.parseInt(parts[0]) == 3 && Integer.parseInt(parts[1]) < OLDEST_MINOR));
  }

  private static String pipNames(String missing) {
    List<String> names = new ArrayList<>();
    for (String name : missing.split(" ")) {
      names.add(PIP_NAMES.getOrDefault(name, name));
    }
    return String.join(" ", names);
  }

  private static Map<String, String> ask(
      String who, String executable, String path, List<String> needed) {
    List<String> command = new ArrayList<>(List.of(executable, "-c", script()));
    command.addAll(needed);
    ProcessBuilder builder = new ProcessBuilder(command);
    builder.environment().put("PYTHONPATH", path);
    builder.environment().put(SAFE_PATH, "1");
    builder.redirectError(ProcessBuilder.Redirect.DISCARD);
    Process process = null;
    try {
      process = builder.start();
      process.getOutputStream().close();
      // What it answers fits into the pipe: it ends without being read, or not in time.
      if (!process.waitFor(TIME_LIMIT_SECONDS, TimeUnit.SECONDS)) {
        throw unusable(who, executable, "no answer in " + TIME_LIMIT_SECONDS + " s");
      }
      if (process.exitValue() != 0) {
        throw unusable(who, executable, "it ends with status " + process.exitValue());
      }
      try (InputStream stream = process.getInputStream()) {
        return parsed(new String(stream.readAllBytes(), StandardCharsets.UTF_8));
      }
    } catch (IOException error) {
      throw unusable(who, executable, error.getMessage());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw unusable(who, executable, "interrupted");
    } finally {
      if (process != null) {
        process.destroyForcibly();
      }
    }
  }

  private static String script() {
    try (InputStream stream = PythonEnvironment.class.getResourceAsStream(SCRIPT)) {
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
    } catch (IOException | NullPointerException error) {
      throw new IllegalStateException("ckpt: " + SCRIPT + " is not in " + ownJar(), error);
    }
  }

  private static Map<String, String> parsed(String output) {
    Map<String, String> answers = new HashMap<>();
    for (String line : output.split("\n")) {
      int at = line.indexOf('=');
      if (at > 0) {
        answers.put(line.substring(0, at), line.substring(at + 1).trim());
      }
    }
    return answers;
  }

  private static IllegalStateException unusable(String who, String executable, String why) {
    return new IllegalStateException(
        who
            + ": cannot run the Python "
            + executable
            + " ("
            + why
            + "). Set spark.pyspark.python, or PYSPARK_PYTHON, to one that exists on every node");
  }

  /** Where this jar is on this machine. */
  public static String ownJar() {
    CodeSource source = PythonEnvironment.class.getProtectionDomain().getCodeSource();
    try {
      return new File(source.getLocation().toURI()).getAbsolutePath();
    } catch (URISyntaxException error) {
      throw new IllegalStateException("ckpt: cannot tell where its own jar is", error);
    }
  }

  private static String joined(String one, String other) {
    if (other == null || other.isEmpty()) {
      return one;
    }
    return one.isEmpty() ? other : one + File.pathSeparator + other;
  }
}

package io.github.pysparkcheckpoint;

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
final class PythonEnvironment {

  /** The Python package, in this jar and on the Python path. */
  static final String PACKAGE = "pyspark_checkpoint";

  /** Keeps what lies in the directory that the application was started in from being imported. */
  static final String SAFE_PATH = "PYTHONSAFEPATH";

  private static final long TIME_LIMIT_SECONDS = 120;
  private static final int OLDEST_MINOR = 11;
  private static final Map<String, PythonEnvironment> KNOWN = new ConcurrentHashMap<>();
  private static final String QUESTION =
      String.join(
          "\n",
          "import sys",
          "from importlib import import_module",
          "from importlib.util import find_spec",
          "native = {'orjson': 'orjson', 'cryptography': 'cryptography.hazmat.bindings._rust'}",
          "def lacks(name):",
          "    try:",
          "        return find_spec(name) is None",
          "    except ModuleNotFoundError:",
          "        return True",
          "print('python=%d.%d' % sys.version_info[:2])",
          "missing = [n for n in sys.argv[1:] if lacks(n)]",
          "print('missing=' + ' '.join(missing))",
          "for name in sys.argv[1:]:",
          "    if name in native and name not in missing:",
          "        try:",
          "            import_module(native[name])",
          "        except BaseException as error:",
          "            print('broken=' + name)",
          "            text = ' '.join(str(error).split()).encode('ascii', 'replace').decode()",
          "            print('why=' + text[:200])",
          "if find_spec('" + PACKAGE + "') is not None:",
          "    import " + PACKAGE + " as package",
          "    print('package=' + getattr(package, '__version__', 'unknown'))");

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
  static PythonEnvironment of(String executable, String sparkPath) {
    return asked(executable, sparkPath, "ckpt-sink", FOR_SINK);
  }

  /** The same for the plugin with checkpoints at {@code url}; {@code who} begins every message. */
  static PythonEnvironment forPlugin(String who, String executable, String sparkPath, String url) {
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

  String executable() {
    return executable;
  }

  String version() {
    return answers.get("python");
  }

  /** The environment of the workers; mutable, as Spark wants it. */
  Map<String, String> variables() {
    Map<String, String> variables = new HashMap<>();
    variables.put("PYTHONPATH", path);
    return variables;
  }

  /** What workers must add to their path: this jar, unless the package is installed. */
  List<String> includes() {
    List<String> includes = new ArrayList<>();
    if (!answers.containsKey("package")) {
      includes.add(ownJar());
    }
    return includes;
  }

  /** The path of a Python that this JVM starts itself: this jar comes last. */
  String pathWithJar() {
    return joined(path, ownJar());
  }

  private PythonEnvironment checked(String who) {
    if (isTooOld(answers.getOrDefault("python", ""))) {
      throw new IllegalStateException(
          who
              + ": the Python that Spark runs, "
              + executable
              + ", is "
              + answers.get("python")
              + ", and 3."
              + OLDEST_MINOR
              + " or newer is needed. Set spark.pyspark.python to such a one, or ship an"
              + " environment with --archives and set it to that one's bin/python");
    }
    String missing = answers.getOrDefault("missing", "");
    if (!missing.isEmpty()) {
      throw new IllegalStateException(
          who
              + ": the Python that Spark runs, "
              + executable
              + ", lacks "
              + missing
              + ". Run: "
              + executable
              + " -m pip install "
              + pipNames(missing)
              + "; or ship an environment with --archives and set spark.pyspark.python to its"
              + " bin/python");
    }
    String broken = answers.get("broken");
    if (broken != null) {
      throw new IllegalStateException(
          who
              + ": the Python that Spark runs, "
              + executable
              + ", has "
              + broken
              + ", but cannot load it ("
              + answers.get("why")
              + "). Run: "
              + executable
              + " -m pip install --force-reinstall "
              + pipNames(broken)
              + "; or ship an environment for this version of Python and this kind of machine with"
              + " --archives and set spark.pyspark.python to its bin/python");
    }
    String installed = answers.get("package");
    String ours = PythonEnvironment.class.getPackage().getImplementationVersion();
    if (installed != null && ours != null && !installed.equals(ours)) {
      throw new IllegalStateException(
          who
              + ": the jar has version "
              + ours
              + ", but "
              + executable
              + " has "
              + PACKAGE
              + " "
              + installed
              + " installed. Use the same version of both, or uninstall the Python package:"
              + " the jar carries its own");
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
    List<String> command = new ArrayList<>(List.of(executable, "-c", QUESTION));
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
  static String ownJar() {
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

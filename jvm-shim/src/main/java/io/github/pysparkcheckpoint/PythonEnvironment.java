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
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * The Python that runs the data source in this JVM: which one, and what it has.
 *
 * <p>It is asked once per JVM and executable. A package that is missing, or installed in another
 * version than this jar's, is one clear message instead of a stack trace in a worker.
 */
final class PythonEnvironment {

    /** The Python package, in this jar and on the Python path. */
    static final String PACKAGE = "pyspark_checkpoint";

    private static final long TIME_LIMIT_SECONDS = 120;
    private static final Map<String, PythonEnvironment> KNOWN = new ConcurrentHashMap<>();
    private static final String QUESTION =
            String.join(
                    "\n",
                    "import sys",
                    "from importlib.util import find_spec",
                    "needed = ('pyarrow', 'numpy', 'pandas', 'orjson', 'cryptography')",
                    "print('python=%d.%d' % sys.version_info[:2])",
                    "print('missing=' + ' '.join(n for n in needed if find_spec(n) is None))",
                    "if find_spec('" + PACKAGE + "') is not None:",
                    "    import " + PACKAGE + " as package",
                    "    print('package=' + getattr(package, '__version__', 'unknown'))");

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
        String path = joined(sparkPath, System.getenv("PYTHONPATH"));
        return KNOWN.computeIfAbsent(
                executable, name -> new PythonEnvironment(name, path, ask(name, path)).checked());
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

    private PythonEnvironment checked() {
        String missing = answers.getOrDefault("missing", "");
        if (!missing.isEmpty()) {
            throw new IllegalStateException(
                    "ckpt-sink: the Python that Spark runs, "
                            + executable
                            + ", lacks "
                            + missing
                            + ". Run: "
                            + executable
                            + " -m pip install "
                            + missing
                            + "; or ship an environment with --archives and set spark.pyspark.python to its"
                            + " bin/python");
        }
        String installed = answers.get("package");
        String ours = PythonEnvironment.class.getPackage().getImplementationVersion();
        if (installed != null && ours != null && !installed.equals(ours)) {
            throw new IllegalStateException(
                    "ckpt-sink: the jar has version "
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

    private static Map<String, String> ask(String executable, String path) {
        ProcessBuilder builder = new ProcessBuilder(executable, "-c", QUESTION);
        builder.environment().put("PYTHONPATH", path);
        builder.redirectError(ProcessBuilder.Redirect.DISCARD);
        try {
            Process process = builder.start();
            process.getOutputStream().close();
            String output;
            try (InputStream stream = process.getInputStream()) {
                output = new String(stream.readAllBytes(), StandardCharsets.UTF_8);
            }
            if (!process.waitFor(TIME_LIMIT_SECONDS, TimeUnit.SECONDS) || process.exitValue() != 0) {
                process.destroyForcibly();
                throw unusable(executable, "it did not answer");
            }
            return parsed(output);
        } catch (IOException error) {
            throw unusable(executable, error.getMessage());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw unusable(executable, "interrupted");
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

    private static IllegalStateException unusable(String executable, String why) {
        return new IllegalStateException(
                "ckpt-sink: cannot run the Python "
                        + executable
                        + " ("
                        + why
                        + "). Set spark.pyspark.python, or PYSPARK_PYTHON, to one that exists on every node");
    }

    private static String ownJar() {
        CodeSource source = PythonEnvironment.class.getProtectionDomain().getCodeSource();
        try {
            return new File(source.getLocation().toURI()).getAbsolutePath();
        } catch (URISyntaxException error) {
            throw new IllegalStateException("ckpt-sink: cannot tell where its own jar is", error);
        }
    }

    private static String joined(String one, String other) {
        if (other == null || other.isEmpty()) {
            return one;
        }
        return one.isEmpty() ? other : one + File.pathSeparator + other;
    }
}

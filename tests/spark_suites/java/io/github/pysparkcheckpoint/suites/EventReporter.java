package io.github.pysparkcheckpoint.suites;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.scalatest.Reporter;
import org.scalatest.events.Event;
import org.scalatest.events.RunAborted;
import org.scalatest.events.RunCompleted;
import org.scalatest.events.SuiteAborted;
import org.scalatest.events.SuiteCompleted;
import org.scalatest.events.SuiteStarting;
import org.scalatest.events.TestCanceled;
import org.scalatest.events.TestFailed;
import org.scalatest.events.TestIgnored;
import org.scalatest.events.TestStarting;
import org.scalatest.events.TestSucceeded;
import scala.Option;

/**
 * What happens in a run, as JSON on standard output: a line for each event, after {@link #MARK}.
 *
 * <p>Tests print there too, and some replace {@code System.out}: the stream is opened anew, and a
 * line of ours may stand behind what a test has left without its end.
 */
public final class EventReporter implements Reporter {

  /** What stands before each event; tests/spark_suites/events.py looks for it. */
  static final String MARK = "\u0001ckpt-event ";

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final List<String> OURS =
      List.of("filemanager.LocalFileManager", "plugin.CheckpointDriver");

  private static final PrintStream OUT =
      new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

  @Override
  public void apply(Event event) {
    if (event instanceof SuiteStarting it) {
      tell("suite-starting", it.suiteClassName(), "", "");
    } else if (event instanceof TestStarting it) {
      tell("test-starting", it.suiteClassName(), it.testName(), "");
    } else if (event instanceof TestSucceeded it) {
      tell("passed", it.suiteClassName(), it.testName(), "");
    } else if (event instanceof TestFailed it) {
      tell("failed", it.suiteClassName(), it.testName(), cause(it.message(), it.throwable()));
    } else if (event instanceof TestIgnored it) {
      tell("ignored", it.suiteClassName(), it.testName(), "");
    } else if (event instanceof TestCanceled it) {
      tell("canceled", it.suiteClassName(), it.testName(), it.message());
    } else if (event instanceof SuiteCompleted it) {
      tell("suite-completed", it.suiteClassName(), "", "");
    } else if (event instanceof SuiteAborted it) {
      tell("suite-aborted", it.suiteClassName(), "", cause(it.message(), it.throwable()));
    } else if (event instanceof RunCompleted) {
      tell("run-completed", Option.empty(), "", String.join(" ", loaded()));
    } else if (event instanceof RunAborted it) {
      tell("run-aborted", Option.empty(), "", cause(it.message(), it.throwable()));
    }
  }

  private static void tell(String kind, Option<String> suite, String test, String message) {
    Map<String, String> values = new LinkedHashMap<>();
    values.put("kind", kind);
    values.put("suite", suite.isDefined() ? suite.get() : "");
    values.put("test", test);
    values.put("message", message);
    tell(values);
  }

  /** Write one event. */
  static void tell(Map<String, String> values) {
    try {
      OUT.println(MARK + JSON.writeValueAsString(values));
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String cause(String message, Option<Throwable> throwable) {
    StringBuilder text = new StringBuilder(message == null ? "" : message);
    for (Throwable at = throwable.isDefined() ? throwable.get() : null;
        at != null;
        at = at.getCause()) {
      text.append("\n  ").append(at);
      StackTraceElement[] frames = at.getStackTrace();
      for (int i = 0; i < Math.min(12, frames.length); i++) {
        text.append("\n    at ").append(frames[i]);
      }
    }
    return text.toString();
  }

  /**
   * Which of our classes this JVM has loaded: a suite that never touched them proves nothing of
   * them.
   */
  private static List<String> loaded() {
    try {
      Method find = ClassLoader.class.getDeclaredMethod("findLoadedClass", String.class);
      find.setAccessible(true); // Spark's own --add-opens allow it
      ClassLoader loader = EventReporter.class.getClassLoader();
      return OURS.stream()
          .filter(name -> isLoaded(find, loader, "io.github.pysparkcheckpoint." + name))
          .toList();
    } catch (NoSuchMethodException error) {
      throw new IllegalStateException(error);
    }
  }

  private static boolean isLoaded(Method find, ClassLoader loader, String name) {
    try {
      return find.invoke(loader, name) != null;
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }
}

package io.github.pysparkcheckpoint.python;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;

/**
 * The pickles that this jar writes by hand: a class by name, a call with a text, and one with a
 * text and bytes, or an object that was pickled elsewhere.
 *
 * <p>The first two are of protocol 0, which is plain ASCII, the others of protocol 3, which has
 * bytes. They name things of the Python package only.
 */
public final class Pickles {

  private Pickles() {}

  /** The class {@code name} of {@code module}. */
  public static byte[] reference(String module, String name) {
    return bytes("c" + module + "\n" + name + "\n.");
  }

  /** What {@code name(json)} gives, for a JSON object of texts. */
  public static byte[] call(String module, String name, Map<String, String> fields) {
    return bytes("c" + module + "\n" + name + "\n(V" + escaped(json(fields)) + "\ntR.");
  }

  /** What {@code name(text, data)} gives, for a text in ASCII on one line. */
  public static byte[] call(String module, String name, String text, byte[] data) {
    return joined(head(module, name, text), binary(data), bytes("tR."));
  }

  /** What {@code name(text, object)} gives, for an object that is pickled; None if it is empty. */
  public static byte[] callWithObject(String module, String name, String text, byte[] pickle) {
    byte[] head = head(module, name, text);
    return pickle.length == 0
        ? joined(head, bytes("NtR."))
        : joined(head, bytes("cpickle\nloads\n("), binary(pickle), bytes("tRtR."));
  }

  /** The beginning of a call in protocol 3: the function and its first argument. */
  private static byte[] head(String module, String name, String text) {
    byte[] protocol = {(byte) 0x80, 3};
    return joined(protocol, bytes("c" + module + "\n" + name + "\n(V" + escaped(text) + "\n"));
  }

  private static byte[] binary(byte[] data) {
    ByteBuffer length = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(data.length);
    return joined(bytes("B"), length.array(), data);
  }

  private static byte[] joined(byte[]... parts) {
    ByteBuffer out = ByteBuffer.allocate(Arrays.stream(parts).mapToInt(part -> part.length).sum());
    for (byte[] part : parts) {
      out.put(part);
    }
    return out.array();
  }

  private static String escaped(String text) {
    return text.replace("\\", "\\u005c");
  }

  /** A JSON object in ASCII, on one line, with sorted keys. */
  public static String json(Map<String, String> fields) {
    StringBuilder out = new StringBuilder("{");
    Iterator<Map.Entry<String, String>> entries = new TreeMap<>(fields).entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry<String, String> entry = entries.next();
      quote(entry.getKey(), out);
      out.append(':');
      quote(entry.getValue(), out);
      out.append(entries.hasNext() ? "," : "");
    }
    return out.append('}').toString();
  }

  private static void quote(String text, StringBuilder out) {
    out.append('"');
    for (char letter : text.toCharArray()) {
      if (letter < 0x20 || letter > 0x7e || letter == '"' || letter == '\\') {
        out.append(String.format("\\u%04x", (int) letter));
      } else {
        out.append(letter);
      }
    }
    out.append('"');
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.US_ASCII);
  }
}

package io.github.pysparkcheckpoint.python;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;

/**
 * The pickles that this jar writes by hand: a class by name, a call with a text, and one with a
 * text and bytes.
 *
 * <p>The first two are of protocol 0, which is plain ASCII, the last of protocol 3, which has
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
    String text = json(fields).replace("\\", "\\u005c");
    return bytes("c" + module + "\n" + name + "\n(V" + text + "\ntR.");
  }

  /** What {@code name(text, data)} gives, for a text in ASCII without backslashes and lines. */
  public static byte[] call(String module, String name, String text, byte[] data) {
    byte[] head = bytes("c" + module + "\n" + name + "\n(V" + text + "\nB");
    byte[] tail = bytes("tR.");
    ByteBuffer out = ByteBuffer.allocate(2 + head.length + 4 + data.length + tail.length);
    out.order(ByteOrder.LITTLE_ENDIAN).put((byte) 0x80).put((byte) 3);
    return out.put(head).putInt(data.length).put(data).put(tail).array();
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

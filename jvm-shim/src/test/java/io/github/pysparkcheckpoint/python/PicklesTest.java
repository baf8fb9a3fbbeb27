package io.github.pysparkcheckpoint.python;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The pickles and the JSON that Python gets. Python's own tests read them back. */
final class PicklesTest {

  @Test
  void aReferenceNamesAClass() {
    assertEquals("cpackage.module\nName\n.", text(Pickles.reference("package.module", "Name")));
  }

  @Test
  void aCallHasOneTextWithoutLineBreaks() {
    byte[] pickle = Pickles.call("package.module", "name", Map.of("a", "x\ny"));
    assertEquals(
        "cpackage.module\nname\n(V{\"a\":\"x\\u005cu000ay\"}\ntR.",
        text(pickle),
        "a backslash would end the escape of the pickle's own format");
  }

  @Test
  void aCallWithBytesCountsThem() {
    byte[] pickle = Pickles.call("package.module", "name", "7", new byte[] {1, 2});
    byte[] expected =
        ("??cpackage.module\nname\n(V7\nB????\u0001\u0002tR.")
            .replace('?', '\0')
            .getBytes(StandardCharsets.US_ASCII);
    expected[0] = (byte) 0x80;
    expected[1] = 3;
    expected[expected.length - 9] = 2;
    assertArrayEquals(expected, pickle);
  }

  @Test
  void aCallWithAnObjectLoadsIt() {
    byte[] pickle = Pickles.callWithObject("package.module", "name", "7", new byte[] {'N', '.'});
    byte[] expected =
        bytes("??cpackage.module\nname\n(V7\ncpickle\nloads\n(B????N.tRtR.".replace('?', '\0'));
    expected[0] = (byte) 0x80;
    expected[1] = 3;
    expected[expected.length - 11] = 2;
    assertArrayEquals(expected, pickle);
    byte[] none = bytes("??cpackage.module\nname\n(V7\nNtR.");
    none[0] = (byte) 0x80;
    none[1] = 3;
    assertArrayEquals(none, Pickles.callWithObject("package.module", "name", "7", new byte[0]));
  }

  @Test
  void jsonIsAsciiOnOneLineWithSortedKeys() {
    assertEquals(
        "{\"a\":\"\\u0022\\u005c\\u000a\\u00e4\\ud83d\\ude00\",\"b\":\"\"}",
        Pickles.json(Map.of("b", "", "a", "\"\\\nä😀")));
    assertEquals("{}", Pickles.json(Map.of()));
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.US_ASCII);
  }

  private static String text(byte[] bytes) {
    return new String(bytes, StandardCharsets.US_ASCII);
  }
}

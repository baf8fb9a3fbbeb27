package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;

/**
 * Tells a file system that has no links from a link that failed.
 *
 * <p>Java passes on the words of the system and not its error number. A failure whose words are not
 * known is a failure of this link: the disk, the quota, a network file system that has lost its
 * server.
 */
final class MissingLinks {

  /**
   * EPERM, EOPNOTSUPP, ENOSYS, and EMLINK for a file that has one name; in the words of glibc,
   * musl, BSD.
   */
  private static final Set<String> WORDS =
      Set.of(
          "Operation not permitted",
          "Operation not supported",
          "Not supported",
          "Function not implemented",
          "Too many links");

  /**
   * Linux's ENOTSUPP, which NFSv3 answers by and libc has no words for but a number, in any
   * language.
   */
  private static final String UNNAMED = " 524";

  private MissingLinks() {}

  /**
   * Whether a link of a file that is ours, in its own directory, failed because there are no links
   * here.
   */
  static boolean isMeantBy(FileSystemException failure) {
    String reason = failure.getReason();
    return reason != null
        && (WORDS.contains(reason)
            || reason.endsWith(UNNAMED)
            || reason.equals(NotPermitted.WORDS));
  }

  /** What EPERM, Linux's usual answer, is called in the language of this process. */
  private static final class NotPermitted {

    static final String WORDS = words();

    /** Linux refuses a link to a directory on every file system; others may not. */
    private static String words() {
      if (!System.getProperty("os.name", "").startsWith("Linux")) {
        return null;
      }
      try {
        Path directory = Files.createTempDirectory("ckpt");
        try {
          Files.createLink(directory.resolve("link"), directory);
        } catch (FileSystemException refused) {
          return refused.getReason();
        } finally {
          Files.delete(directory);
        }
      } catch (IOException | UnsupportedOperationException unknown) {
        return null;
      }
      return null;
    }
  }
}

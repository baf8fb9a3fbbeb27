package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Who may read and write what is created: what Hadoop would say, by {@code
 * fs.permissions.umask-mode}, and whatever the process's own mask is. What a directory inherits
 * beyond that stays: the setgid bit, by which everything below belongs to the directory's group.
 *
 * @param ofFiles the nine bits of a file's mode
 * @param ofDirectories the nine bits of a directory's mode
 */
record LocalPermissions(int ofFiles, int ofDirectories) {

  private static final String MODE = "unix:mode";
  private static final int NINE_BITS = 0777;
  private static final int ALL_BITS = 07777;

  static LocalPermissions from(Configuration conf) {
    FsPermission mask = FsPermission.getUMask(conf);
    return new LocalPermissions(
        allowed(FsPermission.getFileDefault(), mask), allowed(FsPermission.getDirDefault(), mask));
  }

  private static int allowed(FsPermission most, FsPermission mask) {
    return most.applyUMask(mask).toShort() & NINE_BITS;
  }

  void applyTo(Path created) throws IOException {
    try {
      int has = (Integer) Files.getAttribute(created, MODE) & ALL_BITS;
      int wanted = has & ~NINE_BITS | (Files.isDirectory(created) ? ofDirectories : ofFiles);
      // Not without need: the system takes the setgid bit from whoever is not of the group.
      if (wanted != has) {
        Files.setAttribute(created, MODE, wanted);
      }
    } catch (UnsupportedOperationException notPosix) {
      // A file system without such permissions has its own.
    }
  }
}

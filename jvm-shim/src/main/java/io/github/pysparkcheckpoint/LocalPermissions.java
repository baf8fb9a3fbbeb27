package io.github.pysparkcheckpoint;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Who may read and write what is created: what Hadoop would say, by {@code fs.permissions.umask-mode}, and
 * whatever the process's own mask is.
 */
record LocalPermissions(Set<PosixFilePermission> ofFiles, Set<PosixFilePermission> ofDirectories) {

  static LocalPermissions from(Configuration conf) {
    FsPermission mask = FsPermission.getUMask(conf);
    return new LocalPermissions(
        allowed(FsPermission.getFileDefault(), mask), allowed(FsPermission.getDirDefault(), mask));
  }

  private static Set<PosixFilePermission> allowed(FsPermission most, FsPermission mask) {
    return PosixFilePermissions.fromString(most.applyUMask(mask).toString());
  }

  void givenTo(Path created) throws IOException {
    try {
      Files.setPosixFilePermissions(
          created, Files.isDirectory(created) ? ofDirectories : ofFiles);
    } catch (UnsupportedOperationException notPosix) {
      // A file system without such permissions has its own.
    }
  }
}

package io.github.pysparkcheckpoint.filemanager;

import java.io.IOException;
import java.net.URI;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds out whether a store refuses a second create of one name, once per JVM and bucket of a
 * server.
 *
 * <p>A server that does not know the condition ignores it without a word, so asking is not enough:
 * the probe creates an object of its own twice, and removes it. A probe that could not be finished
 * proves nothing; it is an error, and the next create probes again.
 */
final class ConditionProbe {

  private static final Logger LOG = LoggerFactory.getLogger(ConditionProbe.class);
  private static final ConcurrentHashMap<String, String> FINDINGS = new ConcurrentHashMap<>();
  private static final String HONOURED = "";

  private static final String PROBE = ".ckpt-probe-";

  private ConditionProbe() {}

  /**
   * Whether a file is a probe's: one that died may have left it, and Spark would stumble over it.
   */
  static boolean isProbe(Path file) {
    return file.getName().startsWith(PROBE);
  }

  /**
   * Say whether creates are fenced here.
   *
   * @return true if they are; false if they are not and the user accepts that
   * @throws IOException if they are not and the user does not, or if the probe failed
   */
  static boolean isFenced(FileSystem fileSystem, Path directory, FileManagerSettings settings)
      throws IOException {
    String store = store(fileSystem);
    String finding = FINDINGS.get(store);
    if (finding == null) {
      synchronized (FINDINGS) {
        finding = FINDINGS.get(store);
        if (finding == null) {
          finding = probe(fileSystem, directory, settings);
          FINDINGS.put(store, finding);
        }
      }
    }
    if (finding.equals(HONOURED)) {
      return true;
    }
    if (settings.allowUnfenced()) {
      return false;
    }
    throw new IOException(refusal(store, finding));
  }

  /**
   * One bucket name may exist at several servers. S3A has its own settings, whatever scheme it
   * serves.
   */
  static String store(FileSystem fileSystem) {
    URI uri = fileSystem.getUri();
    Configuration conf = fileSystem.getConf();
    String endpoint = conf.getTrimmed("fs.s3a.bucket." + uri.getHost() + ".endpoint", "");
    if (endpoint.isEmpty()) {
      endpoint = conf.getTrimmed("fs.s3a.endpoint", "");
    }
    return endpoint.isEmpty() ? uri.toString() : uri + " at " + endpoint;
  }

  /** Forget what was found, for tests. */
  static void forget() {
    FINDINGS.clear();
  }

  private static String probe(FileSystem fileSystem, Path directory, FileManagerSettings settings)
      throws IOException {
    if (!ConditionalWriter.isOfferedBy(fileSystem, directory)) {
      return warned(
          fileSystem.getClass().getName()
              + " does not offer conditional create (S3A does since Hadoop 3.4.2, unless"
              + " fs.s3a.create.conditional.enabled is false)");
    }
    ConditionalWriter writer = new ConditionalWriter(fileSystem);
    Path path = new Path(directory, PROBE + UUID.randomUUID());
    Spool content = new Spool(settings);
    try {
      content.write('?');
      writer.create(path, content);
      try {
        writer.create(path, content);
      } catch (FileAlreadyExistsException refused) {
        if (!ConditionalWriter.wasRefused(refused)) {
          throw new IOException(
              "cannot find out whether "
                  + store(fileSystem)
                  + " honours conditional create, because an answer was lost. Start the query"
                  + " again, which asks once more",
              refused);
        }
        LOG.info("{} honours conditional create", fileSystem.getUri());
        return HONOURED;
      }
      return warned("the server ignored If-None-Match and let an object be created twice");
    } finally {
      content.release();
      PendingDeletes deletes = PendingDeletes.of(fileSystem);
      deletes.add(path);
      deletes.await(path);
    }
  }

  private static String warned(String finding) {
    LOG.warn("creates are not fenced: {}", finding);
    return finding;
  }

  private static String refusal(String store, String finding) {
    return "Two drivers on one checkpoint location in "
        + store
        + " would both commit, because "
        + finding
        + ". Use a connector and a store with conditional create; or, if you make sure yourself that"
        + " never more than one driver runs on a location, set spark.hadoop."
        + FileManagerSettings.ALLOW_UNFENCED
        + "=true";
  }
}

import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node with one data node below a directory: {@code MiniHdfs DIRECTORY PORT}. */
public final class MiniHdfs {
  public static void main(String[] arguments) throws Exception {
    Path home = Path.of(arguments[0]);
    Configuration conf = new HdfsConfiguration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, home.resolve("data").toString());
    conf.set("dfs.namenode.fs-limits.min-block-size", "0");
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf)
            .numDataNodes(1)
            .nameNodePort(Integer.parseInt(arguments[1]))
            .build();
    cluster.waitActive();
    Files.writeString(home.resolve("ready"), cluster.getURI().toString());
    Thread.currentThread().join();
  }
}

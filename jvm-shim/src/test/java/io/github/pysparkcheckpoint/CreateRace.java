package io.github.pysparkcheckpoint;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * Many threads create one file, again and again, in step with other JVMs that do the same.
 *
 * <p>Arguments: directory, number of threads, then confs as {@code name=value}. For every line on
 * standard input, a file name, all threads create that file at once; the answer is one line with
 * the numbers of winners, of losers that were told so, and of other failures.
 */
public final class CreateRace {

  private CreateRace() {}

  public static void main(String[] arguments) throws Exception {
    Path directory = new Path(arguments[0]);
    int threads = Integer.parseInt(arguments[1]);
    Configuration conf = new Configuration();
    for (int i = 2; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      conf.set(pair[0], pair[1]);
    }
    ObjectStoreCheckpointFileManager manager =
        new ObjectStoreCheckpointFileManager(directory, conf);
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    System.out.println("ready");
    String name;
    while ((name = in.readLine()) != null) {
      System.out.println(race(manager, new Path(directory, name), threads, pool));
    }
    pool.shutdownNow();
    pool.awaitTermination(10, TimeUnit.SECONDS);
  }

  private static String race(
      ObjectStoreCheckpointFileManager manager, Path file, int threads, ExecutorService pool)
      throws Exception {
    AtomicInteger won = new AtomicInteger();
    AtomicInteger lost = new AtomicInteger();
    AtomicInteger failed = new AtomicInteger();
    CyclicBarrier start = new CyclicBarrier(threads);
    CyclicBarrier end = new CyclicBarrier(threads + 1);
    for (int i = 0; i < threads; i++) {
      byte[] content = ("thread " + i).getBytes(StandardCharsets.UTF_8);
      pool.execute(
          () -> {
            try {
              start.await();
              CancellableFSDataOutputStream out = manager.createAtomic(file, false);
              out.write(content);
              out.close();
              won.incrementAndGet();
            } catch (FileAlreadyExistsException expected) {
              lost.incrementAndGet();
            } catch (Exception unexpected) {
              unexpected.printStackTrace();
              failed.incrementAndGet();
            }
            try {
              end.await();
            } catch (Exception broken) {
              throw new IllegalStateException(broken);
            }
          });
    }
    end.await(120, TimeUnit.SECONDS);
    return won + " " + lost + " " + failed;
  }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.BasicTypeInfo;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.queryablestate.client.QueryableStateClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;

/**
 * Submits a job whose queryable state is the newest value of each key, and asks it.
 *
 * <p>Arguments: the REST port of the JobManager, the port of the query proxy, the port on which
 * lines "key TAB value" are sent, the jar of this class, the parallelism. Orders come on standard
 * input, one a line, and each is answered by one line.
 */
public final class FlinkPeer {
  private static final String STATE = "state";

  /** Keeps the newest value of a key. */
  public static final class Keep extends RichFlatMapFunction<String, String> {
    private transient ValueState<String> newest;

    @Override
    public void open(Configuration parameters) {
      ValueStateDescriptor<String> descriptor = descriptor();
      descriptor.setQueryable(STATE);
      newest = getRuntimeContext().getState(descriptor);
    }

    @Override
    public void flatMap(String line, Collector<String> out) throws Exception {
      newest.update(line.substring(line.indexOf('\t') + 1));
    }
  }

  /** Takes the key of a line. */
  public static final class Key implements KeySelector<String, String> {
    @Override
    public String getKey(String line) {
      return line.substring(0, line.indexOf('\t'));
    }
  }

  private final QueryableStateClient client;
  private final JobID job;

  private FlinkPeer(QueryableStateClient client, JobID job) {
    this.client = client;
    this.job = job;
  }

  private static ValueStateDescriptor<String> descriptor() {
    return new ValueStateDescriptor<>(STATE, BasicTypeInfo.STRING_TYPE_INFO);
  }

  private java.util.concurrent.CompletableFuture<ValueState<String>> ask(String key) {
    return client.getKvState(job, STATE, key, BasicTypeInfo.STRING_TYPE_INFO, descriptor());
  }

  private static String key(long number) {
    return String.format("key-%09d", number);
  }

  /** Returns the keys of a round: COUNT of them, beginning with FIRST, of SIZE in all. */
  private static String[] keys(long first, int count, long size) {
    String[] keys = new String[count];
    for (int index = 0; index < count; index++) {
      keys[index] = key((first + index) % size);
    }
    return keys;
  }

  /** Asks one after the other; answers with the nanoseconds of each. */
  private String one(String[] keys) throws Exception {
    StringBuilder line = new StringBuilder();
    for (String key : keys) {
      long began = System.nanoTime();
      ask(key).get().value();
      line.append(System.nanoTime() - began).append(' ');
    }
    return line.toString();
  }

  /** Asks with so many questions under way; answers with the nanoseconds of all. */
  private String outstanding(String[] keys, int limit) throws Exception {
    Semaphore free = new Semaphore(limit);
    CountDownLatch left = new CountDownLatch(keys.length);
    Throwable[] failure = new Throwable[1];
    long began = System.nanoTime();
    for (String key : keys) {
      free.acquire();
      ask(key)
          .whenComplete(
              (state, error) -> {
                try {
                  if (error != null) {
                    failure[0] = error;
                  } else {
                    state.value();
                  }
                } catch (Exception exception) {
                  failure[0] = exception;
                }
                free.release();
                left.countDown();
              });
    }
    left.await();
    long took = System.nanoTime() - began;
    if (failure[0] != null) {
      throw new IllegalStateException(failure[0]);
    }
    return Long.toString(took);
  }

  /** Asks for a key until it has a value; answers with the clock of the machine. */
  private String until(String key, String value) throws Exception {
    while (true) {
      try {
        if (value.equals(ask(key).get().value())) {
          return Long.toString(System.nanoTime());
        }
      } catch (java.util.concurrent.ExecutionException exception) {
        // The job does not run yet, or has no such key yet: the client cannot tell.
        Thread.sleep(10);
      }
    }
  }

  private String answer(String[] order) throws Exception {
    switch (order[0]) {
      case "one":
        return one(
            keys(
                Long.parseLong(order[1]), Integer.parseInt(order[2]), Long.parseLong(order[3])));
      case "outstanding":
        return outstanding(
            keys(Long.parseLong(order[1]), Integer.parseInt(order[2]), Long.parseLong(order[3])),
            Integer.parseInt(order[4]));
      case "until":
        return until(order[1], order[2]);
      default:
        throw new IllegalArgumentException(Arrays.toString(order));
    }
  }

  public static void main(String[] arguments) throws Exception {
    // Answers have standard output for themselves.
    PrintStream answers = System.out;
    System.setOut(System.err);
    StreamExecutionEnvironment environment =
        StreamExecutionEnvironment.createRemoteEnvironment(
            "127.0.0.1", Integer.parseInt(arguments[0]), arguments[3]);
    environment.setParallelism(Integer.parseInt(arguments[4]));
    environment
        .socketTextStream("127.0.0.1", Integer.parseInt(arguments[2]))
        .keyBy(new Key())
        .flatMap(new Keep())
        .print();
    JobID job = environment.executeAsync("peer").getJobID();
    QueryableStateClient client =
        new QueryableStateClient("127.0.0.1", Integer.parseInt(arguments[1]));
    client.setExecutionConfig(environment.getConfig());
    FlinkPeer peer = new FlinkPeer(client, job);
    answers.println("submitted");
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String line = orders.readLine(); line != null; line = orders.readLine()) {
      answers.println(peer.answer(line.split(" ")));
      answers.flush();
    }
    System.exit(0);
  }
}

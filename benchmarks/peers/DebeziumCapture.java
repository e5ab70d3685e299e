import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.PrintWriter;
import java.time.Instant;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Debezium's engine, whose records a Kafka producer sends to a broker: arguments are the engine's properties (a file),
 * the broker's address, and how many changes to take before it prints its times and ends (0: until it is ended).
 * It prints `seconds=S half=H`: from the first change to the last, and from the middle one. A fourth argument is a file
 * for the microseconds from each change's commit to the broker's acknowledgement of its record.
 */
public class DebeziumCapture {
    static long count;
    static long first;
    static long middle;

    public static void main(String[] arguments) throws Exception {
        Properties engine = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            engine.load(file);
        }
        long wanted = Long.parseLong(arguments[2]);
        Properties producer = new Properties();
        producer.put("bootstrap.servers", arguments[1]);
        producer.put("acks", "all");
        producer.put("linger.ms", "5");
        producer.put("batch.size", "262144");
        producer.put("buffer.memory", "67108864");
        KafkaProducer<String, String> sender =
            new KafkaProducer<>(producer, new StringSerializer(), new StringSerializer());
        PrintWriter waits = arguments.length > 3 ? new PrintWriter(arguments[3]) : null;
        DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> consumer = new DebeziumEngine.ChangeConsumer<>() {
            @Override
            public void handleBatch(
                    List<ChangeEvent<String, String>> records,
                    DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
                if (count == 0) {
                    first = System.nanoTime();
                    System.out.println("first");
                    System.out.flush();
                }
                for (ChangeEvent<String, String> one : records) {
                    sender.send(
                        new ProducerRecord<>(one.destination(), one.key(), one.value()),
                        (place, error) -> {
                            if (waits != null && error == null && one.value() != null) {
                                waits.println(nowMicros() - committedMicros(one.value()));
                            }
                        });
                    committer.markProcessed(one);
                }
                sender.flush();
                if (waits != null) {
                    waits.flush();
                }
                committer.markBatchFinished();
                count += records.size();
                if (middle == 0 && count >= wanted / 2) {
                    middle = System.nanoTime();
                }
                if (wanted > 0 && count >= wanted) {
                    long now = System.nanoTime();
                    System.out.println("seconds=" + (now - first) / 1e9 + " half=" + (now - middle) / 1e9);
                    System.out.flush();
                    Runtime.getRuntime().halt(0);
                }
            }
        };
        DebeziumEngine<ChangeEvent<String, String>> made =
            DebeziumEngine.create(Json.class).using(engine).notifying(consumer).build();
        Executors.newSingleThreadExecutor().execute(made);
    }

    static long nowMicros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }

    static long committedMicros(String value) {
        int at = value.indexOf("\"ts_us\":", value.indexOf("\"source\":")) + 8;
        int end = at;
        while (Character.isDigit(value.charAt(end))) {
            end++;
        }
        return Long.parseLong(value.substring(at, end));
    }
}

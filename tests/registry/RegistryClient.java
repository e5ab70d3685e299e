// Confluent's Java client and Flink's Avro coder against a registry, one line of output for each answer.
//
//     java -cp JARS RegistryClient.java URL SUBJECT FIRST INCOMPATIBLE RECORD
//
// FIRST and INCOMPATIBLE are schemas; RECORD is one in Confluent's format, as hexadecimal digits, of a schema
// that the registry has.

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.HexFormat;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.flink.formats.avro.registry.confluent.ConfluentSchemaRegistryCoder;

public class RegistryClient {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], subject = arguments[1];
        var first = new AvroSchema(arguments[2]);
        var client = new CachedSchemaRegistryClient(url, 10);

        int id = client.register(subject, first);
        say("id", id);
        say("again", client.register(subject, first) == id);
        say("latest", client.getLatestSchemaMetadata(subject).getVersion());
        say("by id", new CachedSchemaRegistryClient(url, 10).getSchemaById(id).equals(first));
        say("subjects", client.getAllSubjects().contains(subject));
        say("level", client.updateCompatibility(subject, "FULL"));

        var other = new AvroSchema(arguments[3]);
        say("compatible", client.testCompatibility(subject, other));
        try {
            client.register(subject, other);
            say("refused", "no");
        } catch (RestClientException refused) {
            say("refused", refused.getStatus());
        }

        var coder = new ConfluentSchemaRegistryCoder(subject, client);
        var record = new GenericData.Record(first.rawSchema());
        record.put("user", "written by Java");
        var out = new ByteArrayOutputStream();
        coder.writeSchema(first.rawSchema(), out);
        var encoder = EncoderFactory.get().directBinaryEncoder(out, null);
        new GenericDatumWriter<GenericRecord>(first.rawSchema()).write(record, encoder);
        encoder.flush();
        say("record", HexFormat.of().formatHex(out.toByteArray()));

        var in = new ByteArrayInputStream(HexFormat.of().parseHex(arguments[4]));
        var schema = coder.readSchema(in);
        var decoder = DecoderFactory.get().directBinaryDecoder(in, null);
        say("read", new GenericDatumReader<GenericRecord>(schema).read(null, decoder).get("user"));
    }

    private static void say(String what, Object answer) {
        System.out.println(what + ": " + answer);
    }
}

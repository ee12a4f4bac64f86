package penstock.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.avro.AvroDeserializer;
import org.apache.spark.sql.avro.AvroSerializer;
import org.apache.spark.sql.avro.SchemaConverters;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.sparkproject.spark_core.protobuf.ByteString;
import org.sparkproject.spark_core.protobuf.DescriptorProtos;
import org.sparkproject.spark_core.protobuf.Descriptors;
import org.sparkproject.spark_core.protobuf.DynamicMessage;

/**
 * Values in the wire format of Confluent's Schema Registry: a zero byte, the id of a schema in four bytes, then Avro,
 * Protobuf or JSON. A column of Spark's calls it for each row, in both directions.
 *
 * The driver teaches it ids with `know` and `stamp`, at any time: every epoch's tasks get a copy of what is known when
 * they are sent. A task meets nothing but this object; it never asks the registry. A row with another id fails with
 * Penstock's `SchemaUnknown`.
 *
 * Uses the Avro and the (shaded) Protobuf that Spark ships, and Spark's own way between Avro and rows. Compiled by
 * Janino, which knows neither lambdas nor the inference of type arguments.
 */
public final class WireFormat implements Serializable {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int HEADER = 5;

    private final String kind, schema, message;  // of the reader, or of what is written; a Protobuf message's full name
    private final DataType type;
    private final ConcurrentHashMap known = new ConcurrentHashMap();  // schemas of writers, by id
    private volatile byte[] header;  // of what is written, once its id is known

    private transient HashMap readers;
    private transient AvroReader last;
    private transient int lastId;
    private transient Schema written;
    private transient AvroSerializer serializer;
    private transient GenericDatumWriter writer;
    private transient BinaryEncoder encoder;
    private transient ByteArrayOutputStream buffer;
    private transient ProtobufRows rows;

    private WireFormat(String kind, String schema, String message, DataType type) {
        this.kind = kind;
        this.schema = schema;
        this.message = message;
        this.type = type;
    }

    // In the driver.

    /** Of values that become what `schema` says. */
    public static WireFormat reader(String kind, String schema, String message) throws Exception {
        DataType type = DataTypes.BinaryType;  // the text, which the driver's plan parses
        if (kind.equals("AVRO")) type = SchemaConverters.toSqlType(avro(schema)).dataType();
        if (kind.equals("PROTOBUF")) type = new ProtobufRows(schema, message).type();
        return new WireFormat(kind, schema, message, type);
    }

    /** Of what a column of `frame` has, written as `schema` says; without one, as fits its type. */
    public static WireFormat writer(String kind, String schema, String message, Dataset frame, String column)
            throws Exception {
        DataType type = frame.select(new Column[] {quoted(frame, column)}).schema().fields()[0].dataType();
        if (kind.equals("AVRO")) {
            if (schema == null) schema = SchemaConverters.toAvroType(type, false, "topLevelRecord", "").toString();
            new AvroSerializer(type, avro(schema), false);
        }
        if (kind.equals("PROTOBUF")) new ProtobufRows(schema, message).check((StructType) type, "");
        if (kind.equals("JSON") && schema == null) schema = jsonSchema(type).toString();
        return new WireFormat(kind, schema, message, type);
    }

    public String schema() { return this.schema; }

    /** What `from_json` takes for documents of a JSON Schema. */
    public static String jsonType(String schema) throws IOException {
        JsonNode root = JSON.readTree(schema);
        return typeOf(root, root, 0).json();
    }

    public void know(int id, String schema) { this.known.put(Integer.valueOf(id), schema); }

    public void stamp(int id) throws Exception {
        byte[] indexes = this.kind.equals("PROTOBUF") ? new ProtobufRows(this.schema, this.message).indexes() : new byte[0];
        this.header = ByteBuffer.allocate(HEADER + indexes.length).put((byte) 0).putInt(id).put(indexes).array();
    }

    /** Not deterministic to Spark, although it is: otherwise a filter on a field would read every row once more. */
    public Dataset read(Dataset frame, String column) {
        return frame.withColumn(column, this.invoke("read", quoted(frame, column), this.type, false));
    }

    public Dataset write(Dataset frame, String column) {
        Column value = quoted(frame, column);
        if (this.kind.equals("JSON")) {
            HashMap options = new HashMap();
            options.put("ignoreNullFields", "false");
            options.put("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX");
            value = functions.to_json(value, options).cast(DataTypes.BinaryType);
        }
        return frame.withColumn(column, this.invoke("write", value, DataTypes.BinaryType, true));
    }

    private static Column quoted(Dataset frame, String column) { return frame.col("`" + column + "`"); }

    private Column invoke(String method, Column value, DataType result, boolean deterministic) {
        Expression target = Literal.fromObject(this, new ObjectType(WireFormat.class));
        List arguments = new ArrayList();
        arguments.add(ExpressionUtils.expression(value));
        scala.collection.immutable.Seq seq =
            scala.jdk.javaapi.CollectionConverters.asScala(arguments).toSeq();
        scala.collection.immutable.Seq none =
            scala.jdk.javaapi.CollectionConverters.asScala(new ArrayList()).toSeq();
        return ExpressionUtils.column(new Invoke(target, method, result, seq, none, true, true, deterministic));
    }

    // In tasks.

    public Object read(byte[] value) {
        if (value.length < HEADER || value[0] != 0) {
            throw fault("DataError", "A row of " + value.length + " bytes is not in the wire format of a Schema Registry.",
                "read such a topic without a registry format, or filter such rows where they are written.");
        }
        int id = ByteBuffer.wrap(value, 1, 4).getInt();
        try {
            if (this.kind.equals("AVRO")) {
                if (this.last == null || id != this.lastId) this.last = this.readerOf(id);
                this.lastId = id;
                return this.last.read(value);
            }
            this.writerOf(id);
            if (this.kind.equals("JSON")) return Arrays.copyOfRange(value, HEADER, value.length);
            if (this.rows == null) this.rows = new ProtobufRows(this.schema, this.message);
            return this.rows.read(value);
        } catch (Fault e) {
            throw e;
        } catch (Exception e) {
            throw fault("DataError", "A row that was written with schema " + id + " cannot be read as the source's: " + e,
                "give the source a schema that can read it, or filter such rows where they are written.");
        }
    }

    public byte[] write(Object value) {
        if (this.header == null) {
            throw fault("PreCommitFailed", "A row was to be written before its schema had an id.", "report this.");
        }
        try {
            if (this.buffer == null) this.buffer = new ByteArrayOutputStream(256);
            this.buffer.reset();
            this.buffer.write(this.header, 0, this.header.length);
            if (this.kind.equals("JSON")) {
                byte[] text = (byte[]) value;
                this.buffer.write(text, 0, text.length);
            } else if (this.kind.equals("AVRO")) {
                if (this.serializer == null) {
                    this.written = avro(this.schema);
                    this.serializer = new AvroSerializer(this.type, this.written, false);
                    this.writer = new GenericDatumWriter(this.written);
                }
                this.encoder = EncoderFactory.get().binaryEncoder(this.buffer, this.encoder);
                this.writer.write(this.serializer.serialize(value), this.encoder);
                this.encoder.flush();
            } else {
                if (this.rows == null) this.rows = new ProtobufRows(this.schema, this.message);
                this.rows.write((InternalRow) value, (StructType) this.type, this.buffer);
            }
            return this.buffer.toByteArray();
        } catch (Exception e) {
            throw fault("DataError", "A row does not fit the sink's schema: " + e,
                "see which fields may not be null, or are out of range, and filter or correct such rows.");
        }
    }

    private String writerOf(int id) {
        Object schema = this.known.get(Integer.valueOf(id));
        if (schema != null) return (String) schema;
        throw fault("SchemaUnknown", "A row was written with schema " + id + ", which was not there when the query started.",
            "nothing: the job starts its queries again, and they ask the registry for it.");
    }

    private AvroReader readerOf(int id) {
        if (this.readers == null) this.readers = new HashMap();
        AvroReader reader = (AvroReader) this.readers.get(Integer.valueOf(id));
        if (reader == null) {
            reader = new AvroReader(avro(this.writerOf(id)), avro(this.schema), this.type);
            this.readers.put(Integer.valueOf(id), reader);
        }
        return reader;
    }

    private static Schema avro(String schema) { return new Schema.Parser().parse(schema); }

    /** An error of Penstock's own, as `penstock.spark.executors.fault_in` finds it in Spark's text. */
    private static Fault fault(String name, String happened, String toDo) {
        ObjectNode body = JSON.createObjectNode();
        body.put("error", name);
        body.put("happened", happened.length() > 500 ? happened.substring(0, 500) : happened);
        body.put("safe", "nothing of this epoch is visible.");
        body.put("to_do", toDo);
        return new Fault("penstock-task-error " + body + " end-of-penstock-task-error");
    }

    private static final class Fault extends RuntimeException {
        Fault(String message) { super(message); }
    }

    private static final class AvroReader {
        private final GenericDatumReader reader;
        private final AvroDeserializer rows;
        private BinaryDecoder decoder;
        private Object reused;

        AvroReader(Schema writer, Schema reader, DataType type) {
            this.reader = new GenericDatumReader(writer, reader);
            this.rows = new AvroDeserializer(reader, type, "CORRECTED", false, "", -1);
        }

        Object read(byte[] value) throws IOException {
            this.decoder = DecoderFactory.get().binaryDecoder(value, HEADER, value.length - HEADER, this.decoder);
            this.reused = this.reader.read(this.reused, this.decoder);
            return this.rows.deserialize(this.reused).get();
        }
    }

    // JSON Schema and Spark's types.

    private static DataType typeOf(JsonNode schema, JsonNode root, int depth) {
        if (depth > 30) throw new IllegalArgumentException("a JSON Schema that contains itself has no type in Spark");
        if (schema.has("$ref")) return typeOf((JsonNode) root.at(in(schema, "$ref").asText().substring(1)), root, depth + 1);
        String[] choices = {"oneOf", "anyOf"};
        for (int i = 0; i < choices.length; i++) {
            JsonNode one = onlyOne(in(schema, choices[i]));
            if (one != null) return typeOf(one, root, depth + 1);
        }
        JsonNode given = in(schema, "type");
        if (given.isArray()) given = onlyOne(given);
        String type = given == null ? "" : given.asText();
        if (type.isEmpty() && schema.has("properties")) type = "object";
        String format = in(schema, "format").asText();
        if (type.equals("integer")) return DataTypes.LongType;
        if (type.equals("number")) return DataTypes.DoubleType;
        if (type.equals("boolean")) return DataTypes.BooleanType;
        if (type.equals("string") && format.equals("date-time")) return DataTypes.TimestampType;
        if (type.equals("string") && format.equals("date")) return DataTypes.DateType;
        if (type.equals("array")) return DataTypes.createArrayType(typeOf(in(schema, "items"), root, depth + 1));
        if (type.equals("object") && schema.has("properties")) {
            List fields = new ArrayList();
            for (Iterator i = in(schema, "properties").fields(); i.hasNext();) {
                Map.Entry entry = (Map.Entry) i.next();
                DataType field = typeOf((JsonNode) entry.getValue(), root, depth + 1);
                fields.add(DataTypes.createStructField((String) entry.getKey(), field, true));
            }
            return DataTypes.createStructType(fields);
        }
        if (type.equals("object")) {
            JsonNode values = in(schema, "additionalProperties");
            DataType value = values.isObject() ? typeOf(values, root, depth + 1) : DataTypes.StringType;
            return DataTypes.createMapType(DataTypes.StringType, value);
        }
        return DataTypes.StringType;  // also several types: the text of the value
    }

    private static JsonNode in(JsonNode node, String name) { return (JsonNode) node.path(name); }

    /** The one choice beside null, or null where there is none or there are several. */
    private static JsonNode onlyOne(JsonNode choices) {
        JsonNode found = null;
        for (int i = 0; i < choices.size(); i++) {
            JsonNode choice = (JsonNode) choices.get(i);
            if (choice.asText().equals("null") || in(choice, "type").asText().equals("null")) continue;
            if (found != null) return null;
            found = choice;
        }
        return found;
    }

    private static ObjectNode jsonSchema(DataType type) {
        ObjectNode schema = JSON.createObjectNode();
        String name = type.typeName();
        if (type instanceof StructType) {
            schema.put("type", "object");
            ObjectNode properties = schema.putObject("properties");
            StructField[] fields = ((StructType) type).fields();
            for (int i = 0; i < fields.length; i++) {
                ArrayNode either = properties.putObject(fields[i].name()).putArray("oneOf");
                either.addObject().put("type", "null");
                either.add(jsonSchema(fields[i].dataType()));
            }
        } else if (type instanceof ArrayType) {
            schema.put("type", "array").set("items", jsonSchema(((ArrayType) type).elementType()));
        } else if (type instanceof MapType) {
            schema.put("type", "object").set("additionalProperties", jsonSchema(((MapType) type).valueType()));
        } else if (name.equals("long") || name.equals("integer") || name.equals("short") || name.equals("byte")) {
            schema.put("type", "integer");
        } else if (name.equals("double") || name.equals("float") || name.startsWith("decimal")) {
            schema.put("type", "number");
        } else if (name.equals("boolean")) {
            schema.put("type", "boolean");
        } else {
            schema.put("type", "string");
            if (name.equals("timestamp")) schema.put("format", "date-time");
            if (name.equals("date")) schema.put("format", "date");
        }
        return schema;
    }

    /** Messages of one type and Spark's rows. */
    private static final class ProtobufRows {
        private final Descriptors.Descriptor message;

        /** `schema`: a set of files in base64, each after those that it imports. */
        ProtobufRows(String schema, String message) throws Exception {
            HashMap files = new HashMap();
            Descriptors.Descriptor found = null;
            List protos = DescriptorProtos.FileDescriptorSet.parseFrom(Base64.getDecoder().decode(schema)).getFileList();
            for (Iterator i = protos.iterator(); i.hasNext();) {
                DescriptorProtos.FileDescriptorProto proto = (DescriptorProtos.FileDescriptorProto) i.next();
                Descriptors.FileDescriptor[] imports = new Descriptors.FileDescriptor[proto.getDependencyCount()];
                for (int j = 0; j < imports.length; j++) {
                    imports[j] = (Descriptors.FileDescriptor) files.get(proto.getDependency(j));
                }
                Descriptors.FileDescriptor file = Descriptors.FileDescriptor.buildFrom(proto, imports);
                files.put(proto.getName(), file);
                if (found == null) found = find(file.getMessageTypes(), message);
            }
            if (found == null) throw new IllegalArgumentException("no message " + message);
            this.message = found;
        }

        private static Descriptors.Descriptor find(List messages, String name) {
            for (Iterator i = messages.iterator(); i.hasNext();) {
                Descriptors.Descriptor message = (Descriptors.Descriptor) i.next();
                if (message.getFullName().equals(name)) return message;
                Descriptors.Descriptor inner = find(message.getNestedTypes(), name);
                if (inner != null) return inner;
            }
            return null;
        }

        DataType type() { return typeOf(this.message, 0); }

        /** The message's place in its file: a count and so many numbers, or one zero for the first message. */
        byte[] indexes() {
            ArrayList path = new ArrayList();
            for (Descriptors.Descriptor at = this.message; at != null; at = at.getContainingType()) {
                path.add(0, Integer.valueOf(at.getIndex()));
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            if (path.size() == 1 && ((Integer) path.get(0)).intValue() == 0) {
                out.write(0);
                return out.toByteArray();
            }
            varint(out, path.size());
            for (int i = 0; i < path.size(); i++) varint(out, ((Integer) path.get(i)).intValue());
            return out.toByteArray();
        }

        private static void varint(ByteArrayOutputStream out, int number) {
            int zigzag = number << 1;
            while (zigzag >= 128) {
                out.write(zigzag & 127 | 128);
                zigzag >>>= 7;
            }
            out.write(zigzag);
        }

        InternalRow read(byte[] value) throws IOException {
            byte[] expected = this.indexes();
            int start = HEADER + expected.length;
            boolean first = expected.length == 1;  // which some clients write as one number that is zero
            if (first && value.length > HEADER + 1 && value[HEADER] == 2 && value[HEADER + 1] == 0) start++;
            else if (value.length < start || !Arrays.equals(Arrays.copyOfRange(value, HEADER, start), expected)) {
                throw new IOException("it is another message than " + this.message.getFullName());
            }
            ByteString bytes = ByteString.copyFrom(value, start, value.length - start);
            return row(DynamicMessage.parseFrom(this.message, bytes));
        }

        void write(InternalRow row, StructType type, ByteArrayOutputStream out) throws IOException {
            build(row, type, this.message).writeTo(out);
        }

        private static boolean isTime(Descriptors.Descriptor message) {
            return message.getFullName().equals("google.protobuf.Timestamp");
        }

        private static DataType typeOf(Descriptors.Descriptor message, int depth) {
            if (depth > 30) throw new IllegalArgumentException("a message that contains itself has no type in Spark");
            ArrayList fields = new ArrayList();
            for (Iterator i = message.getFields().iterator(); i.hasNext();) {
                Descriptors.FieldDescriptor field = (Descriptors.FieldDescriptor) i.next();
                fields.add(DataTypes.createStructField(field.getName(), typeOf(field, depth), true));
            }
            return DataTypes.createStructType(fields);
        }

        private static DataType typeOf(Descriptors.FieldDescriptor field, int depth) {
            if (field.isMapField()) {
                DataType key = one(field.getMessageType().findFieldByNumber(1), depth);
                return DataTypes.createMapType(key, one(field.getMessageType().findFieldByNumber(2), depth));
            }
            DataType one = one(field, depth);
            return field.isRepeated() ? DataTypes.createArrayType(one) : one;
        }

        private static DataType one(Descriptors.FieldDescriptor field, int depth) {
            String kind = field.getJavaType().name();
            String name = field.getType().name();
            if (kind.equals("INT")) return name.equals("UINT32") || name.equals("FIXED32") ? DataTypes.LongType : DataTypes.IntegerType;
            if (name.equals("UINT64") || name.equals("FIXED64")) return DataTypes.createDecimalType(20, 0);
            if (kind.equals("LONG")) return DataTypes.LongType;
            if (kind.equals("FLOAT")) return DataTypes.FloatType;
            if (kind.equals("DOUBLE")) return DataTypes.DoubleType;
            if (kind.equals("BOOLEAN")) return DataTypes.BooleanType;
            if (kind.equals("BYTE_STRING")) return DataTypes.BinaryType;
            if (!kind.equals("MESSAGE")) return DataTypes.StringType;
            return isTime(field.getMessageType()) ? DataTypes.TimestampType : typeOf(field.getMessageType(), depth + 1);
        }

        /** Every column has a field of its type; a field without a column keeps its default. */
        void check(StructType type, String path) { check(type, (StructType) this.type(), path); }

        private static void check(StructType type, StructType known, String path) {
            StructField[] fields = type.fields();
            for (int i = 0; i < fields.length; i++) {
                String name = path + fields[i].name();
                if (!Arrays.asList(known.fieldNames()).contains(fields[i].name())) {
                    throw new IllegalArgumentException("the message has no field " + name);
                }
                DataType given = fields[i].dataType();
                DataType wanted = known.apply(fields[i].name()).dataType();
                if (given instanceof StructType && wanted instanceof StructType) {
                    check((StructType) given, (StructType) wanted, name + ".");
                } else if (!given.catalogString().equals(wanted.catalogString())) {
                    throw new IllegalArgumentException(
                        "field " + name + " is " + wanted.catalogString() + ", the column " + given.catalogString());
                }
            }
        }

        private static InternalRow row(DynamicMessage message) {
            List fields = message.getDescriptorForType().getFields();
            Object[] values = new Object[fields.size()];
            for (int i = 0; i < values.length; i++) {
                Descriptors.FieldDescriptor field = (Descriptors.FieldDescriptor) fields.get(i);
                if (field.isRepeated()) values[i] = many(field, (List) message.getField(field));
                else if (!field.hasPresence() || message.hasField(field)) values[i] = value(field, message.getField(field));
            }
            return new GenericInternalRow(values);
        }

        private static Object many(Descriptors.FieldDescriptor field, List given) {
            Object[] values = new Object[given.size()];
            if (!field.isMapField()) {
                for (int i = 0; i < values.length; i++) values[i] = value(field, given.get(i));
                return new GenericArrayData(values);
            }
            HashMap entries = new HashMap();  // a key that comes twice has its last value
            Descriptors.FieldDescriptor key = field.getMessageType().findFieldByNumber(1);
            Descriptors.FieldDescriptor held = field.getMessageType().findFieldByNumber(2);
            for (int i = 0; i < values.length; i++) {
                DynamicMessage entry = (DynamicMessage) given.get(i);
                entries.put(value(key, entry.getField(key)), value(held, entry.getField(held)));
            }
            return new ArrayBasedMapData(
                new GenericArrayData(entries.keySet().toArray()), new GenericArrayData(entries.values().toArray()));
        }

        private static Object value(Descriptors.FieldDescriptor field, Object value) {
            String kind = field.getJavaType().name();
            String name = field.getType().name();
            if (kind.equals("STRING")) return UTF8String.fromString((String) value);
            if (kind.equals("BYTE_STRING")) return ((ByteString) value).toByteArray();
            if (kind.equals("ENUM")) return UTF8String.fromString(((Descriptors.EnumValueDescriptor) value).getName());
            if (name.equals("UINT32") || name.equals("FIXED32")) return Long.valueOf(((Integer) value).longValue() & 0xffffffffL);
            if (name.equals("UINT64") || name.equals("FIXED64")) {
                return Decimal.apply(new BigDecimal(new BigInteger(Long.toUnsignedString(((Long) value).longValue()))), 20, 0);
            }
            if (!kind.equals("MESSAGE")) return value;
            DynamicMessage message = (DynamicMessage) value;
            if (!isTime(field.getMessageType())) return row(message);
            long seconds = ((Long) message.getField(field.getMessageType().findFieldByNumber(1))).longValue();
            int nanos = ((Integer) message.getField(field.getMessageType().findFieldByNumber(2))).intValue();
            return Long.valueOf(seconds * 1000000L + nanos / 1000);
        }

        private static DynamicMessage build(InternalRow row, StructType type, Descriptors.Descriptor message) throws IOException {
            DynamicMessage.Builder builder = DynamicMessage.newBuilder(message);
            StructField[] fields = type.fields();
            for (int i = 0; i < fields.length; i++) {
                if (row.isNullAt(i)) continue;
                Descriptors.FieldDescriptor field = message.findFieldByName(fields[i].name());
                DataType given = fields[i].dataType();
                if (field.isMapField()) {
                    MapData map = row.getMap(i);
                    Descriptors.FieldDescriptor key = field.getMessageType().findFieldByNumber(1);
                    Descriptors.FieldDescriptor held = field.getMessageType().findFieldByNumber(2);
                    for (int j = 0; j < map.numElements(); j++) {
                        DynamicMessage.Builder entry = DynamicMessage.newBuilder(field.getMessageType());
                        entry.setField(key, of(key, map.keyArray(), j, ((MapType) given).keyType()));
                        entry.setField(held, of(held, map.valueArray(), j, ((MapType) given).valueType()));
                        builder.addRepeatedField(field, entry.build());
                    }
                } else if (field.isRepeated()) {
                    ArrayData array = row.getArray(i);
                    for (int j = 0; j < array.numElements(); j++) {
                        builder.addRepeatedField(field, of(field, array, j, ((ArrayType) given).elementType()));
                    }
                } else {
                    builder.setField(field, of(field, row, i, given));
                }
            }
            return builder.build();
        }

        private static Object of(Descriptors.FieldDescriptor field, SpecializedGetters from, int at, DataType type) throws IOException {
            if (from.isNullAt(at)) throw new IOException("null in " + field.getFullName());
            String kind = field.getJavaType().name();
            if (kind.equals("STRING")) return from.getUTF8String(at).toString();
            if (kind.equals("BYTE_STRING")) return ByteString.copyFrom(from.getBinary(at));
            if (kind.equals("BOOLEAN")) return Boolean.valueOf(from.getBoolean(at));
            if (kind.equals("FLOAT")) return Float.valueOf(from.getFloat(at));
            if (kind.equals("DOUBLE")) return Double.valueOf(from.getDouble(at));
            if (kind.equals("ENUM")) {
                String name = from.getUTF8String(at).toString();
                Object found = field.getEnumType().findValueByName(name);
                if (found == null) throw new IOException(field.getEnumType().getFullName() + " has no value " + name);
                return found;
            }
            if (kind.equals("INT")) {
                if (!(type.equals(DataTypes.LongType))) return Integer.valueOf(from.getInt(at));
                long number = from.getLong(at);
                if (number < 0 || number > 0xffffffffL) throw new IOException(number + " in " + field.getFullName());
                return Integer.valueOf((int) number);
            }
            if (kind.equals("LONG") && type.equals(DataTypes.LongType)) return Long.valueOf(from.getLong(at));
            if (kind.equals("LONG")) {
                return Long.valueOf(Long.parseUnsignedLong(from.getDecimal(at, 20, 0).toBigDecimal().bigDecimal().toPlainString()));
            }
            if (!isTime(field.getMessageType())) {
                StructType struct = (StructType) type;
                return build(from.getStruct(at, struct.size()), struct, field.getMessageType());
            }
            long micros = from.getLong(at);
            DynamicMessage.Builder time = DynamicMessage.newBuilder(field.getMessageType());
            time.setField(field.getMessageType().findFieldByNumber(1), Long.valueOf(Math.floorDiv(micros, 1000000L)));
            int nanos = (int) Math.floorMod(micros, 1000000L) * 1000;
            time.setField(field.getMessageType().findFieldByNumber(2), Integer.valueOf(nanos));
            return time.build();
        }
    }
}

package io.aqueduct.flink;

import java.io.IOException;
import java.util.Arrays;
import java.util.stream.Stream;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.VarBinaryType;

/** Makes a binary row of a row: of the row itself, or of a format's payload and the metadata behind the columns. */
final class RowEncoder {

    private final RowDataSerializer serializer;

    /** Null for a table without format, as what follows. */
    private final SerializationSchema<RowData> format;

    /** Null if a row has no metadata, so that the format takes it as it is. */
    private final RowData.FieldGetter[] columns;

    private final RowData.FieldGetter[] metadata;

    RowEncoder(LogicalType[] fields) {
        serializer = new RowDataSerializer(fields);
        format = null;
        columns = null;
        metadata = null;
    }

    RowEncoder(LogicalType[] fields, int columns, SerializationSchema<RowData> format) {
        LogicalType[] behind = Arrays.copyOfRange(fields, columns, fields.length);
        LogicalType payload = new VarBinaryType(false, VarBinaryType.MAX_LENGTH);
        this.serializer = new RowDataSerializer(
                Stream.concat(Stream.of(payload), Arrays.stream(behind)).toArray(LogicalType[]::new));
        this.format = format;
        this.columns = behind.length == 0 ? null : getters(fields, 0, columns);
        this.metadata = getters(fields, columns, fields.length);
    }

    /** The format, ready for use. */
    static SerializationSchema<RowData> opened(SerializationSchema<RowData> format, WriterInitContext context)
            throws IOException {
        try {
            format.open(context.asSerializationSchemaInitializationContext());
            return format;
        } catch (Exception error) {
            throw new IOException("the format of the table cannot be opened", error);
        }
    }

    private static RowData.FieldGetter[] getters(LogicalType[] fields, int from, int to) {
        RowData.FieldGetter[] getters = new RowData.FieldGetter[to - from];
        for (int at = from; at < to; at++) {
            getters[at - from] = RowData.createFieldGetter(fields[at], at);
        }
        return getters;
    }

    /** The result is valid until the next call. */
    BinaryRowData encode(RowData row) throws IOException {
        if (format == null) {
            return serializer.toBinaryRow(row);
        }
        byte[] payload = payload(columns == null ? row : fields(row, columns, new GenericRowData(
                row.getRowKind(), columns.length), 0));
        if (payload == null) {
            throw new IOException("the format of the table made no payload of a row of kind "
                    + row.getRowKind().shortString() + "; filter such rows out in the query");
        }
        GenericRowData whole = new GenericRowData(row.getRowKind(), 1 + metadata.length);
        whole.setField(0, payload);
        return serializer.toBinaryRow(fields(row, metadata, whole, 1));
    }

    private byte[] payload(RowData row) throws IOException {
        try {
            return format.serialize(row);
        } catch (RuntimeException error) {
            // Not kept as the cause: its message quotes the row.
            throw new IOException("the format of the table made no payload of a row of kind "
                    + row.getRowKind().shortString() + ": " + PayloadDecoder.reason(error));
        }
    }

    private static GenericRowData fields(RowData row, RowData.FieldGetter[] getters, GenericRowData to, int at) {
        for (int field = 0; field < getters.length; field++) {
            to.setField(at + field, getters[field].getFieldOrNull(row));
        }
        return to;
    }
}

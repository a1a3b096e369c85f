package io.aqueduct.flink;

import java.io.IOException;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.logical.LogicalType;

/** A sink: the bytes of a table and its plan, and how its rows become the library's. */
public final class AqueductSink implements Sink<RowData> {

    private static final long serialVersionUID = 1L;

    private final byte[] table;

    /** Types of all fields of a row: physical columns, then metadata. */
    private final LogicalType[] fields;

    private final int columns;

    /** Null unless a format makes payloads of the physical columns. */
    private final SerializationSchema<RowData> format;

    AqueductSink(byte[] table, LogicalType[] fields, int columns, SerializationSchema<RowData> format) {
        this.table = table;
        this.fields = fields;
        this.columns = columns;
        this.format = format;
    }

    @Override
    public SinkWriter<RowData> createWriter(WriterInitContext context) throws IOException {
        RowEncoder encoder = format == null
                ? new RowEncoder(fields)
                : new RowEncoder(fields, columns, RowEncoder.opened(format, context));
        return new AqueductWriter(table, encoder, context);
    }
}

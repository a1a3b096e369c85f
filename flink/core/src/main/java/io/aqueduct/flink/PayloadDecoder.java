package io.aqueduct.flink;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.utils.JoinedRowData;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.util.Collector;
import org.apache.flink.util.UserCodeClassLoader;

/** Makes rows of a payload by a format of Flink's, each with the metadata that came beside the payload. */
final class PayloadDecoder implements Collector<RowData> {

    /** Causes of a failure that are named, at most. */
    private static final int CAUSES = 5;

    private final DeserializationSchema<RowData> format;
    private final RowData.FieldGetter[] metadata;
    private final List<RowData> rows = new ArrayList<>();

    PayloadDecoder(DeserializationSchema<RowData> format, LogicalType[] metadata) {
        this.format = format;
        this.metadata = new RowData.FieldGetter[metadata.length];
        for (int at = 0; at < metadata.length; at++) {
            this.metadata[at] = RowData.createFieldGetter(metadata[at], 1 + at);
        }
    }

    void open(SourceReaderContext context) {
        try {
            format.open(new DeserializationSchema.InitializationContext() {
                @Override
                public MetricGroup getMetricGroup() {
                    return context.metricGroup().addGroup("deserializer");
                }

                @Override
                public UserCodeClassLoader getUserCodeClassLoader() {
                    return context.getUserCodeClassLoader();
                }
            });
        } catch (Exception error) {
            throw new IllegalStateException("the format of the table cannot be opened", error);
        }
    }

    /**
     * The rows of one message; the list is valid until the next call. All or none: a format that fails after some rows gives
     * none.
     */
    List<RowData> decode(RowData message) throws Exception {
        rows.clear();
        format.deserialize(message.getBinary(0), this);
        if (metadata.length > 0) {
            GenericRowData behind = new GenericRowData(metadata.length);
            for (int at = 0; at < metadata.length; at++) {
                behind.setField(at, metadata[at].getFieldOrNull(message));
            }
            rows.replaceAll(row -> new JoinedRowData(row.getRowKind(), row, behind));
        }
        return rows;
    }

    @Override
    public void collect(RowData row) {
        if (row != null) {
            rows.add(row);
        }
    }

    @Override
    public void close() {}

    /** What went wrong, by the names of exceptions: their messages quote payloads. */
    static String reason(Throwable error) {
        StringBuilder reason = new StringBuilder(error.getClass().getName());
        Throwable cause = error.getCause();
        for (int depth = 1; cause != null && depth < CAUSES; depth++, cause = cause.getCause()) {
            reason.append(", caused by ").append(cause.getClass().getName());
        }
        return reason.toString();
    }
}

package io.aqueduct.flink;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;

/**
 * A format that is asked for all columns, whatever it says of projection.
 *
 * <p>A payload of {@code avro} has no names: it can be read with the columns it was written with and with no others, but the
 * format takes a part of them, and gives an error or other values. So only formats are asked for a part of which it is known
 * that they find columns by name, or go through all.
 */
final class WholeFormat implements DecodingFormat<DeserializationSchema<RowData>> {

    private static final Set<String> PROJECTING = Set.of(
            "json",
            "csv",
            "debezium-json",
            "canal-json",
            "maxwell-json",
            "ogg-json",
            "avro-confluent",
            "debezium-avro-confluent",
            "protobuf");

    private final DecodingFormat<DeserializationSchema<RowData>> format;

    private WholeFormat(DecodingFormat<DeserializationSchema<RowData>> format) {
        this.format = format;
    }

    /** The format of this name, as it may be used. */
    static DecodingFormat<DeserializationSchema<RowData>> of(
            String name, DecodingFormat<DeserializationSchema<RowData>> format) {
        return PROJECTING.contains(name) ? format : new WholeFormat(format);
    }

    @Override
    public DeserializationSchema<RowData> createRuntimeDecoder(DynamicTableSource.Context context, DataType columns) {
        return format.createRuntimeDecoder(context, columns);
    }

    @Override
    public ChangelogMode getChangelogMode() {
        return format.getChangelogMode();
    }

    @Override
    public Map<String, DataType> listReadableMetadata() {
        return format.listReadableMetadata();
    }

    @Override
    public void applyReadableMetadata(List<String> keys) {
        format.applyReadableMetadata(keys);
    }
}

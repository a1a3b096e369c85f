package io.aqueduct.flink;

import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamSink;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.ProviderContext;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DataStreamSinkProvider;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.sink.abilities.SupportsWritingMetadata;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.RowKind;

/** A table to write to, as the planner sees it. */
final class AqueductTableSink implements DynamicTableSink, SupportsWritingMetadata {

    private final TableDescription table;
    private final TableResource resource;
    private final DataType physical;

    /** Null unless a format makes payloads of the physical columns. */
    private final EncodingFormat<SerializationSchema<RowData>> format;

    private List<String> metadata = List.of();

    /** Physical columns, then metadata. */
    private DataType consumed;

    private Set<RowKind> kinds = EnumSet.of(RowKind.INSERT);

    AqueductTableSink(
            TableDescription table,
            TableResource resource,
            DataType physical,
            EncodingFormat<SerializationSchema<RowData>> format) {
        this.table = table;
        this.resource = resource;
        this.physical = physical;
        this.consumed = physical;
        this.format = format;
    }

    @Override
    public ChangelogMode getChangelogMode(ChangelogMode requested) {
        kinds = requested.getContainedKinds();
        return Planning.changelog(new Plan().accepts);
    }

    @Override
    public Map<String, DataType> listWritableMetadata() {
        return resource.writable();
    }

    @Override
    public void applyWritableMetadata(List<String> keys, DataType consumedType) {
        metadata = keys;
        consumed = consumedType;
    }

    @Override
    public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
        Plan plan = new Plan();
        List<LogicalType> fields = ((RowType) consumed.getLogicalType()).getChildren();
        int columns = DataType.getFieldCount(physical);
        AqueductSink sink = new AqueductSink(
                plan.bytes,
                fields.toArray(LogicalType[]::new),
                columns,
                format == null ? null : format.createRuntimeEncoder(context, physical));
        if (plan.partitionBy.length == 0 || Integer.valueOf(1).equals(plan.parallelism)) {
            return SinkV2Provider.of(sink, plan.parallelism);
        }
        int[] keys = new int[plan.partitionBy.length];
        LogicalType[] types = new LogicalType[keys.length];
        for (int at = 0; at < keys.length; at++) {
            // The library's rows have one payload where ours have the physical columns.
            keys[at] = format == null ? plan.partitionBy[at] : plan.partitionBy[at] - 1 + columns;
            types[at] = fields.get(keys[at]);
        }
        return new Partitioned(table.name(), sink, plan.parallelism, new KeySpread(keys, types));
    }

    @Override
    public DynamicTableSink copy() {
        AqueductTableSink copy = new AqueductTableSink(table, resource, physical, format);
        copy.metadata = metadata;
        copy.consumed = consumed;
        copy.kinds = kinds;
        return copy;
    }

    @Override
    public String asSummaryString() {
        return table.summary();
    }

    /** What the library says to what is known of the query. */
    private final class Plan {

        private final byte[] bytes = table.sink(kinds, metadata, null);
        private final Set<RowKind> accepts;
        private final Integer parallelism;
        private final int[] partitionBy;

        Plan() {
            Wire.Reader answer = table.plan(bytes);
            accepts = Planning.kinds(answer);
            parallelism = Planning.parallelism(answer);
            partitionBy = new int[answer.count(4)];
            for (int at = 0; at < partitionBy.length; at++) {
                partitionBy[at] = answer.u32();
            }
            answer.finish();
        }
    }

    /** Sends rows of equal keys to one writer. */
    private static final class Partitioned implements DataStreamSinkProvider {

        private final String name;
        private final AqueductSink sink;
        private final Integer parallelism;
        private final KeySpread spread;

        Partitioned(String name, AqueductSink sink, Integer parallelism, KeySpread spread) {
            this.name = name;
            this.sink = sink;
            this.parallelism = parallelism;
            this.spread = spread;
        }

        @Override
        public DataStreamSink<?> consumeDataStream(ProviderContext context, DataStream<RowData> rows) {
            DataStreamSink<RowData> end = rows.partitionCustom(spread, spread).sinkTo(sink).name(name);
            context.generateUid("sink").ifPresent(end::uid);
            if (parallelism != null) {
                end.setParallelism(parallelism);
            }
            return end;
        }

        @Override
        public Optional<Integer> getParallelism() {
            return Optional.ofNullable(parallelism);
        }
    }
}

package io.aqueduct.flink;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.Projection;
import org.apache.flink.table.connector.ProviderContext;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.format.ProjectableDecodingFormat;
import org.apache.flink.table.connector.source.DataStreamScanProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.abilities.SupportsFilterPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsLimitPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsReadingMetadata;
import org.apache.flink.table.connector.source.abilities.SupportsWatermarkPushDown;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.utils.ProjectedRowData;
import org.apache.flink.table.expressions.ResolvedExpression;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/** A table to read, as the planner sees it. */
class AqueductTableSource
        implements ScanTableSource,
                SupportsReadingMetadata,
                SupportsProjectionPushDown,
                SupportsFilterPushDown,
                SupportsLimitPushDown,
                SupportsWatermarkPushDown {

    protected final TableDescription table;
    protected final TableResource resource;
    protected final DataType physical;

    /** Null unless a format makes the physical columns of payloads. */
    protected final DecodingFormat<DeserializationSchema<RowData>> format;

    /** The fields wanted, by their paths in the physical columns; null for all of them. */
    protected int[][] projection;

    private List<String> metadata = List.of();
    private List<String> formatMetadata = List.of();

    /** Physical fields wanted, then metadata of the format, then ours. */
    private DataType produced;

    private List<byte[]> filters = List.of();
    private Long limit;
    private WatermarkStrategy<RowData> watermarks;

    AqueductTableSource(
            TableDescription table,
            TableResource resource,
            DataType physical,
            DecodingFormat<DeserializationSchema<RowData>> format) {
        this.table = table;
        this.resource = resource;
        this.physical = physical;
        this.produced = physical;
        this.format = format;
    }

    /** Has the library look at the statement before anything else does. */
    void check() {
        new Plan();
        if (format != null) {
            for (String key : format.listReadableMetadata().keySet()) {
                if (resource.readable().containsKey(key)) {
                    throw new ValidationException("The format has metadata '" + key + "', and so has the connector '"
                            + resource.connector() + "': read the table with another format");
                }
            }
        }
    }

    @Override
    public ChangelogMode getChangelogMode() {
        return format == null ? Planning.changelog(new Plan().kinds) : format.getChangelogMode();
    }

    @Override
    public Map<String, DataType> listReadableMetadata() {
        // The format's first: their order here is their order in the rows.
        Map<String, DataType> all = new LinkedHashMap<>();
        if (format != null) {
            all.putAll(format.listReadableMetadata());
        }
        resource.readable().forEach(all::putIfAbsent);
        return all;
    }

    @Override
    public void applyReadableMetadata(List<String> keys, DataType producedType) {
        Map<String, DataType> own = resource.readable();
        metadata = keys.stream().filter(own::containsKey).collect(Collectors.toList());
        formatMetadata = keys.stream().filter(key -> !own.containsKey(key)).collect(Collectors.toList());
        produced = producedType;
    }

    @Override
    public boolean supportsNestedProjection() {
        return format == null;
    }

    @Override
    public void applyProjection(int[][] fields, DataType producedType) {
        projection = fields;
        produced = producedType;
    }

    @Override
    public Result applyFilters(List<ResolvedExpression> conditions) {
        List<ResolvedExpression> accepted = new ArrayList<>();
        List<ResolvedExpression> remaining = new ArrayList<>();
        List<byte[]> used = new ArrayList<>();
        List<List<byte[]>> translated =
                conditions.stream().map(condition -> Filters.translate(condition, table)).collect(Collectors.toList());
        Wire.Reader uses = table.plan(
                table.filters(translated.stream().flatMap(List::stream).collect(Collectors.toList())));
        uses.count(1);
        for (int at = 0; at < conditions.size(); at++) {
            // A condition may have become several; it is applied exactly if each is.
            boolean exact = !translated.get(at).isEmpty();
            boolean useful = false;
            for (byte[] filter : translated.get(at)) {
                int use = uses.u8();
                exact &= use == 0;
                if (use != 2) {
                    useful = true;
                    used.add(filter);
                }
            }
            if (useful) {
                accepted.add(conditions.get(at));
            }
            if (!exact) {
                remaining.add(conditions.get(at));
            }
        }
        uses.finish();
        filters = used;
        return Result.of(accepted, remaining);
    }

    @Override
    public void applyLimit(long rows) {
        limit = rows;
    }

    @Override
    public void applyWatermark(WatermarkStrategy<RowData> strategy) {
        watermarks = strategy;
    }

    @Override
    public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
        Plan plan = new Plan();
        TypeInformation<RowData> type = context.createTypeInformation(produced);
        List<LogicalType> fields = ((RowType) produced.getLogicalType()).getChildren();
        LogicalType[] behind = fields.subList(fields.size() - metadata.size(), fields.size()).toArray(LogicalType[]::new);
        AqueductSource source = format == null
                ? new AqueductSource(plan.bytes, plan.bounded, type, fields.size(), null, behind)
                : new AqueductSource(plan.bytes, plan.bounded, type, 1 + behind.length, decoder(context), behind);
        return new Scan(table.name(), source, plan.parallelism, watermarks == null ? WatermarkStrategy.noWatermarks() : watermarks);
    }

    private DeserializationSchema<RowData> decoder(ScanContext context) {
        // Copies of a table share the format, and the planner may have asked for more before: what counts is told at the end,
        // an empty list too. A format without metadata refuses even that.
        if (!format.listReadableMetadata().isEmpty()) {
            format.applyReadableMetadata(formatMetadata);
        }
        if (projection == null) {
            return format.createRuntimeDecoder(context, physical);
        }
        if (format instanceof ProjectableDecodingFormat) {
            return ((ProjectableDecodingFormat<DeserializationSchema<RowData>>) format)
                    .createRuntimeDecoder(context, physical, projection);
        }
        // A format that must know all columns reads them all; the source leaves out what is not wanted. The metadata of the
        // format is behind all columns.
        int columns = DataType.getFieldCount(physical);
        int[] fields = IntStream.concat(
                        Arrays.stream(projection).mapToInt(path -> path[0]),
                        IntStream.range(columns, columns + formatMetadata.size()))
                .toArray();
        return new ProjectingSchema(
                format.createRuntimeDecoder(context, physical),
                fields,
                context.createTypeInformation(Projection.range(0, fields.length).project(produced)));
    }

    @Override
    public DynamicTableSource copy() {
        return copyTo(new AqueductTableSource(table, resource, physical, format));
    }

    protected AqueductTableSource copyTo(AqueductTableSource copy) {
        copy.projection = projection;
        copy.metadata = metadata;
        copy.formatMetadata = formatMetadata;
        copy.produced = produced;
        copy.filters = filters;
        copy.limit = limit;
        copy.watermarks = watermarks;
        return copy;
    }

    @Override
    public String asSummaryString() {
        return table.summary();
    }

    /** What the library says to what is known of the query. */
    private final class Plan {

        /** A format codes the physical columns, so the library reads payloads whole. */
        private final byte[] bytes = table.scan(format == null ? projection : null, metadata, filters, limit);

        private final boolean bounded;
        private final Set<RowKind> kinds;
        private final Integer parallelism;

        Plan() {
            Wire.Reader answer = table.plan(bytes);
            bounded = answer.u8() == 1;
            kinds = Planning.kinds(answer);
            parallelism = Planning.parallelism(answer);
            answer.finish();
        }
    }

    /** A format's decoder of which some fields are used. */
    private static final class ProjectingSchema implements DeserializationSchema<RowData> {

        private static final long serialVersionUID = 1L;

        private final DeserializationSchema<RowData> whole;
        private final int[] fields;
        private final TypeInformation<RowData> type;

        ProjectingSchema(DeserializationSchema<RowData> whole, int[] fields, TypeInformation<RowData> type) {
            this.whole = whole;
            this.fields = fields;
            this.type = type;
        }

        @Override
        public void open(InitializationContext context) throws Exception {
            whole.open(context);
        }

        @Override
        public RowData deserialize(byte[] payload) {
            throw new UnsupportedOperationException("payloads are decoded into a collector");
        }

        @Override
        public void deserialize(byte[] payload, Collector<RowData> out) throws IOException {
            whole.deserialize(payload, new Collector<>() {
                @Override
                public void collect(RowData row) {
                    out.collect(ProjectedRowData.from(fields).replaceRow(row));
                }

                @Override
                public void close() {}
            });
        }

        @Override
        public boolean isEndOfStream(RowData row) {
            return false;
        }

        @Override
        public TypeInformation<RowData> getProducedType() {
            return type;
        }
    }

    /** The source with its watermarks applied to each split. */
    private static final class Scan implements DataStreamScanProvider {

        /** Sources whose watermarks are aligned with each other are told apart by it. */
        private final String name;

        private final AqueductSource source;
        private final Integer parallelism;
        private final WatermarkStrategy<RowData> watermarks;

        Scan(String name, AqueductSource source, Integer parallelism, WatermarkStrategy<RowData> watermarks) {
            this.name = name;
            this.source = source;
            this.parallelism = parallelism;
            this.watermarks = watermarks;
        }

        @Override
        public DataStream<RowData> produceDataStream(ProviderContext context, StreamExecutionEnvironment environment) {
            DataStreamSource<RowData> rows = environment.fromSource(source, watermarks, name);
            context.generateUid("source").ifPresent(rows::uid);
            if (parallelism != null) {
                rows.setParallelism(parallelism);
            }
            return rows;
        }

        @Override
        public boolean isBounded() {
            return source.getBoundedness() == Boundedness.BOUNDED;
        }

        @Override
        public Optional<Integer> getParallelism() {
            return Optional.ofNullable(parallelism);
        }
    }
}

package io.aqueduct.flink;

import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import org.apache.flink.api.common.TaskInfo;
import org.apache.flink.api.common.operators.MailboxExecutor;
import org.apache.flink.api.common.operators.ProcessingTimeService;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.catalog.ObjectIdentifier;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/**
 * What a row costs on its way into the library: the writer of the connector, called in a loop as a task calls it, beside a
 * writer that does nothing. The library drops the rows unread. Processor time of the whole process counts.
 */
public final class Crossing {

    private static final ResolvedSchema SCHEMA = ResolvedSchema.of(
            Column.physical("id", DataTypes.BIGINT()),
            Column.physical("n", DataTypes.INT()),
            Column.physical("text", DataTypes.STRING()),
            Column.physical("x", DataTypes.DOUBLE()),
            Column.physical("at", DataTypes.TIMESTAMP(3)),
            Column.physical("price", DataTypes.DECIMAL(18, 2)));

    /** Distinct rows, so that not always the same few lines of the cache are read. */
    private static final int ROWS = 256;

    private static final SinkWriter.Context NO_TIME = new SinkWriter.Context() {
        @Override
        public long currentWatermark() {
            return Long.MIN_VALUE;
        }

        @Override
        public Long timestamp() {
            return null;
        }
    };

    private Crossing() {}

    /** Prints for each size in bytes the median nanoseconds of a row, over the writer that does nothing. */
    public static void main(String[] args) throws Exception {
        int repeat = Integer.parseInt(args[0]);
        int millions = Integer.parseInt(args[1]);
        for (int bytes : new int[] {100, 1024}) {
            long rows = millions * 1_000_000L / (bytes > 500 ? 4 : 1);
            BinaryRowData[] binary = binary(bytes);
            RowData[] generic = Arrays.stream(generic(bytes)).toArray(RowData[]::new);
            SinkWriter<RowData> nothing = new NoOp();
            SinkWriter<RowData> ours = new AqueductWriter(table(), new RowEncoder(types()), context());
            double[] noOp = new double[repeat];
            double[] crossing = new double[repeat];
            double[] encoding = new double[repeat];
            // One round to warm up.
            for (int round = -1; round < repeat; round++) {
                int at = Math.max(round, 0);
                noOp[at] = run(nothing, binary, rows);
                crossing[at] = run(ours, binary, rows);
                encoding[at] = run(ours, generic, rows / 4);
            }
            ours.close();
            double base = median(noOp);
            System.out.printf(
                    "%d %.1f %.1f %.1f%n",
                    binary[0].getSizeInBytes(), base, median(crossing) - base, median(encoding) - base);
        }
    }

    private static double run(SinkWriter<RowData> writer, RowData[] rows, long count) throws Exception {
        long before = processorTime();
        for (long at = 0; at < count; at++) {
            writer.write(rows[(int) (at % ROWS)], NO_TIME);
        }
        writer.flush(false);
        return (processorTime() - before) / (double) count;
    }

    private static long processorTime() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    private static double median(double[] figures) {
        double[] sorted = figures.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length / 2];
    }

    private static LogicalType[] types() {
        return SCHEMA.getColumnDataTypes().stream()
                .map(type -> type.getLogicalType())
                .toArray(LogicalType[]::new);
    }

    private static GenericRowData[] generic(int bytes) {
        // 8 bytes of header, 8 a field; the text lies behind them.
        String text = "x".repeat(bytes - 8 - 6 * 8);
        GenericRowData[] rows = new GenericRowData[ROWS];
        for (int at = 0; at < ROWS; at++) {
            rows[at] = GenericRowData.of(
                    (long) at,
                    at,
                    StringData.fromString(text),
                    at / 3.0,
                    TimestampData.fromEpochMillis(at),
                    DecimalData.fromBigDecimal(BigDecimal.valueOf(at, 2), 18, 2));
        }
        return rows;
    }

    private static BinaryRowData[] binary(int bytes) {
        RowDataSerializer serializer = new RowDataSerializer(types());
        return Arrays.stream(generic(bytes))
                .map(row -> serializer.toBinaryRow(row).copy())
                .toArray(BinaryRowData[]::new);
    }

    private static byte[] table() {
        return new TableDescription(
                        "aqueduct-probe",
                        ObjectIdentifier.of("default_catalog", "default_database", "rows"),
                        SCHEMA,
                        Map.of("store", "none", "sink.discards", "true"))
                .sink(EnumSet.of(RowKind.INSERT), List.of(), null);
    }

    /** As much of a task as the writer sees, where it never has to wait. */
    private static WriterInitContext context() {
        TaskInfo task = proxy(TaskInfo.class, (method, arguments) -> method.equals("getIndexOfThisSubtask") ? 0 : 1);
        MailboxExecutor mailbox = proxy(MailboxExecutor.class, (method, arguments) -> null);
        ProcessingTimeService time = proxy(
                ProcessingTimeService.class,
                (method, arguments) -> method.equals("getCurrentProcessingTime") ? System.currentTimeMillis() : null);
        Map<String, Object> parts = Map.of(
                "getMailboxExecutor", mailbox,
                "getProcessingTimeService", time,
                "getTaskInfo", task,
                "metricGroup", UnregisteredMetricsGroup.createSinkWriterMetricGroup());
        return proxy(WriterInitContext.class, (method, arguments) -> parts.get(method));
    }

    private static <T> T proxy(Class<T> type, BiFunction<String, Object[], Object> answer) {
        return type.cast(Proxy.newProxyInstance(
                type.getClassLoader(),
                new Class<?>[] {type},
                (self, method, arguments) -> answer(method, arguments, answer)));
    }

    private static Object answer(Method method, Object[] arguments, BiFunction<String, Object[], Object> answer) {
        Object answered = answer.apply(method.getName(), arguments);
        return answered == null && method.getReturnType() == boolean.class ? Boolean.FALSE : answered;
    }

    private static final class NoOp implements SinkWriter<RowData> {

        @Override
        public void write(RowData row, Context context) {}

        @Override
        public void flush(boolean endOfInput) {}

        @Override
        public void close() {}
    }
}

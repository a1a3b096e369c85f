package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.Period;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.data.conversion.DataStructureConverter;
import org.apache.flink.table.data.conversion.DataStructureConverters;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Rows go from Flink to the library, which reads and writes them anew, and back; they must mean the same. */
class RoundTripTest {

    private static final DataType INNER = DataTypes.ROW(
            DataTypes.FIELD("name", DataTypes.STRING()), DataTypes.FIELD("price", DataTypes.DECIMAL(38, 10)));

    private static final DataType ALL = DataTypes.ROW(
            DataTypes.FIELD("bool", DataTypes.BOOLEAN()),
            DataTypes.FIELD("i8", DataTypes.TINYINT()),
            DataTypes.FIELD("i16", DataTypes.SMALLINT()),
            DataTypes.FIELD("i32", DataTypes.INT()),
            DataTypes.FIELD("i64", DataTypes.BIGINT()),
            DataTypes.FIELD("f32", DataTypes.FLOAT()),
            DataTypes.FIELD("f64", DataTypes.DOUBLE()),
            DataTypes.FIELD("fixed", DataTypes.CHAR(3)),
            DataTypes.FIELD("text", DataTypes.STRING()),
            DataTypes.FIELD("bytes", DataTypes.BYTES()),
            DataTypes.FIELD("small", DataTypes.DECIMAL(18, 2)),
            DataTypes.FIELD("large", DataTypes.DECIMAL(38, 10)),
            DataTypes.FIELD("day", DataTypes.DATE()),
            DataTypes.FIELD("time", DataTypes.TIME(3)),
            DataTypes.FIELD("millis", DataTypes.TIMESTAMP(3)),
            DataTypes.FIELD("nanos", DataTypes.TIMESTAMP(9)),
            DataTypes.FIELD("instant3", DataTypes.TIMESTAMP_LTZ(3)),
            DataTypes.FIELD("instant6", DataTypes.TIMESTAMP_LTZ(6)),
            DataTypes.FIELD("months", DataTypes.INTERVAL(DataTypes.YEAR(), DataTypes.MONTH())),
            DataTypes.FIELD("span", DataTypes.INTERVAL(DataTypes.DAY(), DataTypes.SECOND(3))),
            DataTypes.FIELD("row", INNER),
            DataTypes.FIELD("texts", DataTypes.ARRAY(DataTypes.STRING())),
            DataTypes.FIELD("bools", DataTypes.ARRAY(DataTypes.BOOLEAN())),
            DataTypes.FIELD("times", DataTypes.ARRAY(DataTypes.TIMESTAMP(9))),
            DataTypes.FIELD("rows", DataTypes.ARRAY(INNER)),
            DataTypes.FIELD("map", DataTypes.MAP(DataTypes.STRING(), DataTypes.INT())),
            DataTypes.FIELD("maps", DataTypes.MAP(DataTypes.INT(), DataTypes.MAP(DataTypes.STRING(), INNER))),
            DataTypes.FIELD("bag", DataTypes.MULTISET(DataTypes.STRING())));

    @BeforeAll
    static void load() {
        NativeLibrary.load();
    }

    private final RowType type = (RowType) ALL.getLogicalType();
    private final RowDataSerializer serializer = new RowDataSerializer(type);
    private final DataStructureConverter<Object, Object> converter = DataStructureConverters.getConverter(ALL);

    RoundTripTest() {
        converter.open(getClass().getClassLoader());
    }

    private void check(Row row) {
        RowData internal = (RowData) converter.toInternalOrNull(row);
        internal.setRowKind(row.getKind());
        BinaryRowData binary = serializer.toBinaryRow(internal);
        byte[] bytes = new byte[binary.getSizeInBytes()];
        RowBuffer.copy(binary, bytes, 0);
        Wire.Writer types = new Wire.Writer().u32(type.getFieldCount());
        type.getChildren().forEach(child -> types.text(TableDescription.type(child)));
        byte[] back = Native.roundTrip(types.finish(), bytes);
        BinaryRowData again = new BinaryRowData(type.getFieldCount());
        again.pointTo(MemorySegmentFactory.wrap(back), 0, back.length);
        Row read = (Row) converter.toExternalOrNull(again);
        read.setKind(again.getRowKind());
        assertEquals(row, read);
    }

    @Test
    void bothEndsOfEveryRangeReturn() {
        BigDecimal small = new BigDecimal("9999999999999999.99");
        BigDecimal large = new BigDecimal(BigInteger.TEN.pow(38).subtract(BigInteger.ONE), 10);
        LocalDateTime first = LocalDateTime.of(1, 1, 1, 0, 0);
        LocalDateTime last = LocalDateTime.of(9999, 12, 31, 23, 59, 59);
        check(Row.of(
                true, Byte.MAX_VALUE, Short.MAX_VALUE, Integer.MAX_VALUE, Long.MAX_VALUE, Float.MAX_VALUE,
                Double.MAX_VALUE, "äöü", "𝄞 and more than seven bytes", new byte[] {0, -1, 127, -128, 1, 2, 3, 4, 5}, small,
                large, LocalDate.of(9999, 12, 31), LocalTime.of(23, 59, 59, 999_000_000), last.plusNanos(999_000_000),
                last.plusNanos(999_999_999), Instant.parse("9999-12-31T23:59:59.999Z"),
                Instant.parse("9999-12-31T23:59:59.999999Z"), Period.of(9999, 11, 0), Duration.ofMillis(86_400_000_000_000L),
                Row.of("x", large), new String[] {"", "1234567", "12345678"}, new Boolean[] {true, false},
                new LocalDateTime[] {first, last}, new Row[] {Row.of("a", BigDecimal.ZERO.setScale(10))},
                Map.of("k", Integer.MAX_VALUE), Map.of(1, Map.of("k", Row.of("v", large))), Map.of("a", 3)));
        check(Row.ofKind(
                RowKind.DELETE, false, Byte.MIN_VALUE, Short.MIN_VALUE, Integer.MIN_VALUE, Long.MIN_VALUE, Float.MIN_VALUE,
                Double.MIN_VALUE, "   ", "", new byte[0], small.negate(), large.negate(), LocalDate.of(1, 1, 1),
                LocalTime.MIDNIGHT, first, first.plusNanos(1), Instant.parse("0001-01-01T00:00:00.001Z"),
                Instant.parse("1969-12-31T23:59:59.999999Z"), Period.of(-9999, -11, 0), Duration.ofMillis(-1),
                Row.of("", large.negate()), new String[0], new Boolean[0], new LocalDateTime[0], new Row[0], Map.of(),
                Map.of(), Map.of()));
    }

    @Test
    void nullsReturnAtEveryDepth() {
        check(Row.ofKind(RowKind.UPDATE_AFTER, new Object[type.getFieldCount()]));
        Object[] nested = new Object[type.getFieldCount()];
        int row = type.getFieldIndex("row");
        nested[row] = Row.of(null, null);
        nested[row + 1] = new String[] {null, "a", null};
        nested[row + 2] = new Boolean[] {null, true};
        nested[row + 3] = new LocalDateTime[] {null, LocalDateTime.of(2020, 2, 29, 1, 2, 3, 4)};
        nested[row + 4] = new Row[] {null, Row.of(null, BigDecimal.ONE.setScale(10)), Row.of("", null)};
        Map<String, Integer> nullValue = new HashMap<>();
        nullValue.put("k", null);
        nested[row + 5] = nullValue;
        Map<String, Row> inner = new HashMap<>();
        inner.put("", null);
        nested[row + 6] = Map.of(1, inner);
        check(Row.ofKind(RowKind.UPDATE_BEFORE, nested));
    }

    @Test
    void randomRowsReturn() {
        long seed = Long.getLong("aqueduct.seed", System.nanoTime());
        Random random = new Random(seed);
        for (int round = 0; round < 2_000; round++) {
            Row row = random(random);
            try {
                check(row);
            } catch (Throwable error) {
                throw new AssertionError("row " + round + " with -Daqueduct.seed=" + seed, error);
            }
        }
    }

    private Row random(Random random) {
        Object[] fields = new Object[type.getFieldCount()];
        int at = 0;
        fields[at++] = random.nextBoolean();
        fields[at++] = (byte) random.nextInt();
        fields[at++] = (short) random.nextInt();
        fields[at++] = random.nextInt();
        fields[at++] = random.nextLong();
        fields[at++] = random.nextFloat();
        fields[at++] = random.nextGaussian();
        fields[at++] = "abc";
        fields[at++] = text(random);
        byte[] bytes = new byte[random.nextInt(20)];
        random.nextBytes(bytes);
        fields[at++] = bytes;
        fields[at++] = new BigDecimal(BigInteger.valueOf(random.nextLong() / 10), 2);
        fields[at++] = decimal(random);
        fields[at++] = LocalDate.ofEpochDay(random.nextInt(100_000) - 50_000);
        fields[at++] = LocalTime.ofNanoOfDay(random.nextInt(86_400_000) * 1_000_000L);
        fields[at++] = LocalDateTime.of(1960 + random.nextInt(100), 3, 1, 1, 1, 1, random.nextInt(1_000) * 1_000_000);
        fields[at++] = time(random);
        fields[at++] = Instant.ofEpochMilli(random.nextLong() >> 16);
        fields[at++] = Instant.ofEpochMilli(random.nextLong() >> 16).plusNanos(random.nextInt(1_000) * 1_000L);
        fields[at++] = Period.ofMonths(random.nextInt(100_000) - 50_000).normalized();
        fields[at++] = Duration.ofMillis(random.nextInt());
        fields[at++] = inner(random);
        fields[at++] = random.ints(random.nextInt(70)).mapToObj(some -> some % 5 == 0 ? null : text(random))
                .toArray(String[]::new);
        fields[at++] = random.ints(random.nextInt(70)).mapToObj(some -> some % 5 == 0 ? null : some % 2 == 0)
                .toArray(Boolean[]::new);
        fields[at++] = random.ints(random.nextInt(5)).mapToObj(some -> time(random)).toArray(LocalDateTime[]::new);
        fields[at++] = random.ints(random.nextInt(5)).mapToObj(some -> inner(random)).toArray(Row[]::new);
        fields[at++] = Map.of(text(random) + "1", random.nextInt(), text(random) + "2", random.nextInt());
        fields[at++] = Map.of(random.nextInt(), Map.of(text(random), inner(random)));
        fields[at++] = Map.of(text(random), 1 + random.nextInt(100));
        for (int field = 0; field < at; field++) {
            if (random.nextInt(10) == 0) {
                fields[field] = null;
            }
        }
        return Row.ofKind(List.of(RowKind.values()).get(random.nextInt(4)), fields);
    }

    private static Row inner(Random random) {
        return Row.of(random.nextInt(4) == 0 ? null : text(random), random.nextInt(4) == 0 ? null : decimal(random));
    }

    private static LocalDateTime time(Random random) {
        return LocalDateTime.of(1 + random.nextInt(9_998), 1, 1, 0, 0).plusNanos(random.nextLong() >>> 8);
    }

    private static BigDecimal decimal(Random random) {
        BigInteger limit = BigInteger.TEN.pow(1 + random.nextInt(38));
        BigInteger unscaled = new BigInteger(120, random).mod(limit);
        return new BigDecimal(random.nextBoolean() ? unscaled : unscaled.negate(), 10);
    }

    private static String text(Random random) {
        int[] alphabet = {'a', 'Z', ' ', 'ß', '€', 0x1D11E, 0x1F600, 1};
        int[] characters = random.ints(random.nextInt(12), 0, alphabet.length).map(at -> alphabet[at]).toArray();
        return Arrays.stream(characters)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append)
                .toString();
    }
}

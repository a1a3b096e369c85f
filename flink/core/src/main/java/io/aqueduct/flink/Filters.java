package io.aqueduct.flink;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.flink.table.expressions.CallExpression;
import org.apache.flink.table.expressions.FieldReferenceExpression;
import org.apache.flink.table.expressions.NestedFieldReferenceExpression;
import org.apache.flink.table.expressions.ResolvedExpression;
import org.apache.flink.table.expressions.ValueLiteralExpression;
import org.apache.flink.table.functions.BuiltInFunctionDefinitions;
import org.apache.flink.table.functions.FunctionDefinition;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;

/** Writes the planner's conditions for the library: comparisons of one field with values, and tests for null. */
final class Filters {

    private static final Map<FunctionDefinition, Integer> COMPARISONS = Map.of(
            BuiltInFunctionDefinitions.EQUALS, 0,
            BuiltInFunctionDefinitions.NOT_EQUALS, 1,
            BuiltInFunctionDefinitions.LESS_THAN, 2,
            BuiltInFunctionDefinitions.LESS_THAN_OR_EQUAL, 3,
            BuiltInFunctionDefinitions.GREATER_THAN, 4,
            BuiltInFunctionDefinitions.GREATER_THAN_OR_EQUAL, 5);

    /** The same comparison with its sides exchanged. */
    private static final int[] FLIPPED = {0, 1, 4, 5, 2, 3};

    private final TableDescription table;

    private Filters(TableDescription table) {
        this.table = table;
    }

    /** Conditions that together say the same as {@code condition}; none if it cannot be said. */
    static List<byte[]> translate(ResolvedExpression condition, TableDescription table) {
        List<byte[]> filters = new ArrayList<>();
        return new Filters(table).add(condition, filters) ? filters : List.of();
    }

    private boolean add(ResolvedExpression condition, List<byte[]> filters) {
        if (!(condition instanceof CallExpression)) {
            return false;
        }
        CallExpression call = (CallExpression) condition;
        FunctionDefinition function = call.getFunctionDefinition();
        List<ResolvedExpression> arguments = call.getResolvedChildren();
        if (function == BuiltInFunctionDefinitions.AND) {
            return arguments.stream().allMatch(argument -> add(argument, filters));
        }
        Optional<byte[]> filter;
        if (function == BuiltInFunctionDefinitions.IS_NULL) {
            filter = field(arguments.get(0)).map(field -> field.write(new Wire.Writer().u8(2)).finish());
        } else if (function == BuiltInFunctionDefinitions.IS_NOT_NULL) {
            filter = field(arguments.get(0)).map(field -> field.write(new Wire.Writer().u8(3)).finish());
        } else if (function == BuiltInFunctionDefinitions.IN) {
            filter = field(arguments.get(0)).flatMap(field -> in(field, arguments.subList(1, arguments.size())));
        } else if (function == BuiltInFunctionDefinitions.OR) {
            filter = anyOf(arguments);
        } else if (COMPARISONS.containsKey(function)) {
            filter = comparison(COMPARISONS.get(function), arguments.get(0), arguments.get(1));
        } else {
            return false;
        }
        filter.ifPresent(filters::add);
        return filter.isPresent();
    }

    private Optional<byte[]> comparison(int operator, ResolvedExpression left, ResolvedExpression right) {
        if (left instanceof ValueLiteralExpression) {
            return comparison(FLIPPED[operator], right, left);
        }
        return field(left)
                .flatMap(field -> literal(right, field.type)
                        .map(value -> field.write(new Wire.Writer().u8(0)).u8(operator).raw(value).finish()));
    }

    private Optional<byte[]> in(Field field, List<ResolvedExpression> values) {
        Wire.Writer writer = field.write(new Wire.Writer().u8(1)).u32(values.size());
        for (ResolvedExpression value : values) {
            Optional<byte[]> literal = literal(value, field.type);
            if (literal.isEmpty()) {
                return Optional.empty();
            }
            writer.raw(literal.get());
        }
        return Optional.of(writer.finish());
    }

    /** {@code a = 1 OR a = 2} is {@code a IN (1, 2)}, and the planner writes short lists so. */
    private Optional<byte[]> anyOf(List<ResolvedExpression> alternatives) {
        List<ResolvedExpression> values = new ArrayList<>();
        Optional<Field> field = collect(alternatives, Optional.empty(), values);
        return field.flatMap(found -> in(found, values));
    }

    private Optional<Field> collect(
            List<ResolvedExpression> alternatives, Optional<Field> before, List<ResolvedExpression> values) {
        Optional<Field> same = before;
        for (ResolvedExpression alternative : alternatives) {
            if (!(alternative instanceof CallExpression)) {
                return Optional.empty();
            }
            CallExpression call = (CallExpression) alternative;
            List<ResolvedExpression> arguments = call.getResolvedChildren();
            Optional<Field> field;
            if (call.getFunctionDefinition() == BuiltInFunctionDefinitions.OR) {
                field = collect(arguments, same, values);
            } else if (call.getFunctionDefinition() == BuiltInFunctionDefinitions.EQUALS) {
                boolean flipped = arguments.get(0) instanceof ValueLiteralExpression;
                field = field(arguments.get(flipped ? 1 : 0));
                values.add(arguments.get(flipped ? 0 : 1));
            } else {
                return Optional.empty();
            }
            if (field.isEmpty() || (same.isPresent() && !Arrays.equals(same.get().path, field.get().path))) {
                return Optional.empty();
            }
            same = field;
        }
        return same;
    }

    /** A physical field; conditions on metadata are the planner's. */
    private Optional<Field> field(ResolvedExpression expression) {
        String[] names;
        if (expression instanceof FieldReferenceExpression) {
            names = new String[] {((FieldReferenceExpression) expression).getName()};
        } else if (expression instanceof NestedFieldReferenceExpression) {
            names = ((NestedFieldReferenceExpression) expression).getFieldNames();
        } else {
            return Optional.empty();
        }
        int[] path = new int[names.length];
        path[0] = table.columnIndex(names[0]);
        if (path[0] < 0) {
            return Optional.empty();
        }
        LogicalType type = table.columnType(path[0]);
        for (int at = 1; at < names.length; at++) {
            if (!(type instanceof RowType)) {
                return Optional.empty();
            }
            path[at] = ((RowType) type).getFieldIndex(names[at]);
            if (path[at] < 0) {
                return Optional.empty();
            }
            type = ((RowType) type).getTypeAt(path[at]);
        }
        return Optional.of(new Field(path, type));
    }

    private static final class Field {

        private final int[] path;
        private final LogicalType type;

        Field(int[] path, LogicalType type) {
            this.path = path;
            this.type = type;
        }

        Wire.Writer write(Wire.Writer writer) {
            TableDescription.path(writer, path);
            return writer;
        }
    }

    /** A value in the form that a column of {@code type} has in a row; empty if it is null or has no such form. */
    private static Optional<byte[]> literal(ResolvedExpression expression, LogicalType type) {
        if (!(expression instanceof ValueLiteralExpression)) {
            return Optional.empty();
        }
        ValueLiteralExpression literal = (ValueLiteralExpression) expression;
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return literal.getValueAs(Boolean.class)
                        .map(value -> new Wire.Writer().u8(0).u8(value ? 1 : 0).finish());
            case TINYINT:
            case SMALLINT:
            case INTEGER:
            case BIGINT:
                return literal.getValueAs(BigDecimal.class).flatMap(Filters::whole).map(Filters::number);
            case DATE:
                return literal.getValueAs(LocalDate.class).map(value -> number(value.toEpochDay()));
            case TIME_WITHOUT_TIME_ZONE:
                return literal.getValueAs(LocalTime.class)
                        .filter(value -> value.getNano() % 1_000_000 == 0)
                        .map(value -> number(value.toNanoOfDay() / 1_000_000));
            case FLOAT:
            case DOUBLE:
                return literal.getValueAs(Double.class)
                        .map(value -> new Wire.Writer().u8(2).i64(Double.doubleToRawLongBits(value)).finish());
            case DECIMAL:
                return literal.getValueAs(BigDecimal.class)
                        .flatMap(value -> decimal(value, ((DecimalType) type).getScale()));
            case CHAR:
            case VARCHAR:
                return literal.getValueAs(String.class).map(value -> new Wire.Writer().u8(4).text(value).finish());
            case BINARY:
            case VARBINARY:
                return literal.getValueAs(byte[].class).map(value -> new Wire.Writer().u8(5).bytes(value).finish());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return literal.getValueAs(LocalDateTime.class).map(value -> time(value.toInstant(ZoneOffset.UTC)));
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return literal.getValueAs(Instant.class).map(Filters::time);
            default:
                return Optional.empty();
        }
    }

    private static Optional<Long> whole(BigDecimal value) {
        try {
            return Optional.of(value.longValueExact());
        } catch (ArithmeticException error) {
            return Optional.empty();
        }
    }

    private static byte[] number(long value) {
        return new Wire.Writer().u8(1).i64(value).finish();
    }

    private static Optional<byte[]> decimal(BigDecimal value, int scale) {
        BigInteger unscaled;
        try {
            unscaled = value.setScale(scale, RoundingMode.UNNECESSARY).unscaledValue();
        } catch (ArithmeticException error) {
            return Optional.empty();
        }
        if (unscaled.bitLength() > 127) {
            return Optional.empty();
        }
        return Optional.of(new Wire.Writer()
                .u8(3)
                .i64(unscaled.longValue())
                .i64(unscaled.shiftRight(64).longValue())
                .u8(scale)
                .finish());
    }

    private static byte[] time(Instant value) {
        return new Wire.Writer()
                .u8(6)
                .i64(value.toEpochMilli())
                .u32(value.getNano() % 1_000_000)
                .finish();
    }
}

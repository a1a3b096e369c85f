package io.aqueduct.flink;

import java.util.Arrays;
import java.util.List;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.lookup.AsyncLookupFunctionProvider;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;

/** A table that can be joined row by row. Caches are the library's. */
final class AqueductLookupTableSource extends AqueductTableSource implements LookupTableSource {

    AqueductLookupTableSource(
            TableDescription table,
            TableResource resource,
            DataType physical,
            DecodingFormat<DeserializationSchema<RowData>> format) {
        super(table, resource, physical, format);
    }

    @Override
    public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
        List<LogicalType> columns = ((RowType) physical.getLogicalType()).getChildren();
        int[][] keys = Arrays.stream(context.getKeys()).map(this::physicalPath).toArray(int[][]::new);
        LogicalType[] keyTypes = new LogicalType[keys.length];
        for (int at = 0; at < keys.length; at++) {
            LogicalType type = columns.get(keys[at][0]);
            for (int depth = 1; depth < keys[at].length; depth++) {
                type = ((RowType) type).getTypeAt(keys[at][depth]);
            }
            keyTypes[at] = type;
        }
        byte[] plan = table.lookup(keys, projection);
        Wire.Reader answer = table.plan(plan);
        boolean asynchronous = answer.u8() == 1;
        answer.finish();
        LookupClient.Description client = new LookupClient.Description(
                plan, keyTypes, projection == null ? columns.size() : projection.length);
        return asynchronous
                ? AsyncLookupFunctionProvider.of(new AqueductAsyncLookup(client))
                : LookupFunctionProvider.of(new AqueductLookup(client));
    }

    /** The planner counts the fields that are left after the projection. */
    private int[] physicalPath(int[] key) {
        int fields = projection == null ? DataType.getFieldCount(physical) : projection.length;
        if (key[0] >= fields) {
            throw new ValidationException(table.summary() + " cannot be looked up by metadata");
        }
        if (projection == null) {
            return key;
        }
        int[] start = projection[key[0]];
        int[] path = Arrays.copyOf(start, start.length + key.length - 1);
        System.arraycopy(key, 1, path, start.length, key.length - 1);
        return path;
    }

    @Override
    public DynamicTableSource copy() {
        return copyTo(new AqueductLookupTableSource(table, resource, physical, format));
    }
}

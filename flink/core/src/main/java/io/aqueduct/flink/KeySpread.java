package io.aqueduct.flink;

import java.util.Arrays;
import org.apache.flink.api.common.functions.Partitioner;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.util.MathUtils;

/**
 * Spreads rows over writers: equal keys go to one, rows without a key (every field of it null or empty) go round.
 *
 * <p>Unlike a keyed exchange it has nothing to do with key groups, so the writer of a key changes with the parallelism. That
 * is fine: a restart flushes first.
 */
final class KeySpread
        implements KeySelector<RowData, Integer>, Partitioner<Integer>, ResultTypeQueryable<Integer> {

    private static final long serialVersionUID = 1L;

    private final RowData.FieldGetter[] fields;

    private transient int next;

    KeySpread(int[] keys, LogicalType[] types) {
        fields = new RowData.FieldGetter[keys.length];
        for (int at = 0; at < keys.length; at++) {
            fields[at] = RowData.createFieldGetter(types[at], keys[at]);
        }
    }

    @Override
    public Integer getKey(RowData row) {
        int hash = 0;
        boolean keyed = false;
        for (RowData.FieldGetter field : fields) {
            Object value = field.getFieldOrNull(row);
            keyed |= !isEmpty(value);
            hash = 31 * hash + (value instanceof byte[] ? Arrays.hashCode((byte[]) value) : hash(value));
        }
        return keyed ? MathUtils.murmurHash(hash) : next++ & Integer.MAX_VALUE;
    }

    private static int hash(Object value) {
        // By its characters: the hash of a string's bytes differs between representations.
        return value == null ? 0 : value instanceof StringData ? value.toString().hashCode() : value.hashCode();
    }

    private static boolean isEmpty(Object value) {
        return value == null
                || (value instanceof StringData && value.toString().isEmpty())
                || (value instanceof byte[] && ((byte[]) value).length == 0);
    }

    @Override
    public int partition(Integer key, int partitions) {
        return Math.floorMod(key, partitions);
    }

    @Override
    public TypeInformation<Integer> getProducedType() {
        return Types.INT;
    }
}

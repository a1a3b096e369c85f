package io.aqueduct.flink;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.data.binary.BinarySegmentUtils;

/**
 * A batch of rows in one array, as the library reads and writes it: for each its event time (8 bytes, the least number for
 * none), its size (4 bytes), 4 bytes of padding, and the row. Size 0 announces a watermark.
 */
final class RowBuffer {

    static final int PREFIX = 16;
    static final long NO_TIME = Long.MIN_VALUE;

    private static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.nativeOrder());
    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.nativeOrder());

    private final int target;
    private byte[] bytes;
    private int size;
    private int rows;

    RowBuffer(int target) {
        this.target = target;
        this.bytes = new byte[target + target / 4];
    }

    static long time(byte[] batch, int at) {
        return (long) LONG.get(batch, at);
    }

    static int size(byte[] batch, int at) {
        return (int) INT.get(batch, at + 8);
    }

    void add(long time, BinaryRowData row) {
        int length = row.getSizeInBytes();
        // The array may be another one behind the prefix.
        int at = prefix(time, length);
        copy(row, bytes, at);
        rows++;
    }

    /** Copies a row's bytes to {@code at}. */
    static void copy(BinaryRowData row, byte[] to, int at) {
        MemorySegment[] segments = row.getSegments();
        if (segments.length == 1) {
            // For a heap segment, an array copy.
            segments[0].get(row.getOffset(), to, at, row.getSizeInBytes());
        } else {
            BinarySegmentUtils.copyToBytes(segments, row.getOffset(), to, at, row.getSizeInBytes());
        }
    }

    void addWatermark(long watermark) {
        prefix(watermark, 0);
    }

    private int prefix(long time, int length) {
        int at = size;
        int end = Math.addExact(Math.addExact(at, PREFIX), length);
        if (end > bytes.length) {
            bytes = Arrays.copyOf(bytes, end);
        }
        LONG.set(bytes, at, time);
        INT.set(bytes, at + 8, length);
        size = end;
        return at + PREFIX;
    }

    byte[] bytes() {
        return bytes;
    }

    int size() {
        return size;
    }

    int rows() {
        return rows;
    }

    boolean isFull() {
        return size >= target;
    }

    boolean isEmpty() {
        return size == 0;
    }

    /** Forgets the rows. Memory that one large row took is given back. */
    void clear() {
        size = 0;
        rows = 0;
        if (bytes.length > 2 * target) {
            bytes = new byte[target + target / 4];
        }
    }
}

package io.aqueduct.flink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.LogicalType;

/**
 * Lookups in the library, any number of them under way. The task starts them; the thread for wake-ups takes the answers. The
 * two take turns by this object's lock, which neither holds while it waits.
 */
final class LookupClient implements AutoCloseable {

    private final int arity;
    private final RowDataSerializer keys;
    private final NativeObject lookup;

    /** Guarded by this object, as the library's object is. */
    private final Map<Long, CompletableFuture<Collection<RowData>>> underWay = new HashMap<>();

    private long next;
    private boolean closed;

    private LookupClient(Description description, FunctionContext context) {
        arity = description.arity;
        keys = new RowDataSerializer(description.keys);
        // Flink 1.20 tells a function its place in the job only by the variables of its metrics, and the parallelism not at all.
        int subtask = Integer.parseInt(context.getMetricGroup().getAllVariables().getOrDefault("<subtask_index>", "0"));
        lookup = NativeObject.open(
                Native.LOOKUP,
                description.table,
                subtask,
                subtask + 1,
                List.of(),
                context.getMetricGroup(),
                this::takeAnswers);
    }

    /** The rows of a key, some time. */
    CompletableFuture<Collection<RowData>> start(RowData key) {
        CompletableFuture<Collection<RowData>> answer = new CompletableFuture<>();
        synchronized (this) {
            BinaryRowData row = keys.toBinaryRow(key);
            byte[] bytes = new byte[row.getSizeInBytes()];
            RowBuffer.copy(row, bytes, 0);
            long id = next++;
            lookup.call(Native.START_LOOKUP, new Wire.Writer().i64(id).bytes(bytes).finish());
            underWay.put(id, answer);
        }
        takeAnswers();
        return answer;
    }

    private void takeAnswers() {
        while (true) {
            CompletableFuture<Collection<RowData>> waiting;
            Wire.Reader answer;
            synchronized (this) {
                if (closed) {
                    return;
                }
                byte[] bytes;
                try {
                    bytes = lookup.call(Native.LOOKUP_ANSWER, Wire.EMPTY);
                } catch (RuntimeException error) {
                    fail(error);
                    return;
                }
                if (bytes == null) {
                    return;
                }
                answer = new Wire.Reader("an answer of a lookup", bytes);
                waiting = underWay.remove(answer.i64());
            }
            // Without the lock: what is completed here may start the next lookup.
            if (waiting != null) {
                complete(waiting, answer);
            }
        }
    }

    private void complete(CompletableFuture<Collection<RowData>> waiting, Wire.Reader answer) {
        if (answer.u8() == 0) {
            waiting.complete(rows(answer.bytes()));
        } else {
            waiting.completeExceptionally(Native.failure(answer.u32(), answer.text()));
        }
    }

    private Collection<RowData> rows(byte[] batch) {
        List<RowData> rows = new ArrayList<>();
        MemorySegment segment = MemorySegmentFactory.wrap(batch);
        for (int at = 0; at < batch.length; ) {
            int size = RowBuffer.size(batch, at);
            BinaryRowData row = new BinaryRowData(arity);
            row.pointTo(segment, at + RowBuffer.PREFIX, size);
            rows.add(row);
            at += RowBuffer.PREFIX + size;
        }
        return rows;
    }

    /** Everything under way fails with {@code error}. Called with the lock; nobody waits for these with it. */
    private void fail(RuntimeException error) {
        underWay.values().forEach(waiting -> waiting.completeExceptionally(error));
        underWay.clear();
    }

    @Override
    public void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        // Without the lock: the thread for wake-ups may be on its way here.
        lookup.close();
    }

    /** What a function carries to where it runs. */
    static final class Description implements Serializable {

        private static final long serialVersionUID = 1L;

        private final byte[] table;
        private final LogicalType[] keys;
        private final int arity;

        Description(byte[] table, LogicalType[] keys, int arity) {
            this.table = table;
            this.keys = keys;
            this.arity = arity;
        }

        LookupClient open(FunctionContext context) {
            return new LookupClient(this, context);
        }
    }
}

package io.aqueduct.flink;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.connector.source.SplitsAssignment;

/**
 * Drives an enumerator in the library and carries out what it wants.
 *
 * <p>It is opened in {@link #start}, on the coordinator's thread: Flink makes enumerators on a thread of the job manager, which
 * must not run the library (see {@link ShortThread}).
 */
final class AqueductEnumerator implements SplitEnumerator<AqueductSplit, EnumeratorState> {

    private static final long CLOSE_MILLIS = 30_000;

    private final byte[] table;
    private final EnumeratorState restored;
    private final SplitEnumeratorContext<AqueductSplit> context;

    /** Whether the coordinator is told already that there is something to do. */
    private final AtomicBoolean told = new AtomicBoolean();

    /** Null before {@link #start}. Written by the coordinator's thread, read by the one that closes. */
    private volatile NativeObject enumerator;

    private volatile boolean closed;

    AqueductEnumerator(byte[] table, EnumeratorState restored, SplitEnumeratorContext<AqueductSplit> context) {
        this.table = table;
        this.restored = restored;
        this.context = context;
    }

    @Override
    public void start() {
        enumerator = NativeObject.open(
                Native.ENUMERATOR,
                table,
                0,
                context.currentParallelism(),
                restored.state() == null ? List.of() : List.of(restored.state()),
                context.metricGroup(),
                this::woke);
        call(Native.ENUMERATOR_PROGRESS, Wire.EMPTY);
    }

    /** On the thread for wake-ups. */
    private void woke() {
        if (told.compareAndSet(false, true)) {
            context.runInCoordinatorThread(() -> {
                told.set(false);
                if (!closed) {
                    call(Native.ENUMERATOR_PROGRESS, Wire.EMPTY);
                }
            });
        }
    }

    @Override
    public void addReader(int subtask) {
        call(Native.READER_REGISTERED, new Wire.Writer().u32(subtask).finish());
    }

    @Override
    public void handleSplitRequest(int subtask, String host) {
        call(Native.SPLIT_REQUESTED, new Wire.Writer().u32(subtask).finish());
    }

    @Override
    public void addSplitsBack(List<AqueductSplit> splits, int subtask) {
        call(Native.READER_LOST, new Wire.Writer().u32(subtask).raw(AqueductReader.write(splits)).finish());
    }

    @Override
    public void handleSourceEvent(int subtask, SourceEvent event) {
        Wire.Writer writer = new Wire.Writer().u32(subtask);
        AqueductEvent.of(event).write(writer);
        call(Native.READER_EVENT, writer.finish());
    }

    @Override
    public EnumeratorState snapshotState(long checkpoint) {
        if (enumerator == null) {
            return restored;
        }
        Wire.Reader answer = new Wire.Reader(
                "a snapshot of the library",
                enumerator.call(Native.ENUMERATOR_SNAPSHOT, new Wire.Writer().i64(checkpoint).finish()));
        NativeState state = NativeState.read(answer);
        answer.finish();
        return new EnumeratorState(state);
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        call(Native.ENUMERATOR_COMPLETED, new Wire.Writer().i64(checkpoint).finish());
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) {
        call(Native.ENUMERATOR_ABORTED, new Wire.Writer().i64(checkpoint).finish());
    }

    /** Calls the enumerator and carries out its commands, in their order. */
    private void call(int call, byte[] argument) {
        byte[] answer = enumerator.call(call, argument);
        if (answer == null) {
            return;
        }
        Wire.Reader commands = new Wire.Reader("the commands of an enumerator", answer);
        for (int left = commands.count(5); left > 0; left--) {
            int command = commands.u8();
            int reader = commands.u32();
            switch (command) {
                case 0:
                    List<AqueductSplit> splits = new ArrayList<>();
                    for (int more = commands.count(12); more > 0; more--) {
                        splits.add(AqueductSplit.read(commands));
                    }
                    context.assignSplits(new SplitsAssignment<>(Map.of(reader, splits)));
                    break;
                case 1:
                    context.signalNoMoreSplits(reader);
                    break;
                default:
                    context.sendEventToSourceReader(reader, new AqueductEvent(NativeState.read(commands)));
            }
        }
        commands.finish();
    }

    @Override
    public void close() {
        closed = true;
        NativeObject open = enumerator;
        if (open != null) {
            ShortThread.runWithin("aqueduct-close", CLOSE_MILLIS, open::close);
        }
    }
}

package io.aqueduct.flink;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceEvent;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.metrics.Counter;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;

/**
 * Passes on the rows of a reader in the library: one of its rows a call, with all that a format makes of it, so that what was
 * reported as emitted is always whole.
 */
final class AqueductReader implements SourceReader<RowData, AqueductSplit> {

    private static final CompletableFuture<Void> NOW = CompletableFuture.completedFuture(null);

    private final int arity;

    /** Null unless rows are payloads. */
    private final PayloadDecoder decoder;

    private final SourceReaderContext context;
    private final Counter rowsIn;
    private final NativeObject reader;
    private final Map<String, SourceOutput<RowData>> outputs = new HashMap<>();

    /** Completed by the thread for wake-ups; replaced by this one before it asks the library. */
    private volatile CompletableFuture<Void> available = NOW;

    /** Rows of one split; null when all of them were passed on. */
    private byte[] batch;

    private MemorySegment segment;
    private int at;
    private SourceOutput<RowData> output;

    /** Rows passed on that the library does not know of. */
    private int unreported;

    /** Those of them of which the format made nothing. */
    private int skipped;

    private boolean ended;

    AqueductReader(byte[] table, int arity, PayloadDecoder decoder, SourceReaderContext context) {
        this.arity = arity;
        this.decoder = decoder;
        this.context = context;
        this.rowsIn = context.metricGroup().getIOMetricGroup().getNumRecordsInCounter();
        this.reader = NativeObject.open(
                Native.READER,
                table,
                context.getIndexOfSubtask(),
                context.currentParallelism(),
                List.of(),
                context.metricGroup(),
                () -> available.complete(null));
    }

    @Override
    public void start() {
        if (decoder != null) {
            decoder.open(context);
        }
    }

    @Override
    public InputStatus pollNext(ReaderOutput<RowData> outputs) {
        if (batch != null) {
            emit();
            return InputStatus.MORE_AVAILABLE;
        }
        if (ended) {
            return InputStatus.END_OF_INPUT;
        }
        report();
        // Before the library is asked: a wake-up from then on completes the new one.
        if (available.isDone()) {
            available = new CompletableFuture<>();
        }
        byte[] next = Native.next(reader.handle());
        if (next == null) {
            return InputStatus.NOTHING_AVAILABLE;
        }
        available.complete(null);
        take(next, outputs);
        return ended ? InputStatus.END_OF_INPUT : InputStatus.MORE_AVAILABLE;
    }

    private void take(byte[] next, ReaderOutput<RowData> outputs) {
        Wire.Reader header = new Wire.Reader("an output of the library", next);
        switch (header.u8()) {
            case 1:
                output = output(header.text(), outputs);
                if (!header.atEnd()) {
                    at = header.position();
                    batch = next;
                    segment = MemorySegmentFactory.wrap(next);
                }
                break;
            case 2:
                SourceOutput<RowData> split = output(header.text(), outputs);
                split.emitWatermark(new Watermark(header.i64()));
                break;
            case 3:
                String finished = header.text();
                if (this.outputs.remove(finished) != null) {
                    outputs.releaseOutputForSplit(finished);
                }
                break;
            case 4:
                context.sendSplitRequest();
                break;
            case 5:
                context.sendSourceEventToCoordinator(new AqueductEvent(NativeState.read(header)));
                break;
            default:
                ended = true;
        }
    }

    private SourceOutput<RowData> output(String split, ReaderOutput<RowData> all) {
        return outputs.computeIfAbsent(split, all::createOutputForSplit);
    }

    private void emit() {
        long time = RowBuffer.time(batch, at);
        int size = RowBuffer.size(batch, at);
        // A row of its own: whoever keeps it keeps the batch, which nobody writes to again.
        BinaryRowData row = new BinaryRowData(arity);
        row.pointTo(segment, at + RowBuffer.PREFIX, size);
        at += RowBuffer.PREFIX + size;
        if (at >= batch.length) {
            batch = null;
            segment = null;
        }
        if (decoder == null) {
            collect(row, time);
        } else {
            List<RowData> rows;
            try {
                rows = decoder.decode(row);
            } catch (Exception error) {
                report();
                reader.call(Native.REJECT, new Wire.Writer().text(PayloadDecoder.reason(error)).finish());
                return;
            }
            if (rows.isEmpty()) {
                skipped++;
            }
            for (RowData decoded : rows) {
                collect(decoded, time);
            }
        }
        unreported++;
    }

    private void collect(RowData row, long time) {
        rowsIn.inc();
        if (time == RowBuffer.NO_TIME) {
            output.collect(row);
        } else {
            output.collect(row, time);
        }
    }

    /** Tells the library what was passed on, before it is asked anything. */
    private void report() {
        if (skipped > 0) {
            int rows = skipped;
            skipped = 0;
            reader.call(Native.SKIPPED, new Wire.Writer().u32(rows).finish());
        }
        if (unreported > 0) {
            int rows = unreported;
            unreported = 0;
            Native.emitted(reader.handle(), rows);
        }
    }

    private byte[] call(int call, byte[] argument) {
        report();
        byte[] answer = reader.call(call, argument);
        // Whatever changed may be a reason to ask for rows.
        available.complete(null);
        return answer;
    }

    @Override
    public CompletableFuture<Void> isAvailable() {
        return batch != null || ended ? NOW : available;
    }

    @Override
    public void addSplits(List<AqueductSplit> splits) {
        call(Native.ADD_SPLITS, write(splits));
    }

    static byte[] write(List<AqueductSplit> splits) {
        Wire.Writer writer = new Wire.Writer().u32(splits.size());
        splits.forEach(split -> split.write(writer));
        return writer.finish();
    }

    @Override
    public void notifyNoMoreSplits() {
        call(Native.NO_MORE_SPLITS, Wire.EMPTY);
    }

    @Override
    public void handleSourceEvents(SourceEvent event) {
        Wire.Writer writer = new Wire.Writer();
        AqueductEvent.of(event).write(writer);
        call(Native.ENUMERATOR_EVENT, writer.finish());
    }

    @Override
    public List<AqueductSplit> snapshotState(long checkpoint) {
        Wire.Reader answer = new Wire.Reader(
                "a snapshot of the library", call(Native.SNAPSHOT, new Wire.Writer().i64(checkpoint).finish()));
        int count = answer.count(12);
        List<AqueductSplit> splits = new ArrayList<>(count);
        for (int left = count; left > 0; left--) {
            splits.add(AqueductSplit.read(answer));
        }
        answer.finish();
        return splits;
    }

    @Override
    public void notifyCheckpointComplete(long checkpoint) {
        call(Native.COMPLETED, new Wire.Writer().i64(checkpoint).finish());
    }

    @Override
    public void notifyCheckpointAborted(long checkpoint) {
        call(Native.ABORTED, new Wire.Writer().i64(checkpoint).finish());
    }

    @Override
    public void pauseOrResumeSplits(Collection<String> pause, Collection<String> resume) {
        Wire.Writer writer = new Wire.Writer().u32(pause.size());
        pause.forEach(writer::text);
        writer.u32(resume.size());
        resume.forEach(writer::text);
        call(Native.PAUSE, writer.finish());
    }

    @Override
    public void close() {
        reader.close();
    }
}

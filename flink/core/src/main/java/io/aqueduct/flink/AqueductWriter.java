package io.aqueduct.flink;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.operators.MailboxExecutor;
import org.apache.flink.api.common.operators.ProcessingTimeService;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.RowData;

/**
 * Hands rows to a writer in the library, a batch at a time. Where the writer has no room, the task works through its mailbox
 * until it has: nothing here blocks, so a task can be cancelled and a barrier comes through.
 */
final class AqueductWriter implements SinkWriter<RowData> {

    private static final int BATCH_BYTES = 64 << 10;

    /** How long a row may wait for others, in milliseconds: little beside a request, enough to fill a batch when it rains. */
    private static final long LINGER_MILLIS = 5;

    private final RowEncoder encoder;
    private final MailboxExecutor mailbox;
    private final ProcessingTimeService time;
    private final NativeObject writer;
    private final RowBuffer buffer = new RowBuffer(BATCH_BYTES);
    private final BatchLimit limit = new BatchLimit();

    /** Whether a mail is on its way: one is enough. */
    private final AtomicBoolean mailed = new AtomicBoolean();

    private boolean timerSet;

    /** Whether a hand-over waits further up this thread's stack: it polls for itself. */
    private boolean waiting;

    private boolean closed;
    private long watermark = RowBuffer.NO_TIME;
    private long announced = RowBuffer.NO_TIME;

    AqueductWriter(byte[] table, RowEncoder encoder, WriterInitContext context) {
        this.encoder = encoder;
        this.mailbox = context.getMailboxExecutor();
        this.time = context.getProcessingTimeService();
        this.writer = NativeObject.open(
                Native.WRITER,
                table,
                context.getTaskInfo().getIndexOfThisSubtask(),
                context.getTaskInfo().getNumberOfParallelSubtasks(),
                List.of(),
                context.metricGroup(),
                this::woke);
    }

    @Override
    public void write(RowData row, Context context) throws IOException, InterruptedException {
        if (watermark != announced) {
            buffer.addWatermark(watermark);
            announced = watermark;
        }
        Long timestamp = context.timestamp();
        buffer.add(timestamp == null ? RowBuffer.NO_TIME : timestamp, encoder.encode(row));
        if (buffer.isFull() || buffer.rows() >= limit.rows()) {
            handOver();
        } else if (!timerSet) {
            timerSet = true;
            time.registerTimer(time.getCurrentProcessingTime() + LINGER_MILLIS, this::lingered);
        }
    }

    @Override
    public void writeWatermark(Watermark reached) {
        watermark = reached.getTimestamp();
    }

    @Override
    public void flush(boolean endOfInput) throws IOException, InterruptedException {
        handOver();
        await(endOfInput ? Native.FLUSHED_AT_END : Native.FLUSHED);
    }

    @Override
    public void close() {
        closed = true;
        writer.close();
    }

    private void handOver() throws InterruptedException {
        if (buffer.isEmpty()) {
            return;
        }
        int rows = buffer.rows();
        boolean taken = Native.push(writer.handle(), buffer.bytes(), buffer.size());
        buffer.clear();
        long waited = 0;
        if (!taken) {
            long begun = System.nanoTime();
            await(Native.TAKEN);
            waited = System.nanoTime() - begun;
        }
        limit.taken(rows, waited);
    }

    private void await(int goal) throws InterruptedException {
        waiting = true;
        try {
            while (!writer.poll(goal)) {
                mailbox.yield();
            }
        } finally {
            waiting = false;
        }
    }

    private void lingered(long now) throws InterruptedException {
        timerSet = false;
        // What a hand-over waits for holds the rows of the buffer already: it was emptied before.
        if (!waiting && !closed) {
            handOver();
        }
    }

    /** On the thread for wake-ups. */
    private void woke() {
        if (mailed.compareAndSet(false, true)) {
            try {
                mailbox.execute(this::progress, "aqueduct: the sink has news");
            } catch (RejectedExecutionException error) {
                // The task ends; whoever closes the writer does not need the mail.
                mailed.set(false);
            }
        }
    }

    private void progress() {
        mailed.set(false);
        if (!waiting && !closed) {
            writer.poll(Native.PROGRESS);
        }
    }
}

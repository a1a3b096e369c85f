package io.aqueduct.flink;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.flink.metrics.MetricGroup;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A writer, reader, enumerator or lookup in the library, from its opening to {@link #close}. */
final class NativeObject implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(NativeObject.class);

    /** Well below the time that Flink gives a task to cancel, three minutes unless it is set otherwise. */
    private static final long CLOSE_MILLIS = 20_000;

    private final long handle;
    private final Runnable onWakeup;
    private final NativeMetrics metrics;

    /** Guarded by this object. */
    private boolean woken;

    private boolean closed;

    private NativeObject(long handle, MetricGroup group, Runnable onWakeup) {
        this.handle = handle;
        this.onWakeup = onWakeup;
        this.metrics = new NativeMetrics(handle, group);
    }

    /**
     * Opens an object.
     *
     * @param onWakeup runs on the thread for wake-ups; must not block
     */
    static NativeObject open(
            int kind,
            byte[] table,
            int subtask,
            int parallelism,
            List<NativeState> states,
            MetricGroup group,
            Runnable onWakeup) {
        Library.acquire();
        long handle = 0;
        try {
            Wire.Writer encoded = new Wire.Writer().u32(states.size());
            states.forEach(state -> state.write(encoded));
            handle = Native.open(kind, table, place(group, subtask, parallelism), encoded.finish());
            NativeObject object = new NativeObject(handle, group, onWakeup);
            object.refreshMetrics();
            Library.register(object);
            return object;
        } catch (Throwable error) {
            if (handle != 0) {
                Native.free(handle);
            }
            Library.release();
            throw error;
        }
    }

    private static byte[] place(MetricGroup group, int subtask, int parallelism) {
        Map<String, String> variables = group.getAllVariables();
        int attempt;
        try {
            attempt = Integer.parseInt(variables.getOrDefault("<task_attempt_num>", "0"));
        } catch (NumberFormatException error) {
            attempt = 0;
        }
        return new Wire.Writer()
                .text(variables.getOrDefault("<job_name>", ""))
                .text(variables.getOrDefault("<operator_name>", variables.getOrDefault("<task_name>", "")))
                .u32(subtask)
                .u32(parallelism)
                .u32(attempt)
                .i64(ThreadLocalRandom.current().nextLong())
                .finish();
    }

    long handle() {
        return handle;
    }

    boolean poll(int goal) {
        return Native.poll(handle, goal);
    }

    byte[] call(int call, byte[] argument) {
        return Native.call(handle, call, argument);
    }

    /** Called by the thread for wake-ups. */
    void woke() {
        synchronized (this) {
            woken = true;
            notifyAll();
        }
        onWakeup.run();
    }

    /** Forgets wake-ups so far: to be called before the poll that {@link #awaitWakeup} shall follow. */
    synchronized void forgetWakeups() {
        woken = false;
    }

    /** Waits until the object wakes, for at most {@code millis}. */
    synchronized boolean awaitWakeup(long millis) throws InterruptedException {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        while (!woken) {
            long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
            if (left <= 0) {
                return false;
            }
            wait(left);
        }
        return true;
    }

    void refreshMetrics() {
        metrics.refresh();
    }

    /**
     * Lets the object release what it holds, within a bound and until this thread is interrupted, and frees it in any case.
     *
     * <p>It never throws: what matters was flushed before, and an exception while a failed task is cleaned up would make Flink
     * stop the whole task manager.
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        try {
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CLOSE_MILLIS);
            forgetWakeups();
            while (!poll(Native.CLOSED)) {
                if (!awaitWakeup(TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()))) {
                    LOG.warn("not closed within {} ms; what is still under way is abandoned", CLOSE_MILLIS);
                    break;
                }
                forgetWakeups();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } catch (RuntimeException error) {
            LOG.warn("closing failed; what was open is given up", error);
        }
        Library.unregister(this);
        try {
            metrics.close();
        } catch (RuntimeException error) {
            LOG.warn("the last values of metrics are lost", error);
        }
        Native.free(handle);
        try {
            Library.release();
        } catch (RuntimeException error) {
            LOG.warn("the library did not stop in order", error);
        }
    }
}

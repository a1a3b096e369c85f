package io.aqueduct.flink;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The running library: threads that exist for as long as an object of it is open.
 *
 * <p>Opening the first object starts the library's I/O threads and one thread of Java's, which sits in the library until
 * something wakes and passes it on. Closing the last object ends them all. So nothing has to be told that a job is over,
 * neither on a task manager nor on a job manager, and a jar in Flink's {@code lib/} keeps no thread while no job uses it.
 */
final class Library {

    private static final Logger LOG = LoggerFactory.getLogger(Library.class);

    /** The library itself gives its tasks five seconds. */
    private static final long STOP_MILLIS = 10_000;

    /** How often metrics are read. */
    private static final long METRICS_MILLIS = 1_000;

    private static final ConcurrentHashMap<Long, NativeObject> OBJECTS = new ConcurrentHashMap<>();

    /** Guarded by the class, as the thread is. */
    private static int users;

    private static Thread wakeups;

    private Library() {}

    static synchronized void acquire() {
        NativeLibrary.load();
        if (users == 0) {
            long start = Native.start(LogLines.verbosity());
            Thread thread = new Thread(() -> passOn(start), "aqueduct-wakeups");
            thread.setDaemon(true);
            thread.setContextClassLoader(Library.class.getClassLoader());
            thread.setUncaughtExceptionHandler(
                    (dead, error) -> LOG.error("the thread for wake-ups ended; jobs of this library stand still", error));
            try {
                thread.start();
            } catch (OutOfMemoryError error) {
                stop();
                throw error;
            }
            wakeups = thread;
        }
        users++;
    }

    static synchronized void release() {
        users--;
        if (users == 0) {
            Thread thread = wakeups;
            wakeups = null;
            stop();
            joinWithin(thread, STOP_MILLIS);
        }
    }

    /** For tests: how many objects are open. */
    static synchronized int users() {
        return users;
    }

    static void register(NativeObject object) {
        OBJECTS.put(object.handle(), object);
    }

    static void unregister(NativeObject object) {
        OBJECTS.remove(object.handle());
    }

    private static void stop() {
        if (!ShortThread.runWithin("aqueduct-stop", STOP_MILLIS, Native::stop)) {
            LOG.warn("network tasks of the library did not end within {} ms", STOP_MILLIS);
        }
    }

    private static void joinWithin(Thread thread, long millis) {
        boolean interrupted = false;
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        while (thread.isAlive()) {
            long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
            if (left <= 0) {
                LOG.warn("the thread for wake-ups did not end within {} ms", millis);
                break;
            }
            try {
                thread.join(left);
            } catch (InterruptedException error) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The body of the thread for wake-ups. */
    private static void passOn(long start) {
        long[] handles = new long[64];
        long nextMetrics = System.nanoTime();
        while (true) {
            int woken = Native.awaitWakeups(start, handles, METRICS_MILLIS);
            if (woken < 0) {
                LogLines.drain();
                return;
            }
            for (int at = 0; at < woken; at++) {
                if (handles[at] == 0) {
                    LogLines.drain();
                } else {
                    NativeObject object = OBJECTS.get(handles[at]);
                    if (object != null) {
                        object.woke();
                    }
                }
            }
            if (System.nanoTime() - nextMetrics >= 0) {
                nextMetrics = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(METRICS_MILLIS);
                OBJECTS.values().forEach(NativeObject::refreshMetrics);
            }
        }
    }
}

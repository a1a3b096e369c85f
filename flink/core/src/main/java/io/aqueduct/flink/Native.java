package io.aqueduct.flink;

import org.apache.flink.runtime.execution.SuppressRestartsException;

/**
 * The functions of the native library, few and coarse. They never block (but for {@link #awaitWakeups} and {@link
 * #stop}), never call back and never keep a reference to anything of Java's.
 *
 * <p>An object in the library is known by a number. It is used by one thread at a time.
 */
final class Native {

    /** Kinds of objects, for {@link #open}. */
    static final int WRITER = 1;

    static final int READER = 2;
    static final int ENUMERATOR = 3;
    static final int LOOKUP = 4;

    /** Goals, for {@link #poll}. */
    static final int PROGRESS = 0;

    static final int TAKEN = 1;
    static final int FLUSHED = 2;
    static final int FLUSHED_AT_END = 3;
    static final int CLOSED = 4;

    /** Calls of a reader, for {@link #call}. */
    static final int ADD_SPLITS = 10;

    static final int NO_MORE_SPLITS = 11;
    static final int ENUMERATOR_EVENT = 12;
    static final int REJECT = 13;
    static final int SNAPSHOT = 14;
    static final int COMPLETED = 15;
    static final int ABORTED = 16;
    static final int PAUSE = 17;
    static final int SKIPPED = 18;

    /** Calls of an enumerator, for {@link #call}. */
    static final int ENUMERATOR_PROGRESS = 20;

    static final int READER_REGISTERED = 21;
    static final int READER_LOST = 22;
    static final int SPLIT_REQUESTED = 23;
    static final int READER_EVENT = 24;
    static final int ENUMERATOR_SNAPSHOT = 25;
    static final int ENUMERATOR_COMPLETED = 26;
    static final int ENUMERATOR_ABORTED = 27;

    /** Calls of a lookup, for {@link #call}. */
    static final int START_LOOKUP = 30;

    static final int LOOKUP_ANSWER = 31;

    private Native() {}

    /** Starts the library's threads and gives the number of this start. */
    static native long start(int verbosity);

    /** Stops them. For a thread that ends soon: see {@link ShortThread}. */
    static native void stop();

    /** Waits until objects woke and puts their numbers into {@code handles}; gives how many, or -1 once stopped. */
    static native int awaitWakeups(long start, long[] handles, long millis);

    /** Takes the lines of the log that wait. */
    static native byte[] drainLogs();

    /** Checks a table and a plan; the answer depends on the kind of the plan. */
    static native byte[] plan(byte[] table);

    static native long open(int kind, byte[] table, byte[] place, byte[] states);

    /** Hands the first {@code size} bytes of rows to a writer; whether it took all. If not, poll for {@link #TAKEN}. */
    static native boolean push(long handle, byte[] rows, int size);

    /** Whether the goal is reached. If not, the object wakes when asking again can help. */
    static native boolean poll(long handle, int goal);

    /** A reader's next output, or null. */
    static native byte[] next(long handle);

    /** Tells a reader that so many more rows of its last batch went downstream. */
    static native void emitted(long handle, int rows);

    static native byte[] call(long handle, int call, byte[] argument);

    /** Frees an object, closed or not. */
    static native void free(long handle);

    /** What the metrics after the first {@code known} are, then the values of all. */
    static native byte[] metrics(long handle, int known);

    /** Reads a row and writes it anew: for tests of the layout. */
    static native byte[] roundTrip(byte[] types, byte[] row);

    /** Called by the library where it has failed: the exception to throw. */
    static RuntimeException failure(int kind, String report) {
        AqueductException error = new AqueductException(AqueductException.Kind.of(kind), report);
        return error.kind().restartable() ? error : new SuppressRestartsException(error);
    }
}

package io.aqueduct.flink;

import org.apache.flink.util.FlinkRuntimeException;

/** An error of the native library: its message with every cause, as the library reports it. */
public final class AqueductException extends FlinkRuntimeException {

    private static final long serialVersionUID = 1L;

    private final Kind kind;

    AqueductException(Kind kind, String report) {
        super(report);
        this.kind = kind;
    }

    public Kind kind() {
        return kind;
    }

    /** What can be done about an error. The order is that of the library's numbers. */
    public enum Kind {
        /** A setting is wrong. */
        CONFIG(false),
        /** State cannot be read or does not fit. */
        STATE(false),
        /** The input itself is broken. */
        DATA(false),
        /** A service or the network failed. */
        IO(true),
        /** User code failed. */
        USER(true),
        /** A mistake in Aqueduct. Please report it. */
        BUG(true);

        private final boolean restartable;

        Kind(boolean restartable) {
            this.restartable = restartable;
        }

        /** Whether restarting from the last checkpoint could end differently. */
        public boolean restartable() {
            return restartable;
        }

        static Kind of(int number) {
            Kind[] all = values();
            return number >= 0 && number < all.length ? all[number] : BUG;
        }
    }
}

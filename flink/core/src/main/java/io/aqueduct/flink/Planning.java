package io.aqueduct.flink;

import java.util.EnumSet;
import java.util.Set;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.types.RowKind;

/** The library as a planner's adviser. */
final class Planning {

    private Planning() {}

    static byte[] plan(byte[] table) {
        try {
            return ShortThread.call("aqueduct-plan", () -> {
                NativeLibrary.load();
                try {
                    return Native.plan(table);
                } finally {
                    // What it warns of, such as an earlier name of an option.
                    LogLines.drain();
                }
            });
        } catch (RuntimeException error) {
            AqueductException refusal = refusal(error);
            if (refusal == null) {
                throw error;
            }
            throw new ValidationException(refusal.getMessage(), refusal);
        }
    }

    private static AqueductException refusal(Throwable error) {
        for (Throwable next = error; next != null; next = next.getCause()) {
            if (next instanceof AqueductException) {
                AqueductException found = (AqueductException) next;
                return found.kind() == AqueductException.Kind.BUG ? null : found;
            }
        }
        return null;
    }

    static Set<RowKind> kinds(Wire.Reader reader) {
        Set<RowKind> kinds = EnumSet.noneOf(RowKind.class);
        for (int left = reader.count(1); left > 0; left--) {
            kinds.add(RowKind.fromByteValue((byte) reader.u8()));
        }
        return kinds;
    }

    static ChangelogMode changelog(Set<RowKind> kinds) {
        ChangelogMode.Builder mode = ChangelogMode.newBuilder();
        kinds.forEach(mode::addContainedKind);
        return mode.build();
    }

    /** A parallelism, or null for none. */
    static Integer parallelism(Wire.Reader reader) {
        int parallelism = reader.u32();
        return parallelism == 0 ? null : Integer.valueOf(parallelism);
    }
}

package io.aqueduct.flink;

/** What an enumerator in the library stored in a checkpoint; nothing if it had not begun. */
public final class EnumeratorState {

    /** Null if the enumerator had not begun. */
    private final NativeState state;

    EnumeratorState(NativeState state) {
        this.state = state;
    }

    NativeState state() {
        return state;
    }
}

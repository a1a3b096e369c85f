package io.aqueduct.flink;

import org.apache.flink.api.connector.source.SourceEvent;

/** A message between an enumerator and a reader in the library. */
final class AqueductEvent implements SourceEvent {

    private static final long serialVersionUID = 1L;

    private final NativeState message;

    AqueductEvent(NativeState message) {
        this.message = message;
    }

    /** The message in {@code event}, which is always one of ours: no one else knows this source. */
    static NativeState of(SourceEvent event) {
        return ((AqueductEvent) event).message;
    }

    @Override
    public String toString() {
        return message.toString();
    }
}

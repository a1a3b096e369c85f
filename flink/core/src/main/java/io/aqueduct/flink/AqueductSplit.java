package io.aqueduct.flink;

import org.apache.flink.api.connector.source.SourceSplit;

/** A split: its name and what the library knows of it. */
public final class AqueductSplit implements SourceSplit {

    private final String id;
    private final NativeState state;

    AqueductSplit(String id, NativeState state) {
        this.id = id;
        this.state = state;
    }

    static AqueductSplit read(Wire.Reader reader) {
        return new AqueductSplit(reader.text(), NativeState.read(reader));
    }

    void write(Wire.Writer writer) {
        state.write(writer.text(id));
    }

    @Override
    public String splitId() {
        return id;
    }

    @Override
    public String toString() {
        return id;
    }
}

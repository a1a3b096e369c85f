package io.aqueduct.flink;

import java.io.Serializable;

/** State in the library's own format: bytes and the version that wrote them. Nothing in Java looks inside. */
final class NativeState implements Serializable {

    private static final long serialVersionUID = 1L;

    private final int version;
    private final byte[] bytes;

    NativeState(int version, byte[] bytes) {
        this.version = version;
        this.bytes = bytes;
    }

    static NativeState read(Wire.Reader reader) {
        return new NativeState(reader.u32(), reader.bytes());
    }

    void write(Wire.Writer writer) {
        writer.u32(version).bytes(bytes);
    }

    /** Its shape only. */
    @Override
    public String toString() {
        return "NativeState(v" + version + ", " + bytes.length + " bytes)";
    }
}

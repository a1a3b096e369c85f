package io.aqueduct.flink;

import java.io.IOException;
import java.util.function.BiConsumer;
import java.util.function.Function;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** How what the library stores lies in Flink's checkpoints. Every version ever released stays readable. */
final class Serializers {

    private Serializers() {}

    static SimpleVersionedSerializer<AqueductSplit> split() {
        return new Of<>("a split", (split, writer) -> split.write(writer), AqueductSplit::read);
    }

    static SimpleVersionedSerializer<EnumeratorState> enumerator() {
        return new Of<>(
                "the state of an enumerator",
                (enumerator, writer) -> {
                    NativeState state = enumerator.state();
                    writer.u8(state == null ? 0 : 1);
                    if (state != null) {
                        state.write(writer);
                    }
                },
                reader -> new EnumeratorState(reader.u8() == 0 ? null : NativeState.read(reader)));
    }

    private static final class Of<T> implements SimpleVersionedSerializer<T> {

        private static final int VERSION = 1;

        private final String what;
        private final BiConsumer<T, Wire.Writer> write;
        private final Function<Wire.Reader, T> read;

        Of(String what, BiConsumer<T, Wire.Writer> write, Function<Wire.Reader, T> read) {
            this.what = what;
            this.write = write;
            this.read = read;
        }

        @Override
        public int getVersion() {
            return VERSION;
        }

        @Override
        public byte[] serialize(T value) {
            Wire.Writer writer = new Wire.Writer();
            write.accept(value, writer);
            return writer.finish();
        }

        @Override
        public T deserialize(int version, byte[] bytes) throws IOException {
            if (version != VERSION) {
                throw new IOException(what + " was written as version " + version + ", this jar of aqueduct reads version "
                        + VERSION + "; use the jar that wrote it, or a newer one");
            }
            Wire.Reader reader = new Wire.Reader(what, bytes);
            T value = read.apply(reader);
            reader.finish();
            return value;
        }
    }
}

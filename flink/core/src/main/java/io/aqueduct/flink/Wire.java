package io.aqueduct.flink;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The bytes between Java and the library: little-endian numbers, and texts and bytes after their length. */
final class Wire {

    private Wire() {}

    static final byte[] EMPTY = new byte[0];

    static final class Writer {

        private ByteBuffer buffer = ByteBuffer.allocate(256).order(ByteOrder.LITTLE_ENDIAN);

        private ByteBuffer room(int size) {
            if (buffer.remaining() < size) {
                int capacity = Math.max(Math.addExact(buffer.position(), size), buffer.capacity() * 2);
                ByteBuffer larger = ByteBuffer.allocate(capacity).order(ByteOrder.LITTLE_ENDIAN);
                larger.put(buffer.array(), 0, buffer.position());
                buffer = larger;
            }
            return buffer;
        }

        Writer u8(int value) {
            room(1).put((byte) value);
            return this;
        }

        Writer u32(int value) {
            room(4).putInt(value);
            return this;
        }

        Writer i64(long value) {
            room(8).putLong(value);
            return this;
        }

        Writer bytes(byte[] value) {
            u32(value.length);
            room(value.length).put(value);
            return this;
        }

        /** Bytes without their length. */
        Writer raw(byte[] value) {
            room(value.length).put(value);
            return this;
        }

        Writer text(String value) {
            return bytes(value.getBytes(StandardCharsets.UTF_8));
        }

        byte[] finish() {
            return Arrays.copyOf(buffer.array(), buffer.position());
        }
    }

    /** Reads what the library or a checkpoint holds. Bytes that end early or go on are refused. */
    static final class Reader {

        private final String what;
        private final ByteBuffer buffer;

        Reader(String what, byte[] bytes) {
            this.what = what;
            this.buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        }

        int u8() {
            return checked(1).get() & 0xFF;
        }

        int u32() {
            return checked(4).getInt();
        }

        long i64() {
            return checked(8).getLong();
        }

        /** A number of items of at least {@code size} bytes each; more than there is room for are refused. */
        int count(int size) {
            int count = u32();
            if (count < 0 || (long) count * size > buffer.remaining()) {
                throw damaged();
            }
            return count;
        }

        byte[] bytes() {
            byte[] value = new byte[count(1)];
            buffer.get(value);
            return value;
        }

        String text() {
            return new String(bytes(), StandardCharsets.UTF_8);
        }

        int position() {
            return buffer.position();
        }

        boolean atEnd() {
            return !buffer.hasRemaining();
        }

        void finish() {
            if (!atEnd()) {
                throw damaged();
            }
        }

        private ByteBuffer checked(int size) {
            if (buffer.remaining() < size) {
                throw damaged();
            }
            return buffer;
        }

        private RuntimeException damaged() {
            return Native.failure(
                    AqueductException.Kind.STATE.ordinal(),
                    what + " is damaged at byte " + buffer.position() + " of " + buffer.limit());
        }
    }
}

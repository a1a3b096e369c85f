package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.runtime.execution.SuppressRestartsException;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.catalog.ObjectIdentifier;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.util.StringUtils;
import org.junit.jupiter.api.Test;

/** What lies in checkpoints and job graphs keeps its bytes. */
class WireTest {

    private static final byte[] SPLIT =
            StringUtils.hexStringToByte("03000000" + "61c3bc" + "05000000" + "02000000" + "00ff");

    @Test
    void aSplitOfTheFirstVersionReadsAndIsWrittenSo() throws IOException {
        SimpleVersionedSerializer<AqueductSplit> serializer = Serializers.split();
        AqueductSplit split = serializer.deserialize(1, SPLIT);
        assertEquals("aü", split.splitId());
        assertEquals(1, serializer.getVersion());
        assertArrayEquals(SPLIT, serializer.serialize(split));
    }

    @Test
    void theStateOfAnEnumeratorKeepsItsBytesAlsoBeforeItBegan() throws IOException {
        SimpleVersionedSerializer<EnumeratorState> serializer = Serializers.enumerator();
        byte[] begun = StringUtils.hexStringToByte("01" + "07000000" + "01000000" + "2a");
        assertArrayEquals(begun, serializer.serialize(serializer.deserialize(1, begun)));
        byte[] nothing = {0};
        assertArrayEquals(nothing, serializer.serialize(serializer.deserialize(1, nothing)));
    }

    @Test
    void anotherVersionAndDamagedBytesAreRefused() {
        SimpleVersionedSerializer<AqueductSplit> serializer = Serializers.split();
        var error = assertThrows(IOException.class, () -> serializer.deserialize(2, SPLIT));
        assertTrue(error.getMessage().contains("version 2"), error.getMessage());
        for (int length = 0; length < SPLIT.length; length++) {
            byte[] cut = Arrays.copyOf(SPLIT, length);
            assertThrows(SuppressRestartsException.class, () -> serializer.deserialize(1, cut), "cut at " + length);
        }
        byte[] longer = Arrays.copyOf(SPLIT, SPLIT.length + 1);
        assertThrows(SuppressRestartsException.class, () -> serializer.deserialize(1, longer));
    }

    @Test
    void aTableHasTheBytesThatTheLibraryReads() {
        ResolvedSchema schema = ResolvedSchema.of(Column.physical("id", DataTypes.BIGINT().notNull()));
        TableDescription table = new TableDescription(
                "pubsub", ObjectIdentifier.of("c", "d", "t"), schema, Map.of("b", "2", "a", "1"));
        Wire.Reader outer = new Wire.Reader("table", table.scan(new int[][] {{0}}, List.of("m"), List.of(), 5L));
        assertEquals(1, outer.u32());
        Wire.Reader body = new Wire.Reader("body", outer.bytes());
        outer.finish();
        assertEquals("pubsub", body.text());
        assertTrue(body.text().endsWith("t"));
        assertEquals(1, body.u32());
        assertEquals("id", body.text());
        assertEquals("BIGINT NOT NULL", body.text());
        assertEquals(0, body.u32());
        assertEquals(2, body.u32());
        assertEquals(List.of("a", "1", "b", "2"), List.of(body.text(), body.text(), body.text(), body.text()));
        assertEquals(2, body.u8());
        assertEquals(1, body.u8());
        assertEquals(List.of(1, 1, 0), List.of(body.u32(), body.u32(), body.u32()));
        assertEquals(1, body.u32());
        assertEquals("m", body.text());
        assertEquals(0, body.u32());
        assertEquals(1, body.u8());
        assertEquals(5, body.i64());
        body.finish();
    }

    @Test
    void loggersAreNamedAfterTheModules() {
        assertEquals("io.aqueduct.pubsub.source", LogLines.name("aqueduct_pubsub::source"));
        assertEquals("io.aqueduct.library.h2.client", LogLines.name("h2::client"));
    }

    @Test
    void aReasonNamesExceptionsAndQuotesNothing() {
        String reason = PayloadDecoder.reason(new IOException("secret", new IllegalStateException("secret")));
        assertEquals("java.io.IOException, caused by java.lang.IllegalStateException", reason);
    }
}

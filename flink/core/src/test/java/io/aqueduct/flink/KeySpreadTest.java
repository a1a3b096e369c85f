package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.types.logical.LogicalType;
import org.junit.jupiter.api.Test;

class KeySpreadTest {

    private final KeySpread spread =
            new KeySpread(new int[] {1}, new LogicalType[] {DataTypes.STRING().getLogicalType()});

    private int writer(StringData key) {
        return spread.partition(spread.getKey(GenericRowData.of(7L, key)), 4);
    }

    @Test
    void equalKeysMeetInWhateverFormTheyCome() {
        for (int number = 0; number < 100; number++) {
            String key = "key-" + number + "-𝄞";
            StringData bytes = BinaryStringData.fromBytes(key.getBytes(StandardCharsets.UTF_8));
            assertEquals(writer(StringData.fromString(key)), writer(bytes));
        }
    }

    @Test
    void keysAndRowsWithoutKeySpreadOverAllWriters() {
        int[] keyed = new int[4];
        int[] keyless = new int[4];
        for (int number = 0; number < 400; number++) {
            keyed[writer(StringData.fromString("key-" + number))]++;
            keyless[writer(number % 2 == 0 ? null : StringData.fromString(""))]++;
        }
        for (int writer = 0; writer < 4; writer++) {
            assertTrue(keyed[writer] > 50, "writer " + writer + " got " + keyed[writer]);
            assertEquals(100, keyless[writer]);
        }
    }
}

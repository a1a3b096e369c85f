package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class BatchLimitTest {

    private static BatchLimit at(long rowsPerSecond, int batches) {
        BatchLimit limit = new BatchLimit();
        feed(limit, rowsPerSecond, batches);
        return limit;
    }

    private static void feed(BatchLimit limit, long rowsPerSecond, int batches) {
        for (int at = 0; at < batches; at++) {
            limit.taken(limit.rows(), limit.rows() * 1_000_000_000L / rowsPerSecond);
        }
    }

    @Test
    void aFastServiceGetsWholeBatches() {
        assertEquals(BatchLimit.MOST_ROWS, at(1_000_000, 10).rows());
    }

    @Test
    void aSlowServiceGetsWhatItTakesInAMoment() {
        for (int batches = 1; batches < 20; batches++) {
            int rows = at(1_000, batches).rows();
            assertTrue(rows <= 20, rows + " rows after " + batches + " batches");
        }
        assertEquals(1, at(3, 20).rows());
    }

    @Test
    void aServiceThatSlowsDownIsKnownAfterOneBatch() {
        BatchLimit limit = at(1_000_000, 10);
        feed(limit, 300, 1);
        assertEquals(6, limit.rows());
        feed(limit, 1_000_000, 10);
        assertEquals(BatchLimit.MOST_ROWS, limit.rows());
    }

    @Test
    void aBatchThatLeftEarlyMakesTheNextNoLarger() {
        BatchLimit limit = at(1_000_000, 3);
        assertEquals(8, limit.rows());
        limit.taken(7, 0);
        assertEquals(8, limit.rows());
        limit.taken(8, 0);
        assertEquals(16, limit.rows());
    }
}

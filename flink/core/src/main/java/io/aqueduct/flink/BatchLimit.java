package io.aqueduct.flink;

/**
 * How many rows make a batch: as many as the library takes within a moment.
 *
 * <p>A task that hands a batch over goes on when all of it was taken, and no barrier passes before. So a service that takes
 * few rows a second gets small batches, down to one row, and a fast one gets batches that cost next to nothing a row.
 */
final class BatchLimit {

    /** Beyond it, larger batches make a row no cheaper. */
    static final int MOST_ROWS = 512;

    /** How long a batch may be on its way, in nanoseconds: little beside a flush, much beside a call of the library. */
    static final long MOMENT = 20_000_000;

    /** Nothing is known of a service before the first rows. */
    private int rows = 1;

    int rows() {
        return rows;
    }

    /** Learns from a batch of so many rows that was taken within so many nanoseconds. */
    void taken(int batch, long nanos) {
        if (nanos > MOMENT) {
            rows = (int) Math.max(1, batch * MOMENT / nanos);
        } else if (nanos < MOMENT / 2 && batch >= rows) {
            // A batch that left before it was full says nothing of a larger one.
            rows = Math.min(MOST_ROWS, 2 * rows);
        }
    }
}

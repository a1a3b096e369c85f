package io.aqueduct.flink;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.ExceptionUtils;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** SQL jobs on a cluster in this process, into and out of the probe's tables in the library. */
@Timeout(300)
class JobTest {

    private static int stores;

    private StreamExecutionEnvironment environment;
    private StreamTableEnvironment sql;
    private String store;

    @BeforeEach
    void start() {
        Configuration configuration = new Configuration();
        configuration.setString("restart-strategy.type", "none");
        environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(2);
        sql = StreamTableEnvironment.create(environment);
        store = "store-" + stores++;
    }

    /** Whatever a job did, nothing of the library runs when it is over. */
    @AfterEach
    void nothingIsLeft() throws InterruptedException {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        List<String> left;
        do {
            left = Thread.getAllStackTraces().keySet().stream()
                    .map(Thread::getName)
                    .filter(name -> name.startsWith("aqueduct-"))
                    .collect(Collectors.toList());
            Thread.sleep(10);
        } while (!left.isEmpty() && System.nanoTime() < until);
        assertEquals(List.of(), left);
        assertEquals(0, Library.users());
    }

    private void table(String name, String columns, String... options) {
        StringBuilder statement = new StringBuilder("CREATE TABLE " + name + " (" + columns
                + ") WITH ('connector' = 'aqueduct-probe', 'store' = '" + store + "'");
        for (int at = 0; at < options.length; at += 2) {
            statement.append(", '").append(options[at]).append("' = '").append(options[at + 1]).append("'");
        }
        sql.executeSql(statement.append(")").toString());
    }

    private List<Row> rows(String query) throws Exception {
        List<Row> rows = new ArrayList<>();
        CloseableIterator<Row> results = sql.executeSql(query).collect();
        try {
            results.forEachRemaining(rows::add);
        } finally {
            results.close();
        }
        return rows;
    }

    private Throwable failure(String statement) {
        var error = assertThrows(Exception.class, () -> sql.executeSql(statement).await());
        return error;
    }

    @Test
    void rowsThatWereInsertedAreSelected() throws Exception {
        String columns = "id BIGINT, name STRING, price DECIMAL(30, 5), at_time TIMESTAMP(9), tags ARRAY<STRING>, "
                + "place ROW<city STRING, zip INT>, counts MAP<STRING, INT>";
        table("there", columns, "sink.capacity", "7", "sink.delay", "1 ms");
        table("back", columns, "scan.splits", "5");
        sql.createTemporaryView("numbers", environment.fromSequence(0, 499));
        sql.executeSql("INSERT INTO there SELECT f0, 'n' || CAST(f0 AS STRING) || 'ü', 1.5, "
                        + "TIMESTAMP '2026-01-02 03:04:05.123456789', ARRAY['a', 'b'], ROW('c', CAST(f0 AS INT)), "
                        + "MAP['k', CAST(f0 AS INT)] FROM numbers")
                .await();
        List<Row> rows = rows("SELECT * FROM back");
        assertEquals(500, rows.size());
        List<Long> ids = rows.stream().map(row -> row.<Long>getFieldAs(0)).sorted().collect(Collectors.toList());
        for (int id = 0; id < 500; id++) {
            assertEquals(id, ids.get(id));
        }
        Row row = rows.stream().filter(one -> one.<Long>getFieldAs(0) == 42).findFirst().orElseThrow();
        assertEquals(
                "+I[42, n42ü, 1.50000, 2026-01-02T03:04:05.123456789, [a, b], +I[c, 42], {k=42}]", row.toString());
    }

    @Test
    void aRefusedStatementSaysWhyInTheLibrarysWords() {
        table("there", "id BIGINT", "sink.capacity", "0");
        Throwable error = failure("INSERT INTO there VALUES (1)");
        ValidationException refusal = ExceptionUtils.findThrowable(error, ValidationException.class).orElseThrow();
        String all = ExceptionUtils.stringifyException(refusal);
        assertTrue(all.contains("Option 'sink.capacity' is invalid"), all);
    }

    @Test
    void anUnknownOptionIsRefusedWithTheNearest() {
        table("there", "id BIGINT", "sink.capazity", "1");
        String all = ExceptionUtils.stringifyException(failure("INSERT INTO there VALUES (1)"));
        assertTrue(all.contains("did you mean 'sink.capacity'?"), all);
    }

    @Test
    void aPanicFailsTheJobWithItsText() {
        table("there", "id BIGINT", "panic-at", "3");
        Throwable error = failure("INSERT INTO there VALUES (1), (2), (3), (4), (5), (6), (7), (8)");
        AqueductException found = ExceptionUtils.findThrowable(error, AqueductException.class).orElseThrow();
        assertEquals(AqueductException.Kind.BUG, found.kind());
        assertTrue(found.getMessage().contains("row 3 panics as it was told"), found.getMessage());
    }

    @Test
    void anErrorThatNoRestartHelpsEndsTheJobWhateverItsRestartStrategy() {
        Configuration configuration = new Configuration();
        configuration.setString("restart-strategy.type", "fixed-delay");
        configuration.setString("restart-strategy.fixed-delay.attempts", "1000000");
        environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        sql = StreamTableEnvironment.create(environment);
        table("there", "id BIGINT", "fail-at", "1");
        Throwable error = failure("INSERT INTO there VALUES (1), (2), (3)");
        AqueductException found = ExceptionUtils.findThrowable(error, AqueductException.class).orElseThrow();
        assertEquals(AqueductException.Kind.DATA, found.kind());
        assertEquals("row 1 fails: as it was told", found.getMessage());
    }

    @Test
    void aPanicOfAReaderFailsTheJob() throws Exception {
        table("there", "id BIGINT");
        table("back", "id BIGINT", "panic-at", "2");
        sql.executeSql("INSERT INTO there VALUES (1), (2), (3)").await();
        var error = assertThrows(Exception.class, () -> rows("SELECT * FROM back"));
        String all = ExceptionUtils.stringifyException(error);
        assertTrue(all.contains("row 2 panics as it was told"), all);
    }

    /** Counts the checkpoints that its job completed. */
    private static final class Counting implements MapFunction<Long, Long>, CheckpointListener {

        private static final long serialVersionUID = 1L;

        private static volatile CountDownLatch completed;

        @Override
        public Long map(Long value) {
            return value;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            completed.countDown();
        }
    }

    @Test
    void checkpointsPassASinkThatIsAtItsBoundAndItIsCancelledThere() throws Exception {
        Counting.completed = new CountDownLatch(6);
        environment.enableCheckpointing(50);
        sql.createTemporaryView("numbers", environment.fromSequence(0, Long.MAX_VALUE).map(new Counting()));
        table("there", "id BIGINT", "sink.capacity", "1", "sink.delay", "10 ms");
        JobClient job = insert("INSERT INTO there SELECT * FROM numbers");
        assertTrue(Counting.completed.await(60, TimeUnit.SECONDS), "no checkpoint completed");
        job.cancel().get(20, TimeUnit.SECONDS);
    }

    /** A hundred rows a second, far below what fits into a batch of bytes: a barrier waits for what is in flight, no more. */
    @Test
    void aSlowServiceDelaysABarrierByWhatIsInFlight() throws Exception {
        environment.setParallelism(1);
        environment.enableCheckpointing(50);
        sql.createTemporaryView("numbers", environment.fromSequence(0, Long.MAX_VALUE).map(new Counting()));
        table("there", "id BIGINT", "sink.capacity", "10", "sink.delay", "100 ms");
        Counting.completed = new CountDownLatch(1);
        JobClient job = insert("INSERT INTO there SELECT * FROM numbers");
        assertTrue(Counting.completed.await(60, TimeUnit.SECONDS), "no checkpoint completed");
        Counting.completed = new CountDownLatch(5);
        // A batch of 64 KiB would take this service twenty seconds, for each of the five.
        assertTrue(Counting.completed.await(30, TimeUnit.SECONDS), "barriers wait for more than what is in flight");
        job.cancel().get(20, TimeUnit.SECONDS);
    }

    @Test
    void aSinkWhoseRowsNeverArriveIsCancelled() throws Exception {
        table("there", "id BIGINT", "sink.capacity", "1", "sink.delay", "1 d");
        JobClient job = sql.executeSql("INSERT INTO there VALUES (1), (2), (3)").getJobClient().orElseThrow();
        while (!job.getJobStatus().get().equals(JobStatus.RUNNING)) {
            Thread.onSpinWait();
        }
        job.cancel().get(20, TimeUnit.SECONDS);
        assertThrows(ExecutionException.class, () -> job.getJobExecutionResult().get(20, TimeUnit.SECONDS));
    }

    @Test
    void aSourceThatWaitsGivesWhatItHasAndIsCancelled() throws Exception {
        table("there", "id BIGINT");
        sql.executeSql("INSERT INTO there VALUES (1), (2), (3)").await();
        table("back", "id BIGINT", "scan.endless", "true");
        TableResult result = sql.executeSql("SELECT * FROM back");
        CloseableIterator<Row> rows = result.collect();
        List<Long> ids = List.of(rows.next().getFieldAs(0), rows.next().getFieldAs(0), rows.next().getFieldAs(0));
        assertEquals(List.of(1L, 2L, 3L), ids.stream().sorted().collect(Collectors.toList()));
        rows.close();
    }

    @Test
    void rowsAreJoinedWithWhatIsLookedUp() throws Exception {
        table("there", "id BIGINT, name STRING");
        table("back", "id BIGINT, name STRING", "sink.delay", "2 ms");
        sql.executeSql("INSERT INTO there VALUES (1, 'one'), (2, 'two'), (2, 'zwei')").await();
        sql.executeSql("CREATE TEMPORARY VIEW asked AS SELECT id, PROCTIME() AS now_time "
                + "FROM (VALUES (CAST(1 AS BIGINT)), (CAST(2 AS BIGINT)), (CAST(3 AS BIGINT))) AS t(id)");
        List<String> found = rows("SELECT a.id, b.name FROM asked AS a "
                        + "LEFT JOIN back FOR SYSTEM_TIME AS OF a.now_time AS b ON a.id = b.id")
                .stream().map(Row::toString).sorted().collect(Collectors.toList());
        assertEquals(List.of("+I[1, one]", "+I[2, two]", "+I[2, zwei]", "+I[3, null]"), found);
    }

    private JobClient insert(String statement) throws Exception {
        var statements = sql.createStatementSet();
        statements.addInsertSql(statement);
        statements.attachAsDataStream();
        return environment.executeAsync();
    }
}

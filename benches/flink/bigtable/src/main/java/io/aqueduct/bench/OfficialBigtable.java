package io.aqueduct.bench;

import com.google.api.gax.batching.Batcher;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.RowMutationEntry;
import com.google.cloud.bigtable.data.v2.models.TableId;
import com.google.protobuf.ByteString;
import java.io.IOException;
import java.util.Set;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.FactoryUtil;

/**
 * A sink as one would write it in a day on the official client: rows of {@code (id STRING, f ROW<v STRING>)}, each an entry of
 * the client's bulk batcher with its own settings. It knows this one schema and looks at no entry's verdict but in the flush, so
 * it is faster than a connector could be.
 */
public final class OfficialBigtable implements DynamicTableSinkFactory {

    private static final ConfigOption<Integer> PORT = ConfigOptions.key("port").intType().noDefaultValue();
    private static final ConfigOption<String> PROJECT =
            ConfigOptions.key("project").stringType().noDefaultValue();
    private static final ConfigOption<String> INSTANCE =
            ConfigOptions.key("instance").stringType().noDefaultValue();
    private static final ConfigOption<String> TABLE = ConfigOptions.key("table").stringType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "official-bigtable";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(PORT, PROJECT, INSTANCE, TABLE);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        helper.validate();
        var options = helper.getOptions();
        return new Table(new Bulk(
                options.get(PORT), options.get(PROJECT), options.get(INSTANCE), options.get(TABLE)));
    }

    private static final class Table implements DynamicTableSink {

        private final Bulk sink;

        Table(Bulk sink) {
            this.sink = sink;
        }

        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return ChangelogMode.insertOnly();
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkV2Provider.of(sink);
        }

        @Override
        public DynamicTableSink copy() {
            return new Table(sink);
        }

        @Override
        public String asSummaryString() {
            return "official client of Bigtable";
        }
    }

    private static final class Bulk implements Sink<RowData> {

        private final int port;
        private final String project;
        private final String instance;
        private final String table;

        Bulk(int port, String project, String instance, String table) {
            this.port = port;
            this.project = project;
            this.instance = instance;
            this.table = table;
        }

        @Override
        public SinkWriter<RowData> createWriter(WriterInitContext context) throws IOException {
            BigtableDataClient client = BigtableDataClient.create(BigtableDataSettings.newBuilderForEmulator(port)
                    .setProjectId(project)
                    .setInstanceId(instance)
                    .build());
            return new Writer(client, client.newBulkMutationBatcher(TableId.of(table)));
        }
    }

    @SuppressWarnings("try")
    private static final class Writer implements SinkWriter<RowData> {

        private static final ByteString QUALIFIER = ByteString.copyFromUtf8("v");

        private final BigtableDataClient client;
        private final Batcher<RowMutationEntry, Void> batcher;

        Writer(BigtableDataClient client, Batcher<RowMutationEntry, Void> batcher) {
            this.client = client;
            this.batcher = batcher;
        }

        @Override
        public void write(RowData row, Context context) {
            ByteString key = ByteString.copyFrom(row.getString(0).toBytes());
            ByteString value =
                    ByteString.copyFrom(row.getRow(1, 1).getString(0).toBytes());
            batcher.add(RowMutationEntry.create(key).setCell("f", QUALIFIER, value));
        }

        @Override
        public void flush(boolean endOfInput) throws InterruptedException {
            batcher.flush();
        }

        @Override
        public void close() throws InterruptedException {
            batcher.close();
            client.close();
        }
    }
}

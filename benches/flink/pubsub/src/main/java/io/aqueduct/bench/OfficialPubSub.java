package io.aqueduct.bench;

import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;

/** A table of {@code (payload BYTES)} over {@link SubscriberSource}. */
public final class OfficialPubSub implements DynamicTableSourceFactory {

    private static final ConfigOption<String> ENDPOINT =
            ConfigOptions.key("endpoint").stringType().noDefaultValue();
    private static final ConfigOption<String> PROJECT =
            ConfigOptions.key("project").stringType().noDefaultValue();
    private static final ConfigOption<String> SUBSCRIPTION =
            ConfigOptions.key("subscription").stringType().noDefaultValue();
    private static final ConfigOption<Long> OUTSTANDING =
            ConfigOptions.key("outstanding").longType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "official-pubsub";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(ENDPOINT, PROJECT, SUBSCRIPTION, OUTSTANDING);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        helper.validate();
        var options = helper.getOptions();
        return new Table(new SubscriberSource(
                options.get(ENDPOINT), options.get(PROJECT), options.get(SUBSCRIPTION), options.get(OUTSTANDING)));
    }

    private static final class Table implements ScanTableSource {

        private final SubscriberSource source;

        Table(SubscriberSource source) {
            this.source = source;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            return SourceProvider.of(source);
        }

        @Override
        public DynamicTableSource copy() {
            return new Table(source);
        }

        @Override
        public String asSummaryString() {
            return "official client of Pub/Sub";
        }
    }
}

package io.aqueduct.flink;

import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.table.api.ValidationException;
import org.apache.flink.table.catalog.WatermarkSpec;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.format.EncodingFormat;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DeserializationFormatFactory;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.factories.SerializationFormatFactory;
import org.apache.flink.table.types.DataType;

/** Makes the tables of one connector. A subclass is a name for Flink's service loader, beside its {@code table.tsv}. */
public abstract class AqueductTableFactory implements DynamicTableSourceFactory, DynamicTableSinkFactory {

    /** Options of Flink's own that concern a table and not its connector. */
    private static final String FLINK_WATERMARKS = "scan.watermark.";

    private static final String PROPERTY_VERSION = "property-version";

    private final TableResource resource;

    protected AqueductTableFactory() {
        resource = TableResource.of(getClass());
    }

    @Override
    public final String factoryIdentifier() {
        return resource.connector();
    }

    @Override
    public final Set<ConfigOption<?>> requiredOptions() {
        Set<ConfigOption<?>> options = new LinkedHashSet<>(resource.required());
        if (resource.formatted()) {
            options.add(FactoryUtil.FORMAT);
        }
        return options;
    }

    @Override
    public final Set<ConfigOption<?>> optionalOptions() {
        return resource.optional();
    }

    @Override
    public final DynamicTableSource createDynamicTableSource(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        DecodingFormat<DeserializationSchema<RowData>> format = resource.formatted()
                ? WholeFormat.of(
                        helper.getOptions().get(FactoryUtil.FORMAT),
                        helper.discoverDecodingFormat(DeserializationFormatFactory.class, FactoryUtil.FORMAT))
                : null;
        checkWatermarks(context);
        TableDescription table = describe(context);
        AqueductTableSource source = resource.lookups()
                ? new AqueductLookupTableSource(table, resource, physical(context), format)
                : new AqueductTableSource(table, resource, physical(context), format);
        source.check();
        checkFormat(helper, context);
        return source;
    }

    @Override
    public final DynamicTableSink createDynamicTableSink(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        EncodingFormat<SerializationSchema<RowData>> format = resource.formatted()
                ? helper.discoverEncodingFormat(SerializationFormatFactory.class, FactoryUtil.FORMAT)
                : null;
        checkFormat(helper, context);
        // The library is asked when the planner has said which metadata is written.
        return new AqueductTableSink(describe(context), resource, physical(context), format);
    }

    private static DataType physical(Context context) {
        return context.getCatalogTable().getResolvedSchema().toPhysicalRowDataType();
    }

    private TableDescription describe(Context context) {
        Map<String, String> options = new HashMap<>(context.getCatalogTable().getOptions());
        options.keySet().removeIf(key -> !isOurs(key, context));
        return new TableDescription(
                resource.connector(),
                context.getObjectIdentifier(),
                context.getCatalogTable().getResolvedSchema(),
                options);
    }

    /** Whether an option is for the library, which refuses what it does not know. */
    private boolean isOurs(String key, Context context) {
        return !key.equals(FactoryUtil.CONNECTOR.key())
                && !key.equals(PROPERTY_VERSION)
                && !key.startsWith(FLINK_WATERMARKS)
                && !isOfFormat(key, context);
    }

    private boolean isOfFormat(String key, Context context) {
        if (!resource.formatted()) {
            return false;
        }
        String format = context.getCatalogTable().getOptions().get(FactoryUtil.FORMAT.key());
        return key.equals(FactoryUtil.FORMAT.key()) || (format != null && key.startsWith(format + "."));
    }

    /** Flink would find out with the first row. */
    private void checkWatermarks(Context context) {
        for (WatermarkSpec watermark : context.getCatalogTable().getResolvedSchema().getWatermarkSpecs()) {
            if (watermark.getWatermarkExpression().asSummaryString().contains("SOURCE_WATERMARK")) {
                String column = watermark.getRowtimeAttribute();
                throw new ValidationException("The watermark for '" + column + "' is SOURCE_WATERMARK(), and tables of '"
                        + resource.connector() + "' have none of their own: make one of a column, such as WATERMARK FOR "
                        + column + " AS " + column + " - INTERVAL '5' SECOND");
            }
        }
    }

    /** Flink checks what the library does not see: required options, and that the format knows its own. */
    private void checkFormat(FactoryUtil.TableFactoryHelper helper, Context context) {
        String[] ours = context.getCatalogTable().getOptions().keySet().stream()
                .filter(key -> !isOfFormat(key, context))
                .toArray(String[]::new);
        if (ours.length > 0) {
            helper.validateExcept(ours);
        } else {
            helper.validate();
        }
    }
}

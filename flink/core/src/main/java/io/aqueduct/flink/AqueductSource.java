package io.aqueduct.flink;

import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.logical.LogicalType;

/** A source: the bytes of a table and its plan, and how the library's rows become the query's. */
public final class AqueductSource
        implements Source<RowData, AqueductSplit, EnumeratorState>, ResultTypeQueryable<RowData> {

    private static final long serialVersionUID = 1L;

    private final byte[] table;
    private final boolean bounded;
    private final TypeInformation<RowData> type;

    /** Fields of the library's rows. */
    private final int arity;

    /** Null unless a format decodes payloads. */
    private final DeserializationSchema<RowData> format;

    /** Types of the metadata behind the payload. */
    private final LogicalType[] metadata;

    AqueductSource(
            byte[] table,
            boolean bounded,
            TypeInformation<RowData> type,
            int arity,
            DeserializationSchema<RowData> format,
            LogicalType[] metadata) {
        this.table = table;
        this.bounded = bounded;
        this.type = type;
        this.arity = arity;
        this.format = format;
        this.metadata = metadata;
    }

    @Override
    public Boundedness getBoundedness() {
        return bounded ? Boundedness.BOUNDED : Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<RowData, AqueductSplit> createReader(SourceReaderContext context) {
        return new AqueductReader(table, arity, format == null ? null : new PayloadDecoder(format, metadata), context);
    }

    @Override
    public SplitEnumerator<AqueductSplit, EnumeratorState> createEnumerator(
            SplitEnumeratorContext<AqueductSplit> context) {
        return new AqueductEnumerator(table, new EnumeratorState(null), context);
    }

    @Override
    public SplitEnumerator<AqueductSplit, EnumeratorState> restoreEnumerator(
            SplitEnumeratorContext<AqueductSplit> context, EnumeratorState state) {
        return new AqueductEnumerator(table, state, context);
    }

    @Override
    public SimpleVersionedSerializer<AqueductSplit> getSplitSerializer() {
        return Serializers.split();
    }

    @Override
    public SimpleVersionedSerializer<EnumeratorState> getEnumeratorCheckpointSerializer() {
        return Serializers.enumerator();
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
        return type;
    }
}

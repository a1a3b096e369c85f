package io.aqueduct.flink;

import java.util.Collection;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.functions.AsyncLookupFunction;
import org.apache.flink.table.functions.FunctionContext;

/** Looks up many keys at once. */
public final class AqueductAsyncLookup extends AsyncLookupFunction {

    private static final long serialVersionUID = 1L;

    private final LookupClient.Description description;

    private transient LookupClient client;

    AqueductAsyncLookup(LookupClient.Description description) {
        this.description = description;
    }

    @Override
    public void open(FunctionContext context) {
        client = description.open(context);
    }

    @Override
    public CompletableFuture<Collection<RowData>> asyncLookup(RowData key) {
        return client.start(key);
    }

    @Override
    public void close() {
        if (client != null) {
            client.close();
        }
    }
}

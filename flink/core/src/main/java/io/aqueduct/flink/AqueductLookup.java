package io.aqueduct.flink;

import java.io.IOException;
import java.util.Collection;
import java.util.concurrent.ExecutionException;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;

/** Looks up one key after the other. */
public final class AqueductLookup extends LookupFunction {

    private static final long serialVersionUID = 1L;

    private final LookupClient.Description description;

    private transient LookupClient client;

    AqueductLookup(LookupClient.Description description) {
        this.description = description;
    }

    @Override
    public void open(FunctionContext context) {
        client = description.open(context);
    }

    @Override
    public Collection<RowData> lookup(RowData key) throws IOException {
        try {
            // The library bounds every request; a task that is cancelled is interrupted.
            return client.start(key).get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while a key was looked up", error);
        } catch (ExecutionException error) {
            Throwable cause = error.getCause();
            if (cause instanceof RuntimeException) {
                throw (RuntimeException) cause;
            }
            throw new IOException(cause);
        }
    }

    @Override
    public void close() {
        if (client != null) {
            client.close();
        }
    }
}

package io.aqueduct.bench;

import com.google.api.gax.batching.FlowControlSettings;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.MessageReceiver;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.pubsub.v1.ProjectSubscriptionName;
import com.google.pubsub.v1.PubsubMessage;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;

/**
 * A source as one would write it in a day on the official client: a {@link Subscriber} in every reader, whose messages go
 * through a queue to the task, which acknowledges them when the checkpoint behind them is complete. No splits, no state, no
 * policy for anything.
 */
final class SubscriberSource implements Source<RowData, SubscriberSource.NoSplit, Void> {

    private final String endpoint;
    private final String project;
    private final String subscription;
    private final long outstanding;

    SubscriberSource(String endpoint, String project, String subscription, long outstanding) {
        this.endpoint = endpoint;
        this.project = project;
        this.subscription = subscription;
        this.outstanding = outstanding;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<RowData, NoSplit> createReader(SourceReaderContext context) {
        return new Reader();
    }

    @Override
    public SplitEnumerator<NoSplit, Void> createEnumerator(SplitEnumeratorContext<NoSplit> context) {
        return new NoEnumerator();
    }

    @Override
    public SplitEnumerator<NoSplit, Void> restoreEnumerator(SplitEnumeratorContext<NoSplit> context, Void state) {
        return new NoEnumerator();
    }

    @Override
    public SimpleVersionedSerializer<NoSplit> getSplitSerializer() {
        return new Nothing<>();
    }

    @Override
    public SimpleVersionedSerializer<Void> getEnumeratorCheckpointSerializer() {
        return new Nothing<>();
    }

    /** A message, and what acknowledges it. */
    private static final class Received {

        private final PubsubMessage message;
        private final AckReplyConsumer reply;

        Received(PubsubMessage message, AckReplyConsumer reply) {
            this.message = message;
            this.reply = reply;
        }
    }

    private final class Reader implements SourceReader<RowData, NoSplit> {

        /** The client's flow control bounds it. */
        private final ConcurrentLinkedQueue<Received> queue = new ConcurrentLinkedQueue<>();

        private final TreeMap<Long, List<AckReplyConsumer>> checkpoints = new TreeMap<>();
        private List<AckReplyConsumer> emitted = new ArrayList<>();
        private volatile CompletableFuture<Void> available = new CompletableFuture<>();
        private ManagedChannel channel;
        private Subscriber subscriber;

        @Override
        public void start() {
            channel = ManagedChannelBuilder.forTarget(endpoint).usePlaintext().build();
            subscriber = Subscriber.newBuilder(
                            ProjectSubscriptionName.of(project, subscription), (MessageReceiver) (message, reply) -> {
                                queue.add(new Received(message, reply));
                                CompletableFuture<Void> waiting = available;
                                if (!waiting.isDone()) {
                                    waiting.complete(null);
                                }
                            })
                    .setChannelProvider(
                            FixedTransportChannelProvider.create(GrpcTransportChannel.create(channel)))
                    .setCredentialsProvider(NoCredentialsProvider.create())
                    .setFlowControlSettings(FlowControlSettings.newBuilder()
                            .setMaxOutstandingElementCount(outstanding)
                            .setMaxOutstandingRequestBytes(1L << 30)
                            .build())
                    .build();
            subscriber.startAsync().awaitRunning();
        }

        @Override
        public InputStatus pollNext(ReaderOutput<RowData> output) {
            Received next = queue.poll();
            if (next == null) {
                if (available.isDone()) {
                    available = new CompletableFuture<>();
                }
                // It may have come before the new future.
                next = queue.poll();
                if (next == null) {
                    return InputStatus.NOTHING_AVAILABLE;
                }
            }
            output.collect(GenericRowData.of((Object) next.message.getData().toByteArray()));
            emitted.add(next.reply);
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return available;
        }

        @Override
        public List<NoSplit> snapshotState(long checkpoint) {
            checkpoints.put(checkpoint, emitted);
            emitted = new ArrayList<>();
            return List.of();
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            var complete = checkpoints.headMap(checkpoint, true);
            complete.values().forEach(replies -> replies.forEach(AckReplyConsumer::ack));
            complete.clear();
        }

        @Override
        public void addSplits(List<NoSplit> splits) {}

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {
            if (subscriber != null) {
                subscriber.stopAsync();
            }
            if (channel != null) {
                channel.shutdownNow();
            }
        }
    }

    /** There is none. */
    static final class NoSplit implements SourceSplit {

        @Override
        public String splitId() {
            return "";
        }
    }

    private static final class NoEnumerator implements SplitEnumerator<NoSplit, Void> {

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<NoSplit> splits, int subtask) {}

        @Override
        public void addReader(int subtask) {}

        @Override
        public Void snapshotState(long checkpoint) {
            return null;
        }

        @Override
        public void close() {}
    }

    private static final class Nothing<T> implements SimpleVersionedSerializer<T> {

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(T nothing) {
            return new byte[0];
        }

        @Override
        public T deserialize(int version, byte[] serialized) {
            return null;
        }
    }
}

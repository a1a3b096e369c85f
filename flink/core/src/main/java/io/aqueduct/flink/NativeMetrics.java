package io.aqueduct.flink;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.metrics.Counter;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.metrics.MetricGroup;
import org.apache.flink.metrics.groups.SinkWriterMetricGroup;
import org.apache.flink.metrics.groups.SourceReaderMetricGroup;

/**
 * The metrics of an object in the library, shown in a metric group of Flink's.
 *
 * <p>They are copied once a second, so a reporter reads Java's memory only. A name that Flink itself counts by goes into
 * Flink's own counter.
 */
final class NativeMetrics {

    private final long handle;
    private final MetricGroup group;

    /** In the library's order; guarded by this object, as all is. */
    private final List<Shown> shown = new ArrayList<>();

    private boolean closed;

    NativeMetrics(long handle, MetricGroup group) {
        this.handle = handle;
        this.group = group;
    }

    synchronized void refresh() {
        if (closed) {
            return;
        }
        Wire.Reader reader = new Wire.Reader("the metrics", Native.metrics(handle, shown.size()));
        for (int left = reader.count(9); left > 0; left--) {
            int kind = reader.u8();
            String name = reader.text();
            MetricGroup target = group;
            for (int labels = reader.count(8); labels > 0; labels--) {
                target = target.addGroup(reader.text(), reader.text());
            }
            shown.add(show(target, kind, name));
        }
        for (Shown metric : shown) {
            metric.read(reader);
        }
        reader.finish();
    }

    /** Shows the last values from now on. */
    synchronized void close() {
        refresh();
        closed = true;
    }

    private Shown show(MetricGroup target, int kind, String name) {
        switch (kind) {
            case 0:
                Counter host = hostCounter(name);
                return host == null ? new OwnCounter(target, name) : new HostCounter(host);
            case 1:
                return new OwnGauge(target, name);
            default:
                return new Distribution(target, name);
        }
    }

    /** The counter that Flink has for a name, or null. */
    private Counter hostCounter(String name) {
        if (group instanceof SinkWriterMetricGroup) {
            SinkWriterMetricGroup writer = (SinkWriterMetricGroup) group;
            switch (name) {
                case "numRecordsSend":
                    return writer.getNumRecordsSendCounter();
                case "numBytesSend":
                    return writer.getNumBytesSendCounter();
                case "numRecordsSendErrors":
                    return writer.getNumRecordsSendErrorsCounter();
                default:
                    return null;
            }
        }
        if (group instanceof SourceReaderMetricGroup && name.equals("numRecordsInErrors")) {
            return ((SourceReaderMetricGroup) group).getNumRecordsInErrorsCounter();
        }
        return null;
    }

    private interface Shown {
        void read(Wire.Reader reader);
    }

    private static final class OwnCounter implements Shown, Counter {

        private volatile long count;

        OwnCounter(MetricGroup group, String name) {
            group.counter(name, this);
        }

        @Override
        public void read(Wire.Reader reader) {
            count = reader.i64();
        }

        @Override
        public long getCount() {
            return count;
        }

        @Override
        public void inc() {
            throw new UnsupportedOperationException("counted by the library");
        }

        @Override
        public void inc(long by) {
            inc();
        }

        @Override
        public void dec() {
            inc();
        }

        @Override
        public void dec(long by) {
            inc();
        }
    }

    private static final class HostCounter implements Shown {

        private final Counter counter;
        private long last;

        HostCounter(Counter counter) {
            this.counter = counter;
        }

        @Override
        public void read(Wire.Reader reader) {
            long count = reader.i64();
            counter.inc(count - last);
            last = count;
        }
    }

    private static final class OwnGauge implements Shown, Gauge<Long> {

        private volatile long level;

        OwnGauge(MetricGroup group, String name) {
            group.gauge(name, this);
        }

        @Override
        public void read(Wire.Reader reader) {
            level = reader.i64();
        }

        @Override
        public Long getValue() {
            return level;
        }
    }

    /** Shown as {@code nameCount} and {@code nameSum}, of which a dashboard makes rates and means. */
    private static final class Distribution implements Shown {

        private final OwnCounter count;
        private final OwnCounter sum;

        Distribution(MetricGroup group, String name) {
            count = new OwnCounter(group, name + "Count");
            sum = new OwnCounter(group, name + "Sum");
        }

        @Override
        public void read(Wire.Reader reader) {
            count.read(reader);
            sum.read(reader);
        }
    }
}

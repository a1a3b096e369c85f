//! Metrics on their way to Java.
//!
//! Java's thread for wake-ups reads them once a second, so no reporter's thread ever calls the library.

use aqueduct_connector::metrics::{MetricRegistry, SampleValue};
use aqueduct_connector::state::StateWriter;

/// Encodes what each metric after the first `known` is (kind, name, labels), then one or two numbers for each of all: a
/// counter's, a gauge's, or the count and the sum of a histogram.
pub(crate) fn encode(registry: &MetricRegistry, known: usize) -> Vec<u8> {
    let samples = registry.samples();
    let new = samples.get(known..).unwrap_or(&[]);
    let mut writer = StateWriter::new();
    writer.count(new.len());
    for sample in new {
        writer.u8(match sample.value {
            SampleValue::Counter(_) => 0,
            SampleValue::Gauge(_) => 1,
            SampleValue::Histogram { .. } => 2,
        });
        writer.text(&sample.name).count(sample.labels.len());
        for (key, value) in &sample.labels {
            writer.text(key).text(value);
        }
    }
    for sample in &samples {
        match &sample.value {
            SampleValue::Counter(count) => writer.u64(*count),
            SampleValue::Gauge(level) => writer.i64(*level),
            SampleValue::Histogram { buckets, sum } => writer
                .u64(buckets.iter().map(|(_, count)| count).sum())
                .u64(*sum),
        };
    }
    writer.finish(0).bytes.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    #[test]
    fn names_come_once_and_values_every_time() {
        let registry = MetricRegistry::new();
        let group = registry.group(&[]);
        group.counter("sent").add(3);
        group.histogram("latency", &[10]).record(7);
        let first = encode(&registry, 0);
        let bytes = wire::unversioned(first);
        let mut reader = wire::message(&bytes).expect("no version");
        assert_eq!(reader.count(9), Ok(2));
        assert_eq!(
            (reader.u8(), reader.text(), reader.count(8)),
            (Ok(0), Ok("sent"), Ok(0))
        );
        assert_eq!(
            (reader.u8(), reader.text(), reader.count(8)),
            (Ok(2), Ok("latency"), Ok(0))
        );
        assert_eq!(
            (reader.u64(), reader.u64(), reader.u64()),
            (Ok(3), Ok(1), Ok(7))
        );
        assert_eq!(reader.finish(), Ok(()));
        group.with_label("topic", "t").gauge("level").set(-1);
        let bytes = wire::unversioned(encode(&registry, 2));
        let mut reader = wire::message(&bytes).expect("no version");
        assert_eq!(reader.count(9), Ok(1));
        assert_eq!((reader.u8(), reader.text()), (Ok(1), Ok("level")));
        assert_eq!(
            (reader.count(8), reader.text(), reader.text()),
            (Ok(1), Ok("topic"), Ok("t"))
        );
        assert_eq!(
            (reader.u64(), reader.u64(), reader.u64()),
            (Ok(3), Ok(1), Ok(7))
        );
        assert_eq!((reader.i64(), reader.finish()), (Ok(-1), Ok(())));
    }
}

//! The suite that every sink passes, on the simulated service.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::metrics::MetricRegistry;
use aqueduct_connector::sink::Sink;
use aqueduct_sim::{Code, Fault, Gate, Method};
use aqueduct_testkit::TestContext;
use aqueduct_testkit::conformance::sink::Hold;
use aqueduct_testkit::conformance::{self, Accounting, Effort, Fate, Guarantee, Power, SinkWorld};
use aqueduct_testkit::log::Marker;

use super::sink_world::{How, Record, World, quick};

const MARKER: &str = "SECRET-4711";
const MOST_IN_FLIGHT: u64 = 6;
/// Of the first records one is skipped and one refused by the serializer before six are in flight.
const MOST_ADMITTED: u64 = MOST_IN_FLIGHT + 2;

struct Conformance {
    world: World,
    ordered: bool,
    held: RefCell<Option<(Gate, Fault)>>,
}

impl SinkWorld for Conformance {
    type Record = Record;

    fn sink(&self) -> Arc<dyn Sink<Record>> {
        let options = quick()
            .enable_message_ordering(self.ordered)
            .batch_element_count_threshold(4)
            .max_in_flight_messages(MOST_IN_FLIGHT)
            .max_consecutive_rejections(None)
            .shutdown_timeout(Duration::from_millis(100));
        let builder = self.world.builder().publisher_options(options);
        Arc::new(builder.build().expect("valid settings"))
    }

    fn record(&self, number: u64) -> Record {
        let mut record = Record::new(format!("{MARKER}-{number}"));
        if self.ordered && !number.is_multiple_of(3) {
            record = record.key(format!("{MARKER}-{}", number % 3));
        }
        match self.fate(number) {
            Fate::Applied => record,
            Fate::Skipped => record.how(How::Skipped),
            Fate::Handled if number.is_multiple_of(2) => record.how(How::Refused),
            Fate::Handled => record.how(How::Invalid),
        }
    }

    fn fate(&self, number: u64) -> Fate {
        match number % 8 {
            2 => Fate::Skipped,
            5 | 6 => Fate::Handled,
            _ => Fate::Applied,
        }
    }

    async fn held(&self) -> Vec<u64> {
        let number = |data: String| data.rsplit('-').next().and_then(|text| text.parse().ok());
        self.world
            .data()
            .into_iter()
            .map(|data| number(data).expect("ours"))
            .collect()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn context(&self, seed: u64) -> TestContext {
        self.world.kit.clone().with_seed(seed)
    }

    fn accounting(&self, metrics: &MetricRegistry) -> Option<Accounting> {
        let count = |name| u64::try_from(metrics.total(name)).expect("a count");
        Some(Accounting {
            applied: self.world.topic.published(),
            skipped: count("recordsSkipped"),
            handled: count("numRecordsSendErrors"),
        })
    }

    fn hold_answers(&self, hold: Hold) -> Power {
        let mut held = self.held.borrow_mut();
        match hold {
            Hold::Back => {
                let gate = Gate::new();
                let fault = self.world.topic.always(Method::Publish).hold(&gate);
                *held = Some((gate, fault));
            }
            Hold::Release => {
                if let Some((gate, fault)) = held.take() {
                    fault.remove();
                    gate.open();
                }
            }
        }
        Power::Done
    }

    fn waiting(&self) -> u64 {
        self.held
            .borrow()
            .as_ref()
            .map_or(0, |(gate, _)| gate.held() as u64)
    }

    fn break_service(&self) -> Power {
        self.world
            .topic
            .always(Method::Publish)
            .status(Code::PermissionDenied);
        Power::Done
    }

    fn most_admitted(&self) -> Option<u64> {
        Some(MOST_ADMITTED)
    }

    fn marker(&self) -> Option<Marker> {
        Some(Marker::new(MARKER))
    }
}

#[tokio::test]
async fn the_sink_keeps_the_contract_with_and_without_ordering() {
    for ordered in [false, true] {
        let report = conformance::sink(
            Effort {
                seeds: 0..1,
                points: 4,
            },
            async |_| Conformance {
                world: World::new().await,
                ordered,
                held: RefCell::new(None),
            },
        )
        .await;
        // An attempt's own deadline ends before a minute; `sink_bounds` shows the warning.
        report.assert_all_but(&["a wait of a minute is warned about, once a minute"]);
    }
}

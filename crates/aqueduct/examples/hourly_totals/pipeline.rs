//! Hourly totals by customer: orders from a subscription, event-time windows of an hour, totals to a topic.
//!
//! The pipeline alone, without services, so that a test can run it against any.

use aqueduct::connector::options::ConfigError;
use aqueduct::connector::source::Collector;
use aqueduct::connector::state::{StateReader, StateWriter};
use aqueduct::connector::{Error, Result, Timestamp};
use aqueduct::pubsub::{
    PubSubSerializer, PubSubSink, PubSubSource, ReceivedMessage, SubscriptionDestination,
};
use aqueduct::runtime::{Job, WatermarkStrategy, Window, WindowFunction, Windows};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An order, as it comes in JSON.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) customer_id: String,
    pub(crate) amount: i64,
}

impl Order {
    /// The deserializer. An order's event time is its publish time.
    pub(crate) fn read(
        message: &ReceivedMessage,
        _: &SubscriptionDestination,
        out: &mut Collector<'_, Self>,
    ) -> Result<()> {
        // Where, not what: the decoder's own words would quote the order.
        let order = serde_json::from_slice(message.data()).map_err(|error| {
            Error::user(format!("no order in JSON, at column {}", error.column()))
        })?;
        out.emit(order);
        Ok(())
    }
}

/// What a customer ordered in one hour.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Total {
    customer_id: String,
    total: i64,
    #[serde(skip)]
    window_start: Timestamp,
}

impl Total {
    /// The serializer: JSON, and the window in an attribute.
    pub(crate) fn serializer() -> PubSubSerializer<Self> {
        PubSubSerializer::payload(|total: &Self, data: &mut Vec<u8>| {
            serde_json::to_writer(data, total)
        })
        .with_attributes(|total, attributes| {
            attributes.put("window-start", date_time(total.window_start));
            Ok::<_, std::convert::Infallible>(())
        })
    }
}

/// Adds the pipeline to `job`: totals of an hour leave when an order 5 s past its end was seen.
pub(crate) fn hourly_totals(
    job: &Job,
    orders: PubSubSource<Order>,
    totals: PubSubSink<Total>,
) -> Result<(), ConfigError> {
    // An order may be 5 s behind the newest one. The strategy takes one more millisecond off, which SQL's
    // `publish_time - INTERVAL '5' SECOND` does not.
    let lateness = Duration::from_millis(4_999);
    let hours = Windows::tumbling(Duration::from_secs(3_600))?;
    job.from_source("orders", orders, WatermarkStrategy::bounded(lateness))
        .key_by(|order| order.customer_id.clone())
        .window("totals", hours, || Sum)
        .sink_to("customer-totals", totals);
    Ok(())
}

/// Sums the amounts of a customer's window.
struct Sum;

impl WindowFunction<String, Order, Total> for Sum {
    type State = i64;
    const STATE_NAME: &'static str = "hourly-total";
    const STATE_VERSION: u32 = 1;

    fn add(&mut self, state: &mut Option<i64>, order: &Order) -> Result<()> {
        let sum = state.unwrap_or(0).checked_add(order.amount);
        *state = Some(sum.ok_or_else(|| Error::user("a total does not fit 64 bits"))?);
        Ok(())
    }

    fn result(
        &mut self,
        customer: &String,
        window: Window,
        total: i64,
        out: &mut Collector<'_, Total>,
    ) -> Result<()> {
        out.emit(Total {
            customer_id: customer.clone(),
            total,
            window_start: window.start,
        });
        Ok(())
    }

    fn encode(&self, total: &i64, out: &mut StateWriter) {
        out.i64(*total);
    }

    fn decode(&self, _: u32, reader: &mut StateReader<'_>) -> Result<i64> {
        Ok(reader.i64()?)
    }
}

/// `2026-08-21 09:00:00.000`, in UTC.
pub(crate) fn date_time(at: Timestamp) -> String {
    let (days, millis) = (
        at.millis().div_euclid(86_400_000),
        at.millis().rem_euclid(86_400_000),
    );
    // Days since 0000-03-01, so that a leap day is the last of its year; 146,097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (
        of_year - (153 * month + 2) / 5 + 1,
        if month < 10 { month + 3 } else { month - 9 },
    );
    let year = era * 400 + year + i64::from(month <= 2);
    let (second, millis) = (millis / 1_000, millis % 1_000);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{millis:03}",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

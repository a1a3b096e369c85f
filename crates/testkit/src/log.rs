//! Captured log lines: what was warned about, and proof that nothing leaked.
//!
//! [`capture`] collects every event of the current thread until the guard is dropped. Tests of the hand-driven host run
//! on one thread, their I/O tasks included, so that is everything. What other threads log is not seen.
//!
//! [`Marker`] is a string planted as user data or as a secret; [`Marker::assert_absent`] fails where it turns up,
//! without printing it again.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// A captured event or span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How loud it was.
    pub level: Level,
    /// The module that logged it.
    pub target: String,
    /// The message; a span's name.
    pub message: String,
    /// The other fields, in order, formatted as a log would show them.
    pub fields: Vec<(String, String)>,
}

impl Line {
    /// The field called `name`, if the line has it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(field, _)| field == name)?;
        Some(&found.1)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.level, self.target, self.message)?;
        self.fields
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// Captures what the current thread logs, at every level, until the returned value is dropped.
#[must_use]
pub fn capture() -> Captured {
    let lines = Lines::default();
    let guard = tracing::subscriber::set_default(Capture(lines.clone()));
    Captured {
        lines,
        _guard: guard,
    }
}

/// The log lines of one thread, see [`capture`].
pub struct Captured {
    lines: Lines,
    _guard: DefaultGuard,
}

impl Captured {
    /// Every line so far.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.lines.lock().clone()
    }

    /// The lines at `level` whose message contains `text`.
    #[must_use]
    pub fn matching(&self, level: Level, text: &str) -> Vec<Line> {
        let mut lines = self.lines();
        lines.retain(|line| line.level == level && line.message.contains(text));
        lines
    }

    /// The warnings so far.
    #[must_use]
    pub fn warnings(&self) -> Vec<Line> {
        self.matching(Level::WARN, "")
    }

    /// The one warning whose message contains `text`.
    ///
    /// # Panics
    ///
    /// If there is none or more than one.
    #[must_use]
    pub fn one_warning(&self, text: &str) -> Line {
        let mut found = self.matching(Level::WARN, text);
        assert_eq!(
            found.len(),
            1,
            "warnings with {text:?}; all: {:?}",
            self.warnings()
        );
        found.remove(0)
    }

    /// Forgets the lines so far.
    pub fn clear(&self) {
        self.lines.lock().clear();
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Captured({} lines)", self.lines.lock().len())
    }
}

/// A string planted where user data or a secret belongs, to be looked for where it does not.
#[derive(Clone, Copy)]
pub struct Marker(&'static str);

impl Marker {
    /// A marker that occurs nowhere by chance. At least eight bytes.
    ///
    /// # Panics
    ///
    /// If it is shorter.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        assert!(text.len() >= 8, "a marker this short turns up by chance");
        Self(text)
    }

    /// The marker itself, to plant.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.0
    }

    /// Asserts that neither the marker, nor its bytes as hexadecimal or as a list of numbers, is in `text`.
    ///
    /// # Panics
    ///
    /// If it is, naming `place` and the encoding, without showing the text.
    pub fn assert_absent(self, place: &str, text: &str) {
        for (encoding, needle) in self.encodings() {
            assert!(
                !text.contains(&needle),
                "{place} shows user data or a secret ({encoding})"
            );
        }
    }

    /// Asserts absence from the `Debug` of a value.
    ///
    /// # Panics
    ///
    /// As [`assert_absent`](Self::assert_absent).
    pub fn assert_absent_from_debug(self, place: &str, value: &dyn fmt::Debug) {
        self.assert_absent(place, &format!("{value:?}"));
        self.assert_absent(place, &format!("{value:#?}").replace(['\n', ' '], ""));
    }

    /// Asserts absence from every level of an error: `Display`, `Debug`, its sources and what was attached.
    ///
    /// # Panics
    ///
    /// As [`assert_absent`](Self::assert_absent).
    pub fn assert_absent_from_error(self, place: &str, error: &aqueduct_connector::Error) {
        self.assert_absent(place, &error.report());
        self.assert_absent_from_debug(place, error);
        let mut next: Option<&dyn std::error::Error> = Some(error);
        while let Some(level) = next {
            self.assert_absent(place, &level.to_string());
            self.assert_absent_from_debug(place, &level);
            next = level.source();
        }
        for suppressed in error.suppressed() {
            self.assert_absent_from_error(place, suppressed);
        }
    }

    /// Asserts absence from every captured line, fields included.
    ///
    /// # Panics
    ///
    /// As [`assert_absent`](Self::assert_absent).
    pub fn assert_absent_from_log(self, captured: &Captured) {
        for line in captured.lines() {
            let place = format!("a log line of {} at {}", line.target, line.level);
            self.assert_absent(&place, &line.to_string());
        }
    }

    fn encodings(self) -> [(&'static str, String); 4] {
        let bytes = self.0.as_bytes();
        let mut hex = String::new();
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
        [
            ("plain", self.0.to_owned()),
            ("hexadecimal", hex),
            ("numbers", numbers.join(", ")),
            ("numbers", numbers.join(",")),
        ]
    }
}

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marker")
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

impl Lines {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        // Every push leaves a whole list behind, also before a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, metadata: &Metadata<'_>, fields: Fields) {
        self.lock().push(Line {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            message: fields.message.unwrap_or_else(|| metadata.name().to_owned()),
            fields: fields.other,
        });
    }
}

/// The subscriber. Spans are captured as lines when they are made: their fields reach real logs too.
struct Capture(Lines);

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.0.push(span.metadata(), fields);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        self.0.lock().push(Line {
            level: Level::TRACE,
            target: "span".to_owned(),
            message: "recorded".to_owned(),
            fields: fields.other,
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.push(event.metadata(), fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    message: Option<String>,
    other: Vec<(String, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

impl Fields {
    fn put(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = Some(value);
        } else {
            self.other.push((field.name().to_owned(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::Error;
    use tracing::{info, warn};

    use super::*;

    fn fails(what: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(what).is_err()
    }

    #[test]
    fn warnings_are_found_with_their_fields() {
        let log = capture();
        info!("starting");
        warn!(table = %"orders", waited = 61, "no answer");
        let line = log.one_warning("no answer");
        assert_eq!(
            (line.field("table"), line.field("waited")),
            (Some("orders"), Some("61"))
        );
        assert_eq!(log.lines().len(), 2);
    }

    #[test]
    fn a_leak_is_found_in_logs_errors_and_debug_in_each_encoding() {
        let marker = Marker::new("row-key-4711");
        let log = capture();
        warn!("clean");
        marker.assert_absent_from_log(&log);
        warn!(key = ?marker.text().as_bytes(), "leak");
        assert!(fails(std::panic::AssertUnwindSafe(
            || marker.assert_absent_from_log(&log)
        )));

        let inner = Error::io(format!("key {}", marker.text()));
        let outer = Error::io("write failed").with_source(inner);
        assert!(fails(std::panic::AssertUnwindSafe(|| {
            marker.assert_absent_from_error("error", &outer);
        })));
        assert!(fails(
            || marker.assert_absent("hex", "726f772d6b65792d34373131")
        ));
        marker.assert_absent_from_error("error", &Error::io("write failed"));
        assert!(fails(
            || marker.assert_absent_from_debug("debug", &marker.text().as_bytes())
        ));
    }
}

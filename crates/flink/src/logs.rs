//! Log lines on their way to Java: events go into a bounded ring that Java's thread for wake-ups empties into SLF4J.
//!
//! A line is formatted where it arises, so nothing of it refers to anything afterwards. When the ring is full, new lines
//! are counted instead, and the count is said as soon as there is room: a flood never grows memory and never hides that
//! something is missing. Spans are not kept; what a line is about stands in its fields.

use std::collections::VecDeque;
use std::fmt::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use aqueduct_connector::state::StateWriter;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::host;

/// Lines that wait for Java, at most.
const LINES: usize = 1_000;
/// Characters of a line, at most.
const LINE_BYTES: usize = 4_096;

static RING: Mutex<Ring> = Mutex::new(Ring {
    lines: VecDeque::new(),
    dropped: 0,
});
/// Whether the queue of wake-ups says already that there are lines.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);
static VERBOSITY: AtomicUsize = AtomicUsize::new(Verbosity::Warn as usize);

struct Ring {
    lines: VecDeque<Line>,
    dropped: u64,
}

struct Line {
    level: Verbosity,
    target: &'static str,
    text: String,
}

/// Levels as `LogLines` in Java numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verbosity {
    Off = 0,
    Error = 1,
    Warn = 2,
    Info = 3,
    Debug = 4,
    Trace = 5,
}

impl Verbosity {
    /// From Java's number; what is beyond shows all.
    pub(crate) const fn from_number(number: i32) -> Self {
        match number {
            ..=0 => Self::Off,
            1 => Self::Error,
            2 => Self::Warn,
            3 => Self::Info,
            4 => Self::Debug,
            _ => Self::Trace,
        }
    }

    const fn of(level: Level) -> Self {
        match level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warn,
            Level::INFO => Self::Info,
            Level::DEBUG => Self::Debug,
            Level::TRACE => Self::Trace,
        }
    }
}

/// Shows lines up to `verbosity` from now on.
pub(crate) fn start(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as usize, Ordering::Relaxed);
    listen();
}

/// Shows lines as the last start said, and before any what a person must see: for planning, which starts nothing.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails only if somebody else in this library set one: nobody does.
        let _ = tracing::subscriber::set_global_default(ToJava);
        std::panic::set_hook(Box::new(say_panic));
    });
    tracing::callsite::rebuild_interest_cache();
}

/// A panic becomes an exception, which has the text; the place is known only here.
fn say_panic(info: &PanicHookInfo<'_>) {
    let place = info
        .location()
        .map_or_else(String::new, ToString::to_string);
    tracing::error!(place, "panicked");
}

fn ring() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The announcement left the queue of wake-ups: Java is about to drain.
pub(crate) fn taken() {
    ANNOUNCED.store(false, Ordering::SeqCst);
}

/// Encodes and forgets the lines that wait: how many, and for each its level, target and text.
pub(crate) fn drain() -> Vec<u8> {
    let (lines, dropped) = {
        let mut ring = ring();
        (
            std::mem::take(&mut ring.lines),
            std::mem::take(&mut ring.dropped),
        )
    };
    let mut writer = StateWriter::new();
    writer.count(lines.len() + usize::from(dropped > 0));
    for line in &lines {
        writer
            .u8(line.level as u8)
            .text(line.target)
            .text(&line.text);
    }
    if dropped > 0 {
        writer
            .u8(Verbosity::Warn as u8)
            .text(module_path!())
            .text(&format!(
                "{dropped} lines were left out here, more than {LINES} came at once"
            ));
    }
    writer.finish(0).bytes.to_vec()
}

fn add(line: Line) {
    let mut ring = ring();
    if ring.lines.len() < LINES {
        ring.lines.push_back(line);
    } else {
        ring.dropped += 1;
    }
    drop(ring);
    if !ANNOUNCED.swap(true, Ordering::SeqCst) {
        host::wake(host::LOGS);
    }
}

/// The subscriber of every event in this library.
struct ToJava;

fn shown(metadata: &Metadata<'_>) -> bool {
    Verbosity::of(*metadata.level()) as usize <= VERBOSITY.load(Ordering::Relaxed)
}

impl Subscriber for ToJava {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && shown(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match VERBOSITY.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && shown(metadata)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text {
            message: String::new(),
            fields: String::new(),
        };
        event.record(&mut text);
        let mut line = text.message + &text.fields;
        if line.len() > LINE_BYTES {
            let end = (0..=LINE_BYTES)
                .rev()
                .find(|at| line.is_char_boundary(*at))
                .unwrap_or(0);
            line.truncate(end);
            line.push('…');
        }
        add(Line {
            level: Verbosity::of(*metadata.level()),
            target: metadata.target(),
            text: line,
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `message field=value field=value`
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted_and_a_long_line_is_cut_at_a_character() {
        let _one_at_a_time = crate::tests::alone();
        let _ = drain();
        tracing::subscriber::with_default(ToJava, || {
            for number in 0..LINES + 7 {
                tracing::warn!(number, place = %"here", "something {}", "odd");
            }
        });
        let bytes = crate::wire::unversioned(drain());
        let mut reader = crate::wire::message(&bytes).expect("no version");
        let lines = crate::wire::list(&mut reader, 9, |reader| {
            Ok((reader.u8()?, reader.text()?, reader.text()?))
        })
        .expect("reads");
        assert_eq!(lines.len(), LINES + 1);
        assert_eq!(lines[3], (2, module_path!(), lines[3].2));
        assert!(
            lines[3].2.starts_with("something odd number=3"),
            "{}",
            lines[3].2
        );
        assert!(lines[LINES].2.starts_with("7 lines"), "{}", lines[LINES].2);
        tracing::subscriber::with_default(ToJava, || {
            tracing::error!("{}", "ü".repeat(LINE_BYTES));
        });
        assert!(drain().len() < LINE_BYTES + 100);
    }
}

//! Metrics and a status page over HTTP, for scrapers and for people at night.
//!
//! A small HTTP/1 server of our own: `GET` only, one answer a connection, bounded request, bounded time, at
//! most so many connections at once. It listens where it is told and has no authentication: bind it to an
//! address that only the right people reach.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_connector::metrics::{Sample, SampleValue};
use aqueduct_connector::{Clock, Error, Result, Timestamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::handle::Shared;
use crate::host::within;

/// Longest request head taken.
const REQUEST_BYTES: usize = 8 << 10;
/// Connections served at once; more wait to be accepted.
const CONNECTIONS: usize = 16;
/// Most time for a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens at `address`; the future serves until it is dropped.
pub(crate) async fn bind(
    address: SocketAddr,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
) -> Result<(SocketAddr, impl Future<Output = ()>)> {
    let refused = |error| {
        Error::config(format!(
            "option 'metrics.address' is invalid: {address} cannot be listened at; choose a free port or 0"
        ))
        .with_source(error)
    };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    Ok((bound, serve(listener, shared, clock)))
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, clock: Arc<dyn Clock>) {
    let mut connections = JoinSet::new();
    loop {
        if connections.len() >= CONNECTIONS {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let (shared, clock) = (shared.clone(), clock.clone());
                connections.spawn_local(async move {
                    // A scraper that goes away is its own affair.
                    let _ = within(&*clock, PATIENCE, answer(stream, &shared, &*clock)).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accepting a connection failed");
                // Out of descriptors: wait instead of spinning.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, shared: &Shared, clock: &dyn Clock) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1_024);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => (
            "200 OK",
            "text/plain; version=0.0.4; charset=utf-8",
            metrics_text(shared, clock),
        ),
        ("GET" | "HEAD", "/") => ("200 OK", "text/html; charset=utf-8", page(shared, clock)),
        ("GET" | "HEAD", _) => (
            "404 Not Found",
            "text/plain; charset=utf-8",
            "there are / and /metrics\n".to_owned(),
        ),
        _ => (
            "405 Method Not Allowed",
            "text/plain; charset=utf-8",
            "only GET\n".to_owned(),
        ),
    };
    let mut response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        response.push_str(&body);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// Metrics in the Prometheus text format 0.0.4. Names get the prefix `aqueduct_`; what a name cannot hold becomes `_`.
fn metrics_text(shared: &Shared, clock: &dyn Clock) -> String {
    let mut samples = shared.registry.samples();
    let status = shared.status.borrow().clone();
    let gauge = |name: &str, level: i64| Sample {
        labels: Vec::new(),
        name: name.to_owned(),
        value: SampleValue::Gauge(level),
    };
    samples.push(gauge(
        "uptime",
        clock.wall().millis() - status.started.millis(),
    ));
    samples.push(gauge(
        "jobRunning",
        i64::from(status.state == crate::JobState::Running),
    ));
    render(&shared.graph.name, samples)
}

/// Renders samples, each family once, in the order of names.
fn render(job: &str, mut samples: Vec<Sample>) -> String {
    samples.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
    let mut text = String::new();
    let mut family = String::new();
    for sample in &samples {
        let mut name = String::from("aqueduct_");
        name.extend(sample.name.chars().map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        }));
        if matches!(sample.value, SampleValue::Counter(_)) {
            name.push_str("_total");
        }
        if name != family {
            let kind = match sample.value {
                SampleValue::Counter(_) => "counter",
                SampleValue::Gauge(_) => "gauge",
                SampleValue::Histogram { .. } => "histogram",
            };
            let _ = writeln!(text, "# TYPE {name} {kind}");
            family.clone_from(&name);
        }
        let labels = label_text(job, &sample.labels);
        match &sample.value {
            SampleValue::Counter(count) => {
                let _ = writeln!(text, "{name}{{{labels}}} {count}");
            }
            SampleValue::Gauge(level) => {
                let _ = writeln!(text, "{name}{{{labels}}} {level}");
            }
            SampleValue::Histogram { buckets, sum } => {
                let mut count = 0;
                for (bound, hits) in buckets {
                    count += hits;
                    let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
                    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
                }
                let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
                let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
            }
        }
    }
    text
}

fn label_text(job: &str, labels: &[(String, String)]) -> String {
    let escape = |value: &str| {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let mut text = format!("job_name=\"{}\"", escape(job));
    for (key, value) in labels {
        let key: String = key
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        let _ = write!(text, ",{key}=\"{}\"", escape(value));
    }
    text
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// `1 d 02:03:04`.
fn span(millis: i64) -> String {
    let seconds = millis.max(0) / 1_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60);
    if days > 0 {
        format!("{days} d {clock}")
    } else {
        clock
    }
}

fn ago(now: Timestamp, then: Timestamp) -> String {
    format!("{} ago", span(now.millis().saturating_sub(then.millis())))
}

/// The status page: no scripts, nothing loaded from elsewhere, renews itself.
fn page(shared: &Shared, clock: &dyn Clock) -> String {
    let status = shared.status.borrow().clone();
    let now = clock.wall();
    let name = escape_html(&shared.graph.name);
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"5\">\
         <title>{name}: {state}</title><style>\
         body{{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}}\
         table{{border-collapse:collapse;width:100%}}th,td{{text-align:left;padding:.3em .8em .3em 0;border-bottom:1px solid #ddd}}\
         td.n{{text-align:right;font-variant-numeric:tabular-nums}}.bad{{color:#a00;font-weight:600}}\
         @media(prefers-color-scheme:dark){{body{{color:#ddd;background:#181818}}th,td{{border-color:#444}}.bad{{color:#f88}}a{{color:#8bf}}}}\
         </style></head><body><h1>{name}</h1>",
        state = status.state,
    );
    let class = if matches!(
        status.state,
        crate::JobState::Failed | crate::JobState::Restarting
    ) {
        " class=\"bad\""
    } else {
        ""
    };
    let _ = write!(
        html,
        "<p><b{class}>{}</b>, up {}, parallelism {}, {} restarts, {} checkpoints complete, {} failed</p>",
        status.state,
        span(now.millis().saturating_sub(status.started.millis())),
        status.parallelism,
        status.restarts,
        status.completed_checkpoints,
        status.failed_checkpoints,
    );
    if let Some(failure) = &status.last_failure {
        let _ = write!(
            html,
            "<p class=\"bad\">last failure: {}</p>",
            escape_html(failure)
        );
    }
    for stalled in &status.stalled {
        let _ = write!(
            html,
            "<p class=\"bad\">no progress: {}</p>",
            escape_html(stalled)
        );
    }
    if let Some(from) = &status.restored_from {
        let _ = write!(html, "<p>restored from {}</p>", escape_html(from));
    }
    html.push_str(
        "<h2>Operators</h2><table><tr><th>operator<th>records in<th>records out<th>watermark lag</tr>",
    );
    for operator in shared.progress() {
        let lag = match operator.watermark {
            None => "none".to_owned(),
            Some(Timestamp::MAX) => "ended".to_owned(),
            Some(at) => span(now.millis().saturating_sub(at.millis())),
        };
        let _ = write!(
            html,
            "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td>{lag}</tr>",
            escape_html(&operator.name),
            operator.records_in,
            operator.records_out,
        );
    }
    html.push_str("</table><h2>Last checkpoints</h2>");
    if status.checkpoints.is_empty() {
        html.push_str("<p>none yet</p>");
    } else {
        html.push_str(
            "<table><tr><th>id<th>complete<th>took<th>alignment<th>bytes<th>location</tr>",
        );
        for checkpoint in status.checkpoints.iter().rev() {
            let _ = write!(
                html,
                "<tr><td>{}<td>{}<td class=\"n\">{} ms<td class=\"n\">{} ms<td class=\"n\">{}<td>{}</tr>",
                checkpoint.id,
                ago(now, checkpoint.completed),
                checkpoint.duration.as_millis(),
                checkpoint.alignment.as_millis(),
                checkpoint.bytes,
                escape_html(&checkpoint.location),
            );
        }
        html.push_str("</table>");
    }
    if let Some(savepoint) = &status.last_savepoint {
        let _ = write!(
            html,
            "<p>last savepoint: {} ({})</p>",
            escape_html(&savepoint.location),
            ago(now, savepoint.completed)
        );
    }
    html.push_str("<p><a href=\"/metrics\">all metrics</a></p></body></html>");
    html
}

#[cfg(test)]
mod tests {
    use aqueduct_connector::metrics::MetricRegistry;

    use super::*;

    #[test]
    fn metrics_render_in_the_text_format_each_family_once() {
        let registry = MetricRegistry::new();
        for subtask in ["0", "1"] {
            let group = registry.group(&[("operator", "a \"b\"\n\\"), ("subtask", subtask)]);
            group.counter("numRecordsIn").add(3);
            group.counter("errorClass.UNAVAILABLE.errors").increment();
            group.histogram("latency", &[10, 100]).record(50);
        }
        registry.group(&[]).gauge("lag").set(-1);
        let text = render("job", registry.samples());
        assert_eq!(
            text.matches("# TYPE aqueduct_numRecordsIn_total counter")
                .count(),
            1
        );
        let label = r#"job_name="job",operator="a \"b\"\n\\",subtask="0""#;
        assert!(
            text.contains(&format!("aqueduct_numRecordsIn_total{{{label}}} 3\n")),
            "{text}"
        );
        assert!(
            text.contains("aqueduct_errorClass_UNAVAILABLE_errors_total{"),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "aqueduct_latency_bucket{{{label},le=\"100\"}} 1\n"
            )),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "aqueduct_latency_bucket{{{label},le=\"+Inf\"}} 1\n"
            )),
            "{text}"
        );
        assert!(
            text.contains(&format!("aqueduct_latency_sum{{{label}}} 50\n")),
            "{text}"
        );
        assert!(
            text.contains("aqueduct_lag{job_name=\"job\"} -1\n"),
            "{text}"
        );
    }

    #[test]
    fn spans_read_well() {
        assert_eq!(span(3_723_000), "01:02:03");
        assert_eq!(span(90_061_000), "1 d 01:01:01");
        assert_eq!(span(-5), "00:00:00");
    }
}

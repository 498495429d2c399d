//! Counters for Prometheus: one page of text over HTTP, off unless an address is given.
//!
//! Only `GET /metrics` is answered; a request is bounded in size and time, and answered one after the other: a scraper asks every
//! few seconds. Format: the Prometheus text exposition format, version 0.0.4.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xway_hook::{Hook, User};

use crate::server::Shared;

/// Name, type and meaning of every metric.
pub const METRICS: [(&str, &str, &str); 9] = [
    ("xway_up", "gauge", "1 while the service runs."),
    (
        "xway_port_packets_total",
        "counter",
        "Packets that a port received (rx), sent (tx) or redirected to another one (redirect).",
    ),
    ("xway_port_bytes_total", "counter", "Bytes that a port received."),
    ("xway_verdicts_total", "counter", "Packets by port and verdict."),
    ("xway_lost_total", "counter", "Packets lost by port and reason."),
    ("xway_tx_queue_packets", "gauge", "Packets that wait in the queues of a port to be sent."),
    ("xway_tx_queue_bytes", "gauge", "Bytes that wait in the queues of a port to be sent."),
    ("xway_program_runs_total", "counter", "Packets that a program ran over, by port, name and id."),
    ("xway_map_bytes", "gauge", "Memory of a map."),
];

/// The page.
pub(crate) fn page(hook: &mut User) -> String {
    let mut samples: Vec<(&str, String, u64)> = vec![("xway_up", String::new(), 1)];
    for port in hook.ports() {
        let label = escaped(&port);
        let Ok(statistics) = hook.statistics(&port) else { continue };
        for (loss, value) in statistics.losses() {
            let labels = format!("port=\"{label}\",reason=\"{}\"", escaped(loss));
            samples.push(("xway_lost_total", labels, value));
        }
        for (name, value) in statistics.counters {
            let sample = match name.as_str() {
                "rx_packets" => ("xway_port_packets_total", format!("port=\"{label}\",way=\"rx\"")),
                "tx_packets" => ("xway_port_packets_total", format!("port=\"{label}\",way=\"tx\"")),
                "redirected" => ("xway_port_packets_total", format!("port=\"{label}\",way=\"redirect\"")),
                "tx_queue.frames" => ("xway_tx_queue_packets", format!("port=\"{label}\"")),
                "tx_queue.bytes" => ("xway_tx_queue_bytes", format!("port=\"{label}\"")),
                "rx_bytes" => ("xway_port_bytes_total", format!("port=\"{label}\",way=\"rx\"")),
                name => match name.strip_prefix("verdicts.") {
                    Some(verdict) => ("xway_verdicts_total", format!("port=\"{label}\",verdict=\"{verdict}\"")),
                    None => continue,
                },
            };
            samples.push((sample.0, sample.1, value));
        }
    }
    for a in hook.attachments(None).unwrap_or_default() {
        let queue = a.queue.map_or_else(String::new, |q| q.to_string());
        let (port, name) = (escaped(&a.port), escaped(&a.program.name));
        let labels = format!("port=\"{port}\",queue=\"{queue}\",program=\"{name}\",id=\"{}\"", a.program.id.0);
        samples.push(("xway_program_runs_total", labels, a.program.runs.map_or(0, |(count, _)| count)));
    }
    for map in hook.maps().unwrap_or_default() {
        let labels = format!("map=\"{}\",id=\"{}\"", escaped(&map.name), map.id.0);
        samples.extend(map.memory.map(|bytes| ("xway_map_bytes", labels, bytes)));
    }
    let mut out = String::new();
    for (metric, kind, help) in METRICS {
        let _ = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for (_, labels, value) in samples.iter().filter(|(name, ..)| *name == metric) {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(out, "{metric}{labels} {value}");
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Answers until the service ends.
pub(crate) fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stop.asked() {
        match listener.accept() {
            // A scraper that misbehaves gets no page.
            Ok((mut socket, _)) => drop(answer(&mut socket, shared)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn answer(socket: &mut TcpStream, shared: &Shared) -> std::io::Result<()> {
    const MOST: Duration = Duration::from_secs(2);
    const REQUEST_MAX: usize = 8 << 10;
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(MOST))?;
    let until = Instant::now() + MOST;
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Ok(());
        }
        socket.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match socket.read(&mut part)? {
            0 => return Ok(()),
            len => request.extend_from_slice(&part[..len]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", shared.state().metrics()),
        false => ("404 Not Found", "only GET /metrics is answered\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    socket.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xway_hook::user::UserConfig;

    #[test]
    fn the_page_has_every_metric_once() {
        let text = page(&mut User::new(UserConfig::default()));
        for (name, kind, _) in METRICS {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{text}");
        }
        assert!(text.contains("xway_up 1\n"));
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn the_dashboard_asks_for_these_metrics_and_no_others() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/xway.json");
        let text = std::fs::read_to_string(path).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut asked = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                asked.extend(words.filter(|w| w.starts_with("xway_")).map(str::to_owned));
            }
        }
        for (name, ..) in METRICS {
            assert!(asked.iter().any(|a| a == name), "the dashboard does not show {name}");
        }
        for name in asked {
            assert!(
                METRICS.iter().any(|(known, ..)| *known == name),
                "the dashboard asks for {name}, which there is not"
            );
        }
    }
}

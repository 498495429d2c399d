//! What stands on the page: families of metrics, and their samples.

use std::fmt::Write as _;

use xway_hook::{Hook, Outcome, QueueStatistics, Statistics, User};

/// Name, type and meaning of every metric.
pub const METRICS: [(&str, &str, &str); 19] = [
    ("xway_up", "gauge", "1 while the service runs."),
    (
        "xway_port_up",
        "gauge",
        "1 while a port receives, 0 when its device failed or its program was taken from the interface.",
    ),
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
    (
        "xway_queue_packets_total",
        "counter",
        "Packets by receive queue: received (rx), sent (tx), redirected (redirect), moved by steering (steered_in, steered_out), \
         sent for another worker (relay).",
    ),
    ("xway_queue_bytes_total", "counter", "Bytes that a queue received."),
    ("xway_queue_worker", "gauge", "Number of the worker that serves a queue."),
    (
        "xway_burst_packets",
        "histogram",
        "Packets of a queue that were processed at once, and how many times: bursts, also of a port without a program, which pass.",
    ),
    (
        "xway_pool_allocated_total",
        "counter",
        "Frames that a queue's pool gave out: fast, ring, slow (docs/counters.md).",
    ),
    (
        "xway_pool_released_total",
        "counter",
        "Frames that came home: from the owner (recycled), from others (returned).",
    ),
    ("xway_pool_refused_total", "counter", "Allocations refused: no frame was left, or the limit was reached."),
    ("xway_pool_outstanding_frames", "gauge", "Frames of a queue's pool that are away now."),
    ("xway_pool_limit_frames", "gauge", "The most frames that may be away."),
    ("xway_program_runs_total", "counter", "Packets that a program ran over, by port, name and id."),
    ("xway_map_bytes", "gauge", "Memory of a map."),
];

/// Upper ends of the steps that bursts are counted in.
const SIZES: [&str; 7] = ["1", "2", "4", "8", "16", "32", "64"];

/// One number.
struct Sample {
    metric: &'static str,
    /// `_bucket`, `_sum` or `_count` of a histogram.
    suffix: &'static str,
    labels: String,
    value: u64,
}

/// The samples of a page in the making.
#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn put(&mut self, metric: &'static str, labels: String, value: u64) {
        self.part(metric, "", labels, value);
    }

    fn part(&mut self, metric: &'static str, suffix: &'static str, labels: String, value: u64) {
        self.0.push(Sample { metric, suffix, labels, value });
    }

    fn port(&mut self, port: &str, statistics: &Statistics) {
        for (loss, value) in statistics.losses() {
            self.put("xway_lost_total", format!("port=\"{port}\",reason=\"{}\"", escaped(loss)), value);
        }
        for (name, value) in &statistics.counters {
            let (metric, label) = match name.as_str() {
                "rx_packets" => ("xway_port_packets_total", ",way=\"rx\"".to_owned()),
                "tx_packets" => ("xway_port_packets_total", ",way=\"tx\"".to_owned()),
                "redirected" => ("xway_port_packets_total", ",way=\"redirect\"".to_owned()),
                "tx_queue.frames" => ("xway_tx_queue_packets", String::new()),
                "tx_queue.bytes" => ("xway_tx_queue_bytes", String::new()),
                "rx_bytes" => ("xway_port_bytes_total", ",way=\"rx\"".to_owned()),
                name => match name.strip_prefix("verdicts.") {
                    Some(verdict) => ("xway_verdicts_total", format!(",verdict=\"{verdict}\"")),
                    None => continue,
                },
            };
            self.put(metric, format!("port=\"{port}\"{label}"), *value);
        }
        statistics.queues.iter().for_each(|queue| self.queue(port, queue));
    }

    fn queue(&mut self, port: &str, of: &QueueStatistics) {
        let queue = format!("port=\"{port}\",queue=\"{}\"", of.queue);
        let has = |name: &str| of.counters.iter().any(|(known, _)| known == name);
        for (metric, name, way) in [
            ("xway_queue_packets_total", "rx_packets", "rx"),
            ("xway_queue_packets_total", "tx_packets", "tx"),
            ("xway_queue_packets_total", "redirected", "redirect"),
            ("xway_queue_packets_total", "steered_in", "steered_in"),
            ("xway_queue_packets_total", "steered_out", "steered_out"),
            ("xway_queue_packets_total", "relay_sent", "relay"),
            ("xway_queue_bytes_total", "rx_bytes", "rx"),
            ("xway_pool_allocated_total", "pool.fast", "fast"),
            ("xway_pool_allocated_total", "pool.ring", "ring"),
            ("xway_pool_allocated_total", "pool.slow", "slow"),
            ("xway_pool_released_total", "pool.recycled", "recycled"),
            ("xway_pool_released_total", "pool.returned", "returned"),
        ] {
            if has(name) {
                self.put(metric, format!("{queue},way=\"{way}\""), of.get(name));
            }
        }
        for (metric, name) in [
            ("xway_pool_refused_total", "pool.refused"),
            ("xway_pool_outstanding_frames", "pool.outstanding"),
            ("xway_pool_limit_frames", "pool.limit"),
        ] {
            if has(name) {
                self.put(metric, queue.clone(), of.get(name));
            }
        }
        self.put("xway_queue_worker", queue.clone(), of.worker.into());
        // Buckets of a histogram hold everything up to their end.
        let mut bursts = 0;
        for size in SIZES {
            bursts += of.get(&format!("burst_sizes.{size}"));
            self.part("xway_burst_packets", "_bucket", format!("{queue},le=\"{size}\""), bursts);
        }
        self.part("xway_burst_packets", "_bucket", format!("{queue},le=\"+Inf\""), bursts);
        let verdicts = of.counters.iter().filter(|(name, _)| name.starts_with("verdicts.") || name == "invalid");
        self.part("xway_burst_packets", "_sum", queue.clone(), verdicts.map(|(_, packets)| packets).sum());
        self.part("xway_burst_packets", "_count", queue, bursts);
    }
}

/// The page.
pub(crate) fn page(hook: &mut User) -> String {
    let mut samples = Samples::default();
    samples.put("xway_up", String::new(), 1);
    let lost: Vec<String> =
        hook.outcomes().into_iter().filter(|(_, o)| o.what == Outcome::PORT).map(|(port, _)| port).collect();
    for port in hook.ports() {
        samples.put("xway_port_up", format!("port=\"{}\"", escaped(&port)), u64::from(!lost.contains(&port)));
        if let Ok(statistics) = hook.statistics(&port) {
            samples.port(&escaped(&port), &statistics);
        }
    }
    for a in hook.attachments(None).unwrap_or_default() {
        let queue = a.queue.map_or_else(String::new, |q| q.to_string());
        let (port, name) = (escaped(&a.port), escaped(&a.program.name));
        let labels = format!("port=\"{port}\",queue=\"{queue}\",program=\"{name}\",id=\"{}\"", a.program.id.0);
        samples.put("xway_program_runs_total", labels, a.program.runs.map_or(0, |(count, _)| count));
    }
    for map in hook.maps().unwrap_or_default() {
        let labels = format!("map=\"{}\",id=\"{}\"", escaped(&map.name), map.id.0);
        if let Some(bytes) = map.memory {
            samples.put("xway_map_bytes", labels, bytes);
        }
    }
    written(&samples)
}

/// Families in the order of [`METRICS`], each with all its samples behind its type.
fn written(samples: &Samples) -> String {
    let mut out = String::new();
    for (metric, kind, help) in METRICS {
        let _ = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for Sample { suffix, labels, value, .. } in samples.0.iter().filter(|s| s.metric == metric) {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(out, "{metric}{suffix}{labels} {value}");
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use xway_hook::user::UserConfig;

    fn repository(path: &str) -> String {
        std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    /// A page of one port with two queues that have every counter which is shown, and a name that needs escaping.
    fn full() -> String {
        let numbers = |n: u64| {
            let names =
                ["rx_packets", "tx_packets", "redirected", "steered_in", "steered_out", "relay_sent", "rx_bytes"];
            let pool = ["fast", "ring", "slow", "recycled", "returned", "refused", "outstanding", "limit"];
            let mut all: Vec<(String, u64)> = names.iter().map(|name| ((*name).to_owned(), n)).collect();
            all.extend(pool.iter().map(|name| (format!("pool.{name}"), n)));
            all.extend(SIZES.iter().map(|size| (format!("burst_sizes.{size}"), n)));
            all.extend(["drop", "pass"].map(|verdict| (format!("verdicts.{verdict}"), n)));
            all.extend(["invalid", "tx_full", "tx_queue.frames", "tx_queue.bytes"].map(|name| (name.to_owned(), n)));
            all
        };
        let queue = |queue: u32| QueueStatistics { queue, worker: queue, counters: numbers(u64::from(queue) + 1) };
        let statistics = Statistics { counters: numbers(3), queues: vec![queue(0), queue(1)], programs: Vec::new() };
        let mut samples = Samples::default();
        samples.put("xway_up", String::new(), 1);
        samples.put("xway_port_up", "port=\"p\"".into(), 1);
        samples.port(&escaped("pcap:a\"b\\c\nd"), &statistics);
        samples.put("xway_program_runs_total", "port=\"p\",queue=\"\",program=\"f\",id=\"1\"".into(), 9);
        samples.put("xway_map_bytes", "map=\"m\",id=\"2\"".into(), 64);
        written(&samples)
    }

    /// A sample line's name, labels and value, by the grammar of the text format.
    fn sample(line: &str) -> (&str, BTreeMap<String, String>, u64) {
        let name_end = line.find(['{', ' ']).expect("a name ends");
        let (name, rest) = line.split_at(name_end);
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
        let mut labels = BTreeMap::new();
        let mut rest = rest;
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                let (key, text) = inside.split_once("=\"").expect("a label has a value");
                let mut value = String::new();
                let mut chars = text.char_indices();
                let end = loop {
                    match chars.next().expect("a value ends") {
                        (at, '"') => break at,
                        (_, '\\') => match chars.next().expect("an escape has an end").1 {
                            'n' => value.push('\n'),
                            c @ ('\\' | '"') => value.push(c),
                            c => panic!("\\{c} is no escape: {line}"),
                        },
                        (_, c) => value.push(c),
                    }
                };
                assert!(labels.insert(key.to_owned(), value).is_none(), "{key} twice: {line}");
                match &text[end + 1..] {
                    more if more.starts_with(',') => inside = &more[1..],
                    more => {
                        rest = more.strip_prefix('}').expect("the labels end");
                        break;
                    }
                }
            }
        }
        (name, labels, rest.strip_prefix(' ').expect("a space").parse().expect("a number"))
    }

    /// What a strict reader of the format checks: type before samples, families in one piece, series once, histograms that add up.
    fn checked(page: &str) -> usize {
        let (mut family, mut families, mut series) = (None, HashSet::new(), HashSet::new());
        let mut buckets: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        let mut counts = BTreeMap::new();
        for line in page.lines() {
            if let Some(text) = line.strip_prefix("# HELP ") {
                assert!(text.split_once(' ').is_some_and(|(_, help)| !help.is_empty()), "{line}");
                continue;
            }
            if let Some(text) = line.strip_prefix("# TYPE ") {
                let (name, kind) = text.split_once(' ').unwrap();
                assert!(families.insert(name.to_owned()), "{name} has two pieces");
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
                family = Some((name.to_owned(), kind.to_owned()));
                continue;
            }
            let (name, mut labels, value) = sample(line);
            let (of, kind) = family.as_ref().expect("a type before the first sample");
            let suffix = name.strip_prefix(of.as_str()).unwrap_or_else(|| panic!("{name} below {of}"));
            assert!(series.insert(format!("{name} {labels:?}")), "twice: {line}");
            match (kind.as_str(), suffix) {
                ("histogram", "_bucket") => {
                    let end = labels.remove("le").expect("le");
                    buckets.entry(format!("{labels:?}")).or_default().push((end, value));
                }
                ("histogram", "_count") => drop(counts.insert(format!("{labels:?}"), value)),
                ("histogram", "_sum") | ("counter" | "gauge", "") => {}
                other => panic!("{other:?}: {line}"),
            }
        }
        for (labels, steps) in &buckets {
            assert!(steps.is_sorted_by(|a, b| a.1 <= b.1), "{steps:?}");
            assert_eq!(
                steps.last().map(|(end, value)| (end.as_str(), Some(value))),
                Some(("+Inf", counts.get(labels)))
            );
        }
        assert_eq!(buckets.len(), counts.len());
        series.len()
    }

    #[test]
    fn the_page_is_what_the_format_says() {
        let text = full();
        assert!(checked(&text) > 60, "{text}");
        for (name, kind, _) in METRICS {
            assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{text}");
            let shown = text.lines().any(|line| line.starts_with(name) && !line.starts_with('#'));
            assert!(shown, "no sample of {name}");
        }
        assert!(text.contains("port=\"pcap:a\\\"b\\\\c\\nd\",queue=\"1\",le=\"+Inf\"} 14\n"), "{text}");
        assert!(text.contains("xway_burst_packets_sum{port=\"pcap:a\\\"b\\\\c\\nd\",queue=\"1\"} 6\n"), "{text}");
        assert!(checked(&page(&mut User::new(UserConfig::default()))) > 0);
    }

    #[test]
    fn every_metric_is_documented() {
        let text = repository("docs/service.md");
        for (name, kind, help) in METRICS {
            let row = format!("| `{name}` | {kind} | {help} |");
            assert!(text.contains(&row), "docs/service.md lacks the row\n{row}");
        }
    }

    #[test]
    fn the_dashboard_asks_for_these_metrics_and_no_others() {
        let dashboard: serde_json::Value = serde_json::from_str(&repository("packaging/grafana/xway.json")).unwrap();
        let mut asked = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                asked.extend(words.filter(|w| w.starts_with("xway_")).map(str::to_owned));
            }
        }
        let of_histogram = |name: &str, asked: &str| {
            ["_bucket", "_sum", "_count"].iter().any(|suffix| asked.strip_suffix(suffix) == Some(name))
        };
        let is = |(name, kind): (&str, &str), asked: &str| {
            if kind == "histogram" { of_histogram(name, asked) } else { asked == name }
        };
        for (name, kind, _) in METRICS {
            assert!(asked.iter().any(|a| is((name, kind), a)), "the dashboard does not show {name}");
        }
        for a in asked {
            let known = METRICS.iter().any(|(name, kind, _)| is((name, kind), &a));
            assert!(known, "the dashboard asks for {a}, which there is not");
        }
    }
}

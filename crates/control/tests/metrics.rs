//! The page for Prometheus while packets flow: every series that the dashboard asks for, with the numbers of traffic that is known.

mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use running::{Running, until};
use xway_control::metrics::METRICS;
use xway_control::{Config, LogFormat, Server, Service};
use xway_engine::Stop;
use xway_hook::{Hook, ObjectId};
use xway_object::LoadOptions;
use xway_testkit::Needs;

/// Packets of each flow on each queue, and flows.
const EACH: u64 = 125;
const FLOWS: u64 = 8;
/// Bytes of a packet.
const SIZE: u64 = 128;
/// What comes in on the port without a program.
const PLAIN: u64 = 300;

/// Another verdict for each flow, by the last number of its address; the second port has the second number of those that are no
/// interfaces.
const TEXT: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 8); __type(key, int); __type(value, long);
    __uint(pinning, LIBBPF_PIN_BY_NAME); } seen SEC(\".maps\");
    SEC(\"xdp\") int each(struct xdp_md *ctx) {
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (p + 34 > end) return XDP_DROP;
    int flow = p[29] & 7; long *n = bpf_map_lookup_elem(&seen, &flow);
    if (n) __sync_fetch_and_add(n, 1);
    switch (flow) { case 0: case 6: return XDP_DROP; case 2: return XDP_TX; case 3: return bpf_redirect(0x70000001, 0);
    case 4: return 77; case 5: return XDP_ABORTED; } return XDP_PASS; }
    char _license[] SEC(\"license\") = \"GPL\";";

/// A page: values by the series' name and labels.
struct Page(BTreeMap<String, f64>);

impl Page {
    fn of(at: SocketAddr) -> Page {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let split =
            |line: &str| line.rsplit_once(' ').map(|(series, value)| (series.to_owned(), value.parse().unwrap()));
        Page(lines.map(|line| split(line).unwrap()).collect())
    }

    #[track_caller]
    fn get(&self, series: &str) -> u64 {
        let all: Vec<_> = self.0.keys().collect();
        let value = self.0.get(series).unwrap_or_else(|| panic!("no series {series} among {all:#?}"));
        *value as u64
    }

    /// Sum of the series of one metric with one of these labels.
    fn sum(&self, metric: &str, label: &str) -> u64 {
        let of = |series: &str| {
            series.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{') && rest.contains(label))
        };
        self.0.iter().filter(|(series, _)| of(series)).map(|(_, value)| *value as u64).sum()
    }
}

#[test]
fn every_series_has_the_number_that_the_traffic_gives_it() {
    if !Needs::of("control::metrics").clang().met() {
        return;
    }
    let dir = Running::dir("page");
    let object = dir.join("each.o");
    std::fs::write(&object, xway_testkit::clang::compile_text("each", TEXT, &[]).unwrap()).unwrap();
    let text = format!(
        "[service]\nworkers = 2\nmetrics = \"127.0.0.1:0\"\n
        [[port]]\nname = \"sim:a?count={}&queues=2&flows={FLOWS}&size={SIZE}\"\nqueues = [[0, 0], [1, 1]]
        steer = [\"flow-type udp4 src-ip 10.0.0.7 action 1 loc 1\"]\n
        [[port]]\nname = \"sim:b?count={PLAIN}\"\nqueues = [[0, 0]]\n
        [[program]]\nname = \"each\"\nport = \"sim:a\"\nobject = \"{}\"\n",
        EACH * FLOWS,
        object.display()
    );
    let mut config = Config::parse(&text).unwrap();
    config.service.socket = dir.join("control.sock");
    config.service.log = LogFormat::Off;
    let stop = Stop::new().unwrap();
    let server = Server::start(&config, &text, LoadOptions::default(), &stop).unwrap();
    let at = server.metrics().unwrap();
    let thread = std::thread::spawn(move || drop(server.run().unwrap()));
    // What goes to another worker is counted there when it gets there.
    let total = 2 * EACH * FLOWS;
    let relay = "xway_queue_packets_total{port=\"sim:b\",queue=\"0\",way=\"relay\"}";
    until("all packets have been through", || {
        let page = Page::of(at);
        let plain = page.get("xway_verdicts_total{port=\"sim:b\",verdict=\"pass\"}");
        page.sum("xway_program_runs_total", "sim:a") == total && plain == PLAIN && page.get(relay) == EACH
    });
    let expected = [
        ("xway_up", 1),
        ("xway_port_up{port=\"sim:a\"}", 1),
        ("xway_port_up{port=\"sim:b\"}", 1),
        ("xway_port_packets_total{port=\"sim:a\",way=\"rx\"}", total),
        ("xway_port_packets_total{port=\"sim:a\",way=\"tx\"}", 2 * EACH),
        ("xway_port_packets_total{port=\"sim:a\",way=\"redirect\"}", 2 * EACH),
        ("xway_port_bytes_total{port=\"sim:a\",way=\"rx\"}", total * SIZE),
        ("xway_verdicts_total{port=\"sim:a\",verdict=\"aborted\"}", 2 * EACH),
        ("xway_verdicts_total{port=\"sim:a\",verdict=\"drop\"}", 4 * EACH),
        ("xway_verdicts_total{port=\"sim:a\",verdict=\"pass\"}", 4 * EACH),
        ("xway_verdicts_total{port=\"sim:a\",verdict=\"tx\"}", 2 * EACH),
        ("xway_verdicts_total{port=\"sim:a\",verdict=\"redirect\"}", 2 * EACH),
        ("xway_lost_total{port=\"sim:a\",reason=\"invalid\"}", 2 * EACH),
        // Without a program packets pass, and are processed in bursts all the same.
        ("xway_port_packets_total{port=\"sim:b\",way=\"rx\"}", PLAIN),
        ("xway_verdicts_total{port=\"sim:b\",verdict=\"pass\"}", PLAIN),
        ("xway_burst_packets_sum{port=\"sim:b\",queue=\"0\"}", PLAIN),
        // The last flow comes in on both queues and is steered to the second one.
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"0\",way=\"rx\"}", EACH * FLOWS),
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"1\",way=\"rx\"}", EACH * FLOWS),
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"0\",way=\"steered_out\"}", EACH),
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"1\",way=\"steered_in\"}", EACH),
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"0\",way=\"tx\"}", EACH),
        ("xway_queue_packets_total{port=\"sim:a\",queue=\"1\",way=\"redirect\"}", EACH),
        ("xway_queue_bytes_total{port=\"sim:a\",queue=\"0\",way=\"rx\"}", EACH * FLOWS * SIZE),
        ("xway_burst_packets_sum{port=\"sim:a\",queue=\"0\"}", EACH * (FLOWS - 1)),
        ("xway_burst_packets_sum{port=\"sim:a\",queue=\"1\"}", EACH * (FLOWS + 1)),
        ("xway_queue_worker{port=\"sim:a\",queue=\"0\"}", 0),
        ("xway_queue_worker{port=\"sim:a\",queue=\"1\"}", 1),
        ("xway_queue_worker{port=\"sim:b\",queue=\"0\"}", 0),
        ("xway_pool_refused_total{port=\"sim:a\",queue=\"0\"}", 0),
        ("xway_pool_outstanding_frames{port=\"sim:a\",queue=\"1\"}", 0),
    ];
    // A worker that is stopped in the middle of its last burst has run the programs and counted nothing else yet.
    let mut page = Page::of(at);
    let deadline = Instant::now() + Duration::from_secs(30);
    let settled = |page: &Page| {
        let home = page.sum("xway_pool_allocated_total", "port=") == page.sum("xway_pool_released_total", "port=");
        home && expected.iter().all(|(series, number)| page.get(series) == *number)
    };
    while !settled(&page) && Instant::now() < deadline {
        page = Page::of(at);
    }
    for (series, number) in expected {
        assert_eq!(page.get(series), number, "{series}");
    }
    // What the first worker sends to the second port is its own; the other one's goes to it through a ring.
    assert_eq!(page.get(relay), EACH);
    for (port, queue) in [("sim:a", 0), ("sim:a", 1), ("sim:b", 0)] {
        let queue = format!("port=\"{port}\",queue=\"{queue}\"");
        let bursts = page.get(&format!("xway_burst_packets_count{{{queue}}}"));
        let packets = page.get(&format!("xway_burst_packets_sum{{{queue}}}"));
        assert_eq!(page.get(&format!("xway_burst_packets_bucket{{{queue},le=\"+Inf\"}}")), bursts);
        assert!(
            bursts > 0 && bursts <= packets && packets <= 64 * bursts,
            "{queue}: {bursts} bursts of {packets} packets"
        );
        // Every frame has come home.
        let sum = |metric| page.sum(metric, &queue);
        assert_eq!(sum("xway_pool_allocated_total"), sum("xway_pool_released_total"), "{queue}");
        assert!(sum("xway_pool_allocated_total") >= PLAIN && sum("xway_pool_limit_frames") > 0, "{queue}");
    }
    let mut service = Service::connect(&dir.join("control.sock")).unwrap();
    let Ok(ObjectId::Map(map)) = service.pinned(std::path::Path::new("/config/each/seen")) else {
        panic!("no such map")
    };
    let bytes = service.map_info(map).unwrap().memory.unwrap();
    assert_eq!(page.get(&format!("xway_map_bytes{{map=\"seen\",id=\"{}\"}}", map.0)), bytes);
    // Nothing on the page that is not known, and of what is known all but what only devices with a queue of their own have.
    let family = |series: &str| {
        let name = series.split('{').next().unwrap();
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        histogram.filter(|_| name.starts_with("xway_burst_packets")).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = page.0.keys().map(|series| family(series)).collect();
    let known = METRICS.iter().map(|(name, ..)| (*name).to_owned());
    let expected: BTreeSet<String> = known.filter(|name| !name.starts_with("xway_tx_queue_")).collect();
    assert_eq!(shown, expected);
    stop.ask();
    thread.join().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

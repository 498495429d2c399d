//! Watching the engine in this process: events for several listeners, captures, numbers by one list of names.

#[path = "../../engine/tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Wire, eventually};
use xway_abi::Errno;
use xway_engine::{OneQueue, Port, PortConfig};
use xway_filter::Classic;
use xway_hook::user::{POOL_NAMES, PORT_NAMES, QUEUE_NAMES, UserConfig, WORKER_NAMES};
use xway_hook::{
    AttachRequest, CapturePoint, CaptureRequest, CapturedPacket, Hook, HookEvent, Image, LoadRequest, User, Verdicts,
};
use xway_object::LoadOptions;
use xway_packet::{Burst, Pool, PoolConfig};
use xway_port_sim::{PairConfig, pair};
use xway_testkit::{Needs, clang};

/// Decides by the number in the packet: aborted, drop, pass, tx, no verdict.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int sorts(struct xdp_md *ctx)
{
    unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (p + 4 > end)
        return XDP_DROP;
    switch (p[3] % 5) {
    case 0: return XDP_ABORTED;
    case 1: return XDP_DROP;
    case 2: return XDP_PASS;
    case 3: return XDP_TX;
    default: return 77;
    }
}
char _license[] SEC("license") = "GPL";
"#;

fn hook(wire: &Wire, port: &str) -> User {
    let mut hook = User::new(UserConfig::default());
    hook.open_port(wire.device(), PortConfig::default()).unwrap();
    let bytes = clang::compile_text("watching", SOURCE, &[]).unwrap();
    let image = Image::parse(&bytes, &LoadOptions::default()).unwrap();
    let objects = hook.load(&image, &LoadRequest::default()).unwrap();
    hook.attach(&AttachRequest::new(port, objects.program("sorts").unwrap())).unwrap();
    hook
}

fn ready(name: &str) -> bool {
    Needs::of(&format!("hook::watching::{name}")).clang().met()
}

/// Packets that programs have decided about: they are counted as received before that.
fn decided(hook: &mut User, port: &str) -> u64 {
    let counted = hook.statistics(port).unwrap();
    ["aborted", "drop", "pass", "tx"].iter().map(|v| counted.get(&format!("verdicts.{v}"))).sum::<u64>()
        + counted.get("invalid")
}

/// Asks until there is enough, for at most half a minute.
fn until<T>(mut ask: impl FnMut() -> Vec<T>, enough: impl Fn(&[T]) -> bool) -> Vec<T> {
    let (mut all, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(30));
    while !enough(&all) && Instant::now() < deadline {
        all.extend(ask());
    }
    all
}

#[test]
fn everybody_who_listens_hears_what_went_wrong() {
    if !ready("everybody_who_listens_hears_what_went_wrong") {
        return;
    }
    let wire = Wire::new(8, 1);
    let mut hook = hook(&wire, "wire8");
    let kinds = |all: &[HookEvent]| all.iter().map(|e| e.kind).collect::<Vec<_>>();
    let before = hook.events(Duration::ZERO).unwrap();
    assert_eq!(kinds(&before), ["port", "attach"], "control is told from the start");
    let (mut one, mut two) = (hook.watch(), hook.watch());
    wire.send(0, 5);
    for watch in [&mut one, &mut two] {
        let all = until(|| watch.next(Duration::from_millis(100)), |all| all.len() >= 2);
        let texts: Vec<&str> = all.iter().map(|e| e.text.as_str()).collect();
        assert_eq!(texts, ["sorts returned XDP_ABORTED", "sorts returned 77, which is no verdict"]);
        assert_eq!(kinds(&all), ["exception", "invalid_action"]);
        for event in &all {
            assert_eq!((event.port.as_deref(), event.queue, event.packets), (Some("wire8"), Some(0), 1));
            assert!(event.program.as_deref() == Some("sorts") && event.time_ns > 0);
        }
    }
    drop(two);
    hook.detach("wire8", None).unwrap();
    let all = until(|| one.next(Duration::from_millis(100)), |all| !all.is_empty());
    assert_eq!(kinds(&all), ["detach"]);
    hook.close_port("wire8").unwrap();
}

#[test]
fn a_listener_that_does_not_keep_up_is_told_how_much_it_missed() {
    if !ready("a_listener_that_does_not_keep_up_is_told_how_much_it_missed") {
        return;
    }
    let wire = Wire::new(9, 1);
    let mut hook = hook(&wire, "wire9");
    let mut watch = hook.watch();
    // Far more than is told in a second: an attacker who chooses the verdicts.
    wire.send(0, 5000);
    eventually(|| decided(&mut hook, "wire9") == 5000);
    let told = watch.next(Duration::from_secs(30));
    assert!(told.len() < 2012, "{} events", told.len());
    let counted = hook.statistics("wire9").unwrap();
    assert_eq!((counted.get("verdicts.aborted"), counted.get("invalid")), (1016, 996), "all of them are counted");
    hook.close_port("wire9").unwrap();
}

fn captured(hook: &mut User, count: usize) -> Vec<CapturedPacket> {
    until(|| hook.captured(Duration::from_millis(100)).unwrap().packets, |all| all.len() >= count)
}

#[test]
fn captures_say_what_became_of_each_packet() {
    if !ready("captures_say_what_became_of_each_packet") {
        return;
    }
    let wire = Wire::new(10, 1);
    let mut hook = hook(&wire, "wire10");
    assert_eq!(hook.captured(Duration::ZERO).unwrap_err().errno, Some(Errno::ENOENT));
    let missing = CaptureRequest { port: Some("eth7".into()), ..CaptureRequest::default() };
    assert_eq!(hook.capture(&missing).unwrap_err().errno, Some(Errno::ENODEV));
    let wrong = CaptureRequest { filter: vec![Classic::default()], ..CaptureRequest::default() };
    assert_eq!(hook.capture(&wrong).unwrap_err().errno, Some(Errno::EINVAL));

    hook.capture(&CaptureRequest { port: Some("wire10".into()), snaplen: 20, ..CaptureRequest::default() }).unwrap();
    wire.send(0, 5);
    let mut all = captured(&mut hook, 5);
    all.sort_by_key(|packet| packet.data[3]);
    let verdicts: Vec<_> = all.iter().map(|packet| packet.verdict).collect();
    assert_eq!(verdicts, [Some(0), Some(1), Some(2), Some(3), Some(77)]);
    let reasons: Vec<_> = all.iter().map(|packet| packet.reason.as_deref()).collect();
    assert_eq!(
        reasons,
        [
            Some("dropped: sorts returned XDP_ABORTED"),
            Some("dropped: sorts returned XDP_DROP"),
            None,
            None,
            Some("dropped: sorts returned 77, which is no verdict"),
        ]
    );
    for packet in &all {
        assert_eq!((packet.port.as_str(), packet.queue, packet.data.len()), ("wire10", 0, 20));
        assert!(packet.program == "sorts" && packet.len > 20 && packet.time_ns > 0);
    }

    // The filter: byte 3 is above 6 (ldb [3]; jgt #6); at the entry nothing is decided yet.
    let insn = |code, jt, jf, k| Classic { code, jt, jf, k };
    let filter = vec![insn(0x30, 0, 0, 3), insn(0x25, 0, 1, 6), insn(0x06, 0, 0, 1), insn(0x06, 0, 0, 0)];
    let entry = CaptureRequest { at: CapturePoint::Entry, filter: filter.clone(), ..CaptureRequest::default() };
    hook.capture(&entry).unwrap();
    wire.send(0, 5);
    let all = captured(&mut hook, 3);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|packet| packet.verdict.is_none() && packet.data[3] > 6), "{all:?}");

    // A verdict, a program, one of so many.
    let request = CaptureRequest {
        verdicts: Verdicts::parse("drop").unwrap(),
        program: Some("sorts".into()),
        every: 10,
        ..CaptureRequest::default()
    };
    hook.capture(&request).unwrap();
    wire.send(0, 500);
    let all = captured(&mut hook, 10);
    assert_eq!(all.len(), 10);
    assert!(all.iter().all(|packet| packet.verdict == Some(1)));
    let nobody = CaptureRequest { program: Some("4000000".into()), ..CaptureRequest::default() };
    let refused = hook.capture(&nobody).unwrap_err();
    assert!(
        refused.errno == Some(Errno::ENOENT) && refused.to_string().contains("no program with id 4000000"),
        "{refused}"
    );
    hook.capture(&CaptureRequest { program: Some("other".into()), ..CaptureRequest::default() }).unwrap();
    wire.send(0, 10);
    eventually(|| decided(&mut hook, "wire10") == 520);
    assert!(hook.captured(Duration::ZERO).unwrap().packets.is_empty());
    drop(hook);
}

/// A filter looks at a frame on its way, and leaves everything as it was: where it goes, too.
#[test]
fn a_filter_changes_nothing_of_what_it_looks_at() {
    if !ready("a_filter_changes_nothing_of_what_it_looks_at") {
        return;
    }
    const REDIRECTS: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n\
        SEC(\"xdp\") int redirects(struct xdp_md *ctx) { return bpf_redirect(31, 0); }\nchar _license[] SEC(\"license\") = \"GPL\";";
    let (left, right) = (Wire::new(30, 2), Wire::new(31, 1));
    let mut hook = User::new(UserConfig::default());
    for wire in [&left, &right] {
        hook.open_port(wire.device(), PortConfig::default()).unwrap();
    }
    let image = Image::parse(&clang::compile_text("redirects", REDIRECTS, &[]).unwrap(), &LoadOptions::default());
    let objects = hook.load(&image.unwrap(), &LoadRequest::default()).unwrap();
    hook.attach(&AttachRequest::new("wire30", objects.program("redirects").unwrap())).unwrap();
    // Byte 4 is the queue (ldb [4]; jeq #1): both queues are looked at, one is captured.
    let insn = |code, jt, jf, k| Classic { code, jt, jf, k };
    let filter = vec![insn(0x30, 0, 0, 4), insn(0x15, 0, 1, 1), insn(0x06, 0, 0, 1), insn(0x06, 0, 0, 0)];
    for at in [CapturePoint::Entry, CapturePoint::Exit] {
        let before = right.sent_count();
        hook.capture(&CaptureRequest { at, filter: filter.clone(), ..CaptureRequest::default() }).unwrap();
        (0..2).for_each(|queue| left.send(queue, 40));
        eventually(|| right.sent_count() == before + 80);
        let all = captured(&mut hook, 40);
        assert!(all.len() == 40 && all.iter().all(|packet| packet.queue == 1), "{at:?}: {}", all.len());
        // Without a filter, of one queue.
        hook.capture(&CaptureRequest { at, queue: Some(0), ..CaptureRequest::default() }).unwrap();
        (0..2).for_each(|queue| left.send(queue, 10));
        let all = captured(&mut hook, 10);
        eventually(|| right.sent_count() == before + 100);
        assert!(all.len() == 10 && all.iter().all(|packet| packet.queue == 0), "{at:?}: {}", all.len());
    }
    assert_eq!(hook.statistics("wire30").unwrap().get("redirected"), 200);
    drop(hook);
}

#[test]
fn every_number_is_documented_once() {
    let mut text = String::from(
        "<!-- Made by `XWAY_BLESS=1 cargo test -p xway-hook --test watching`. -->\n# Counters\n\n\
         One list of names, everywhere: `xway stats`, `monitor`, `top`, the JSON of all three, the service's socket. A name that\n\
         has several numbers has a point and a label behind it: `verdicts.drop`, `redirect_err.ENETDOWN`, `burst_sizes.64`.\n\
         Counters only grow while their port is open, unless they are called a gauge here; names stay.\n\n\
         ## The engine, for each queue\n\nEvery frame that comes in has exactly one end; `Counters::balance` adds them up, and every benchmark and soak asks it.\n\n\
         | name | what |\n|---|---|\n",
    );
    let rows = |text: &mut String, names: &[(&str, &str)]| {
        for (name, what) in names {
            let what = what.trim().replace("[`Verdict::ALL`]", "their codes");
            *text += &format!("| `{name}` | {what} |\n");
        }
    };
    rows(&mut text, xway_engine::Counters::NAMES);
    text += "\n## The port's driver\n\n| name | what |\n|---|---|\n";
    rows(&mut text, PORT_NAMES);
    text += "\n## Queues to send from\n\nOf ports whose queues can be looked at: `afxdp:` and the ends of a pair in memory; what others are given is sent at once.\n\n\
             | name | what |\n|---|---|\n";
    rows(&mut text, QUEUE_NAMES);
    text += "\n## Workers\n\n| name | what |\n|---|---|\n";
    rows(&mut text, WORKER_NAMES);
    text += "\n## Packet memory\n\n`(pool.fast + pool.ring) / (pool.fast + pool.ring + pool.slow)` is the recycle hit rate.\n\n\
             | name | what |\n|---|---|\n";
    rows(&mut text, POOL_NAMES);
    text += "\n## Linux's hook\n\nAn interface has the counters of `struct rtnl_link_stats64` by the names that `linux/if_link.h` gives them: \
             `rx_packets`,\n`tx_packets`, `rx_bytes`, `rx_dropped`, and so on. Where the engine counts the same thing it has the same name.\n\n\
             ## Programs\n\nAn interface cannot know whose packets it carries, so programs count for themselves. One form is common to all: a map whose values\n\
             have two members of eight bytes, `packets` and `bytes` (`struct counter` of `bpf/include/counter.h`). `xway stats` shows every such map of\n\
             the programs on a port, on any hook, summed over CPUs: `program.MAP.KEY.packets`, `program.MAP.KEY.bytes`.\n";
    let path = clang::repository().join("docs/counters.md");
    if std::env::var_os("XWAY_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text, "XWAY_BLESS=1 writes {}", path.display());
}

#[test]
fn statistics_use_the_documented_names() {
    if !ready("statistics_use_the_documented_names") {
        return;
    }
    let wire = Wire::new(11, 2);
    let mut hook = hook(&wire, "wire11");
    wire.send(0, 50);
    wire.send(1, 20);
    eventually(|| decided(&mut hook, "wire11") == 70);
    let counted = hook.statistics("wire11").unwrap();
    let known: Vec<&str> = xway_engine::Counters::NAMES
        .iter()
        .chain(PORT_NAMES)
        .chain(POOL_NAMES)
        .chain(QUEUE_NAMES)
        .chain(WORKER_NAMES)
        .map(|(name, _)| *name)
        .collect();
    let queues = counted.queues.iter().flat_map(|q| &q.counters);
    for (name, _) in counted.counters.iter().chain(queues) {
        let listed = known.iter().any(|k| name == k || name.strip_prefix(k).is_some_and(|rest| rest.starts_with('.')));
        assert!(listed, "{name} is not in docs/counters.md");
    }
    let of = |name: &str| counted.queues.iter().map(|q| q.get(name)).collect::<Vec<_>>();
    assert_eq!(of("rx_packets"), [50, 20]);
    let bursts: u64 =
        ["1", "2", "4", "8", "16", "32", "64"].map(|s| counted.get(&format!("burst_sizes.{s}"))).iter().sum();
    assert_eq!(bursts, counted.get("bursts"), "every burst is in one step");
    assert!(counted.get("pool.fast") + counted.get("pool.slow") >= 70, "{counted:?}");
    let program = &counted.programs[0];
    assert_eq!((program.name.as_str(), program.runs, program.invalid), ("sorts", 70, 14));
    assert_eq!(program.verdicts, [14, 14, 14, 14, 0]);
    assert_eq!(counted.losses().find(|(name, _)| *name == "invalid"), Some(("invalid", 14)));
    hook.close_port("wire11").unwrap();
}

/// Frames that nobody takes out of a queue are seen there, and seen to go.
#[test]
fn what_waits_to_be_sent_is_a_gauge() {
    if !ready("what_waits_to_be_sent_is_a_gauge") {
        return;
    }
    const BOUNCE: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nSEC(\"xdp\") int bounce(struct xdp_md *ctx) { return XDP_TX; }";
    let (near, mut far) = pair("waits", PairConfig { ifindexes: [21, 22], ..PairConfig::default() }).unwrap();
    let mut hook = User::new(UserConfig::default());
    hook.open_port(Box::new(OneQueue::new(Box::new(near))), PortConfig::default()).unwrap();
    let image = Image::parse(&clang::compile_text("bounce", BOUNCE, &[]).unwrap(), &LoadOptions::default()).unwrap();
    let objects = hook.load(&image, &LoadRequest::default()).unwrap();
    hook.attach(&AttachRequest::new("sim:waits.0", objects.program("bounce").unwrap())).unwrap();
    let waits = |hook: &mut User| {
        let counted = hook.statistics("sim:waits.0").unwrap();
        assert_eq!(counted.get("tx_queue.frames"), counted.queues[0].get("tx_queue.frames"));
        (counted.get("tx_queue.frames"), counted.get("tx_queue.bytes"))
    };
    assert_eq!(waits(&mut hook), (0, 0));
    let (mut pool, mut burst) = (Pool::new(PoolConfig::new(64)).unwrap(), Burst::new());
    for _ in 0..10 {
        burst.push(pool.frame_of(&[7; 100]).unwrap()).unwrap();
    }
    assert_eq!(far.tx(0, &mut pool, &mut burst).sent, 10);
    far.flush().unwrap();
    eventually(|| waits(&mut hook) == (10, 1000));
    let mut taken = 0;
    eventually(|| {
        far.rx(0, &mut pool, &mut burst, 64).unwrap();
        taken += burst.len();
        pool.release_burst(&mut burst);
        taken == 10
    });
    assert_eq!(waits(&mut hook), (0, 0));
    hook.close_port("sim:waits.0").unwrap();
}

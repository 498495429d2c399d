//! The engine in this process behind the trait: chains, queues, replacements, what a port can do.

#[path = "../../engine/tests/common/mod.rs"]
mod common;

use common::{Wire, eventually};
use xway_abi::{Errno, MapSpec, MapType};
use xway_engine::PortConfig;
use xway_hook::user::UserConfig;
use xway_hook::{
    AttachRequest, Hook, HookError, Image, LoadRequest, Objects, ProgId, Replace, TestRequest, User, Verdicts,
};
use xway_object::LoadOptions;
use xway_testkit::Needs;

const HEAD: &str =
    "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";

fn image(text: &str) -> Image {
    let bytes = xway_testkit::clang::compile_text("engine", &format!("{HEAD}{text}"), &[]).unwrap();
    Image::parse(&bytes, &LoadOptions::default()).unwrap()
}

/// Programs that count and return what their names say.
fn counters() -> Image {
    let one = |name: &str, verdict: &str| {
        format!(
            "struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, long); }}
             {name}_seen SEC(\".maps\");
             SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{ int k = 0; long *n = bpf_map_lookup_elem(&{name}_seen, &k);
             if (n) __sync_fetch_and_add(n, 1); return {verdict}; }}\n"
        )
    };
    image(&(one("first", "XDP_PASS") + &one("second", "XDP_PASS") + &one("drops", "XDP_DROP")))
}

fn seen(hook: &mut User, objects: &Objects, name: &str) -> u64 {
    let map = objects.map(&format!("{name}_seen")).unwrap();
    u64::from_ne_bytes(hook.map_lookup(map, &[0; 4], 0).unwrap().try_into().unwrap())
}

fn order(hook: &mut User, port: &str) -> Vec<(Option<u32>, String)> {
    let all = hook.attachments(Some(port)).unwrap();
    all.into_iter().map(|a| (a.queue, a.program.name)).collect()
}

fn errno<T>(answer: Result<T, HookError>) -> Option<Errno> {
    answer.err().and_then(|e| e.errno)
}

fn ready(name: &str) -> bool {
    Needs::of(&format!("hook::engine::{name}")).clang().met()
}

#[test]
fn chains_and_queues() {
    if !ready("chains_and_queues") {
        return;
    }
    let mut hook = User::new(UserConfig { cpus: 2, ..UserConfig::default() });
    let wire = Wire::new(7, 2);
    hook.open_port(wire.device(), PortConfig::default()).unwrap();
    assert_eq!(errno(hook.open_port(wire.device(), PortConfig::default())), Some(Errno::EEXIST));
    let objects = hook.load(&counters(), &LoadRequest::default()).unwrap();
    let id = |name: &str| objects.program(name).unwrap();
    let chain = |name: &str, priority, chain_on| AttachRequest {
        priority,
        chain_on: Verdicts::parse(chain_on).unwrap(),
        chain: true,
        ..AttachRequest::new("wire7", id(name))
    };

    hook.attach(&chain("second", 60, "pass")).unwrap();
    hook.attach(&chain("first", 10, "pass")).unwrap();
    assert_eq!(order(&mut hook, "wire7"), [(None, "first".into()), (None, "second".into())]);
    // What runs is one function, and it is shown as that of either program.
    for name in ["first", "second"] {
        let dump = hook.dump(id(name)).unwrap();
        let [chain] = &dump.chains[..] else { panic!("{name}: {:?}", dump.chains) };
        assert_eq!(chain.points, [("wire7".to_owned(), None)]);
        let names: Vec<(u32, &str)> = chain.programs.iter().map(|p| (p.id, &p.name[..])).collect();
        assert_eq!(names, [(id("first").0, "first"), (id("second").0, "second")]);
        let burst = &chain.functions[0];
        assert_eq!(burst.name, "first+second.burst");
        // Code of both, each with its lines.
        let slots: Vec<usize> = burst.insns.iter().filter_map(|(_, slot)| *slot).collect();
        let second = chain.programs[1].first;
        assert!(second > 0 && slots.iter().any(|s| *s < second) && slots.iter().any(|s| *s >= second), "{slots:?}");
        let of = |name: &str| chain.lines.iter().filter(|l| l.function == name).map(|l| l.insn).collect::<Vec<_>>();
        assert!(of("first").iter().all(|s| *s < second) && of("second").iter().all(|s| *s >= second));
        assert!(burst.offset + burst.len <= chain.jited.len() && chain.jited != dump.jited);
    }
    assert_eq!(hook.dump(id("drops")).unwrap().chains, []);
    wire.send(0, 100);
    wire.send(1, 50);
    eventually(|| wire.passed().len() == 150);
    assert_eq!((seen(&mut hook, &objects, "first"), seen(&mut hook, &objects, "second")), (150, 150));
    assert_eq!(hook.program_info(id("first")).unwrap().runs.map(|(count, _)| count), Some(150));

    // A queue's program wins over the port's, and the port's come back when it goes.
    hook.attach(&AttachRequest { queue: Some(1), ..AttachRequest::new("wire7", id("drops")) }).unwrap();
    assert_eq!(order(&mut hook, "wire7")[2], (Some(1), "drops".into()));
    wire.send(1, 10);
    wire.send(0, 10);
    eventually(|| seen(&mut hook, &objects, "drops") == 10 && wire.passed().len() == 160);
    assert_eq!(hook.detach("wire7", Some(id("drops"))).unwrap(), [id("drops")]);
    wire.send(1, 10);
    eventually(|| wire.passed().len() == 170);

    // Who is there decides what may be done.
    let alone = AttachRequest::new("wire7", id("drops"));
    assert_eq!(errno(hook.attach(&alone)), Some(Errno::EBUSY));
    let missing = AttachRequest { replace: Replace::Name("nobody".into()), ..alone.clone() };
    assert_eq!(errno(hook.attach(&missing)), Some(Errno::ENOENT));
    let done =
        hook.attach(&AttachRequest { replace: Replace::Name("second".into()), ..chain("drops", 1, "pass") }).unwrap();
    assert_eq!(done.replaced, Some(id("second").0));
    assert_eq!(order(&mut hook, "wire7"), [(None, "first".into()), (None, "drops".into())], "in its place");
    hook.attach(&AttachRequest { replace: Replace::Any, ..alone }).unwrap();
    assert_eq!(order(&mut hook, "wire7"), [(None, "drops".into())]);
    assert_eq!(hook.dump(id("drops")).unwrap().chains, [], "alone its own code runs");
    assert_eq!(
        errno(hook.attach(&AttachRequest { queue: Some(9), ..AttachRequest::new("wire7", id("first")) })),
        Some(Errno::EINVAL)
    );

    let counted = hook.statistics("wire7").unwrap().counters;
    let of = |name: &str| counted.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((of("rx_packets"), of("verdicts.drop"), of("passed")), (180, 10, 170));
    let kinds: Vec<_> = hook.events(std::time::Duration::ZERO).unwrap().iter().map(|e| e.kind).collect();
    assert_eq!((kinds[0], kinds[1]), ("port", "attach"), "{kinds:?}");
    let features = hook.features("wire7").unwrap();
    assert!(
        features.xdp.contains(&"redirect".to_owned()) && features.verdicts.contains(&("DROP".into(), "full".into()))
    );
    for report in hook.close_port("wire7").unwrap() {
        assert_eq!((report.leak, report.pool.outstanding), (None, 0));
    }
}

#[test]
fn a_port_says_no_to_what_it_cannot_do() {
    if !ready("a_port_says_no_to_what_it_cannot_do") {
        return;
    }
    let mut hook = User::new(UserConfig::default());
    let wire = Wire::new(8, 1).without_redirect();
    hook.open_port(wire.device(), PortConfig::default()).unwrap();
    let objects = hook.load(&counters(), &LoadRequest::default()).unwrap();
    let wrong = AttachRequest { mode: xway_hook::Mode::Native, ..AttachRequest::new("wire8", objects.programs[0].1) };
    assert_eq!(errno(hook.attach(&wrong)), Some(Errno::EOPNOTSUPP));
    assert_eq!(errno(hook.attach(&AttachRequest::new("elsewhere", objects.programs[0].1))), Some(Errno::ENODEV));
    assert_eq!(errno(hook.attach(&AttachRequest::new("wire8", ProgId(u32::MAX - 1)))), Some(Errno::ENOENT));
}

#[test]
fn devices_in_maps_are_ports_that_are_open() {
    let mut hook = User::new(UserConfig::default());
    for map_type in [MapType::Devmap, MapType::DevmapHash] {
        let map = hook.map_create("ports", &MapSpec::new(map_type, 4, 4, 4)).unwrap();
        let put = |hook: &mut User, number: u32| errno(hook.map_update(map, &[0; 4], &number.to_ne_bytes(), 0));
        // What is restored before the ports are there may become one.
        let early = hook.engine().is_none().then(|| put(&mut hook, 77));
        assert!(matches!(early, None | Some(None)), "{early:?}");
        if early.is_some() {
            hook.open_port(Wire::new(8, 1).device(), PortConfig::default()).unwrap();
        }
        assert_eq!([8, 77].map(|number| put(&mut hook, number)), [None, Some(Errno::EINVAL)], "{map_type:?}");
        hook.open_port(Wire::new(77, 1).device(), PortConfig::default()).unwrap();
        assert_eq!(put(&mut hook, 77), None);
        hook.close_port("wire77").unwrap();
        assert_eq!(put(&mut hook, 77), Some(Errno::EINVAL));
    }
}

#[test]
fn memory_is_part_of_what_a_port_says_and_a_program_asks() {
    if !ready("memory_is_part_of_what_a_port_says_and_a_program_asks") {
        return;
    }
    let programs = image(
        "struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 1); __type(key, int); __type(value, int); }
         indices SEC(\".maps\");
         struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 1); __type(key, int);
             __type(value, struct bpf_devmap_val); } entries SEC(\".maps\");
         SEC(\"xdp\") int reads(struct xdp_md *ctx)
         {
             unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
             return p + 14 <= end && p[12] == 8 ? XDP_DROP : XDP_PASS;
         }
         SEC(\"xdp\") int sends(struct xdp_md *ctx) { return bpf_redirect_map(&indices, 0, 0); }
         SEC(\"xdp\") int stores(struct xdp_md *ctx) { char c = 1; bpf_xdp_store_bytes(ctx, 0, &c, 1); return XDP_PASS; }
         SEC(\"xdp\") int hands_on(struct xdp_md *ctx) { return bpf_redirect_map(&entries, 0, 0); }",
    );
    let mut hook = User::new(UserConfig::default());
    hook.open_port(Wire::new(8, 1).device(), PortConfig { read_only: true, ..PortConfig::default() }).unwrap();
    hook.open_port(Wire::new(9, 1).device(), PortConfig::default()).unwrap();
    for (port, writable) in [("wire8", false), ("wire9", true)] {
        let memory = hook.features(port).unwrap().memory.unwrap();
        assert_eq!((memory.model.as_str(), memory.packets_a_chunk, memory.writable), ("copied", 1, writable));
        assert_eq!((memory.frags, memory.zero_copy, memory.headroom), (false, false, None));
        let [queue] = &memory.queues[..] else { panic!("one queue is open: {memory:?}") };
        assert!(queue.queue == 0 && queue.bytes >= 512 * 4096, "{queue:?}");
        assert_eq!(queue.pages_reason.is_none(), queue.pages_requested == queue.pages_effective, "{queue:?}");
        assert!(queue.node.contains("NUMA node"), "{queue:?}");
    }
    let objects = hook.load(&programs, &LoadRequest::default()).unwrap();
    let mut attach = |port: &str, name: &str| {
        let request =
            AttachRequest { replace: Replace::Any, ..AttachRequest::new(port, objects.program(name).unwrap()) };
        hook.attach(&request).map(drop)
    };
    for name in ["reads", "sends"] {
        attach("wire8", name).unwrap();
    }
    for (name, how) in [("stores", "its helpers store"), ("hands_on", "programs in the map")] {
        let error = attach("wire8", name).unwrap_err();
        assert_eq!(error.errno, Some(Errno::EOPNOTSUPP), "{error}");
        let said = error.to_string();
        assert!(said.contains(&format!("wire8: packets are read-only there, and program {name} needs")), "{said}");
        assert!(said.contains(how), "{said}");
        attach("wire9", name).unwrap();
    }
}

/// What a program takes out of its maps is used again while a test run goes on, and not only behind it.
#[test]
fn a_long_test_run_keeps_no_garbage() {
    if !ready("a_long_test_run_keeps_no_garbage") {
        return;
    }
    let image = image(
        "struct route { __u32 len, addr; };
         struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 4); __uint(map_flags, BPF_F_NO_PREALLOC);
                  __type(key, struct route); __type(value, __u64); } routes SEC(\".maps\");
         SEC(\"xdp\") int again(struct xdp_md *ctx) { struct route r = { 8, 10 }; __u64 v = 1;
         return bpf_map_update_elem(&routes, &r, &v, BPF_ANY) ? XDP_ABORTED : XDP_PASS; }",
    );
    // The most values that a small trie has, and some.
    let repeat = (1 << 20) + (1 << 16);
    for compiler in [UserConfig::default().compiler, None] {
        let mut hook = User::new(UserConfig { compiler, ..UserConfig::default() });
        let again = hook.load(&image, &LoadRequest::default()).unwrap().program("again").unwrap();
        let ran = hook.test_run(again, &TestRequest { data: &[0; 64], ctx: None, repeat }).unwrap();
        assert_eq!(ran.ret, 2, "the last of them still finds room");
    }
}

//! Loads, replacements and detachments on Linux's hook, under traffic, leave no descriptor, program, map or pin: a program alone, and
//! several on one interface, by the ecosystem's dispatcher or by our chain, in native and in generic mode. A replacement loses no packet.
//! (`make cycles` does a thousand of each.)

#[path = "body/cycles.rs"]
mod body;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xway_hook::{AttachRequest, Hook, Image, Kernel, LoadRequest, Mode, ObjectId, Replace, Via};
use xway_kernel::{KernelMap, KernelProg};
use xway_object::LoadOptions;
use xway_testkit::{Lab, Namespace, Needs, rounds, traffic};

const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 3, 2);

#[test]
fn changes_under_traffic_leave_nothing() {
    const NAME: &str = "hook::cycles::changes_under_traffic_leave_nothing";
    if !Needs::of(NAME).root().command("ip").clang().met() {
        return;
    }
    if !xway_hook::pins::is_bpffs(Path::new("/sys/fs/bpf")) {
        return xway_testkit::skip(NAME, "a BPF file system at /sys/fs/bpf");
    }
    // A name of its own: the machine has others' programs too.
    let name = format!("c{}", std::process::id());
    let text = format!(
        "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
        struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, long); }}
        {name} SEC(\".maps\");
        SEC(\"xdp\") int {name}x(struct xdp_md *ctx) {{ int k = 0; long *n = bpf_map_lookup_elem(&{name}, &k);
        if (n) __sync_fetch_and_add(n, 1); return XDP_PASS; }} char _license[] SEC(\"license\") = \"GPL\";"
    );
    let bytes = xway_testkit::clang::compile_text("cycles", &text, &[]).unwrap();
    let image = Image::parse(&bytes, &LoadOptions::default()).unwrap();

    let lab = Lab::new("cycles").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.3.1/24").unwrap();
    right.address("r0", &format!("{RIGHT}/24")).unwrap();
    let (done, pings) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            left.enter(|| {
                while !done.load(Ordering::SeqCst) {
                    pings.fetch_add(traffic::ping(RIGHT, 5).unwrap().into(), Ordering::SeqCst);
                }
            })
            .unwrap();
        });
        let _over = Over(&done);
        for mode in [Mode::Native, Mode::Generic] {
            right.enter(|| alone(&image, mode)).unwrap();
            right.enter(|| several(&image, mode)).unwrap();
        }
    });
    assert!(pings.load(Ordering::SeqCst) > 0, "there was traffic, and it passed");
    for mode in [Mode::Native, Mode::Generic] {
        replaced(&left, &right, &image, mode);
    }

    // The kernel frees what nobody holds a little later.
    let mut hook = Kernel::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let programs = hook.programs().unwrap().iter().filter(|p| p.name == format!("{name}x")).count();
        let maps = hook.maps().unwrap().iter().filter(|m| m.name == name).count();
        if (programs, maps) == (0, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{programs} programs and {maps} maps are left");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whatever happens, the traffic ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What the kernel frees a little later.
fn goes(what: &str, there: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while there() {
        assert!(Instant::now() < deadline, "{what} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Beside others: the root that they hang on, its members and everything that these use.
fn several(image: &Image, mode: Mode) {
    let mut hook = Kernel::new();
    let before = descriptors();
    let (mut programs, mut maps, mut how) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    body::several(&mut hook, ("r0", mode), image, rounds(), &mut |done| {
        how.insert(done.chain.as_ref().unwrap().effective);
        let roots = xway_hook::kernel::device("r0").unwrap().attached().map(|(_, id)| id).collect::<Vec<_>>();
        for id in roots.into_iter().chain([done.program.0]) {
            maps.extend(KernelProg::by_id(id).unwrap().info().unwrap().map_ids);
            programs.insert(id);
        }
    });
    assert_eq!(how.len(), 1, "one way from the first to the last: {how:?}");
    assert!(descriptors() <= before + 2, "{before} descriptors before, {} behind", descriptors());
    for id in programs {
        goes(&format!("program {id}"), || KernelProg::by_id(id).is_ok());
        assert!(!Path::new(&format!("/sys/fs/bpf/xway/chains/{id}")).exists(), "pins of chain {id}");
        let dispatchers = std::fs::read_dir("/sys/fs/bpf/xdp").into_iter().flatten().flatten();
        let own = format!("-{id}");
        assert!(!dispatchers.map(|e| e.file_name()).any(|n| n.to_str().unwrap().ends_with(&own)), "pins of {id}");
    }
    maps.into_iter().for_each(|id| goes(&format!("map {id}"), || KernelMap::by_id(id).is_ok()));
}

fn alone(image: &Image, mode: Mode) {
    let mut hook = Kernel::new();
    let before = descriptors();
    let (mut last, mut links) = (None, Vec::new());
    for round in 0..rounds() {
        let objects = hook.load(image, &LoadRequest::default()).unwrap();
        let program = objects.programs[0].1;
        let replace = last.map_or(Replace::Never, Replace::Id);
        let done = hook.attach(&AttachRequest { mode, replace, ..AttachRequest::new("r0", program) }).unwrap();
        assert_eq!(done.mode.effective, mode.name());
        if let Via::Link(id) = done.via {
            links.push(id);
        }
        hook.release(ObjectId::Program(program)).unwrap();
        objects.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
        last = Some(program.0);
        if round % 3 == 2 {
            hook.detach("r0", None).unwrap();
            last = None;
        }
    }
    if last.is_some() {
        hook.detach("r0", None).unwrap();
    }
    // The other threads of this process open none meanwhile that they keep.
    assert!(descriptors() <= before + 2, "{before} descriptors before, {} behind", descriptors());
    assert!(hook.attachments(Some("r0")).unwrap().is_empty());
    for id in links {
        assert!(!Path::new(&format!("/sys/fs/bpf/xway/links/{id}")).exists(), "the pin of link {id}");
    }
}

/// While one program takes the place of another, again and again, every request is answered: each replacement meets packets, and none
/// of them is lost. (A first attachment and a detachment are another matter: a driver may take its queues down for them.)
fn replaced(left: &Namespace, right: &Namespace, image: &Image, mode: Mode) {
    // Nobody is late by this much: what is not there then was lost.
    const LOST: Duration = Duration::from_secs(30);
    let load = |hook: &mut Kernel, replace: Replace| {
        let objects = hook.load(image, &LoadRequest::default()).unwrap();
        let program = objects.programs[0].1;
        let done = hook.attach(&AttachRequest { mode, replace, ..AttachRequest::new("r0", program) }).unwrap();
        assert_eq!(done.mode.effective, mode.name());
        hook.release(ObjectId::Program(program)).unwrap();
        objects.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
        program.0
    };
    let first = right.enter(|| load(&mut Kernel::new(), Replace::Never)).unwrap();
    // The two know each other's addresses before it counts.
    let deadline = Instant::now() + Duration::from_secs(60);
    while left.enter(|| traffic::ping(RIGHT, 1)).unwrap().unwrap() == 0 {
        assert!(Instant::now() < deadline, "nobody answers");
    }
    let (done, asked, answered) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            left.enter(|| {
                while !done.load(Ordering::SeqCst) {
                    asked.fetch_add(1, Ordering::SeqCst);
                    answered.fetch_add(traffic::ping_within(RIGHT, 1, LOST).unwrap().into(), Ordering::SeqCst);
                }
            })
            .unwrap();
        });
        let _over = Over(&done);
        right
            .enter(|| {
                let (mut hook, mut last) = (Kernel::new(), first);
                for round in 0..rounds() {
                    last = load(&mut hook, Replace::Id(last));
                    // A request from behind this replacement on; the next one happens beside others.
                    let (seen, deadline) = (asked.load(Ordering::SeqCst), Instant::now() + 2 * LOST);
                    while asked.load(Ordering::SeqCst) == seen {
                        assert!(Instant::now() < deadline, "round {round}: nothing is sent any more");
                        std::thread::yield_now();
                    }
                }
            })
            .unwrap();
    });
    let (asked, answered) = (asked.into_inner(), answered.into_inner());
    assert!(asked >= rounds(), "{asked} requests in {} rounds", rounds());
    assert_eq!(answered, asked, "requests that were answered while programs were replaced, {}", mode.name());
    right.enter(|| Kernel::new().detach("r0", None)).unwrap().unwrap();
}

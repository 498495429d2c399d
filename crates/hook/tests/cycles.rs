//! A thousand loads, replacements and detachments on Linux's hook, under traffic, leave no descriptor, program, map or pin.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xway_hook::{AttachRequest, Hook, Image, Kernel, LoadRequest, ObjectId, Replace, Via};
use xway_object::LoadOptions;
use xway_testkit::{Lab, Needs, traffic};

const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 9, 3, 2);

#[test]
fn a_thousand_changes_under_traffic_leave_nothing() {
    const NAME: &str = "hook::cycles::a_thousand_changes_under_traffic_leave_nothing";
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
        right.enter(|| cycles(&image)).unwrap();
        done.store(true, Ordering::SeqCst);
    });
    assert!(pings.load(Ordering::SeqCst) > 0, "there was traffic, and it passed");

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

fn cycles(image: &Image) {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut hook = Kernel::new();
    let before = descriptors();
    let (mut last, mut links) = (None, Vec::new());
    for round in 0..1000u32 {
        let objects = hook.load(image, &LoadRequest::default()).unwrap();
        let program = objects.programs[0].1;
        let replace = last.map_or(Replace::Never, Replace::Id);
        let done = hook.attach(&AttachRequest { replace, ..AttachRequest::new("r0", program) }).unwrap();
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

//! Loads, replacements and detachments on the engine in this process, under traffic, leave nothing: of a program alone, and of several
//! on one port. Alone in its process, because it counts descriptors. (`make cycles` does a thousand of each.)

#[path = "body/cycles.rs"]
mod body;

#[path = "../../engine/tests/common/mod.rs"]
mod common;

use common::{Wire, eventually};
use xway_engine::PortConfig;
use xway_hook::user::UserConfig;
use xway_hook::{AttachRequest, Hook, Image, LoadRequest, Mode, ObjectId, ProgId, Replace, User};
use xway_maps::Guard;
use xway_object::LoadOptions;
use xway_testkit::{Needs, rounds};
use xway_vm::Surroundings;

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn changes_under_traffic_leave_nothing() {
    if !Needs::of("hook::engine_cycles").clang().met() {
        return;
    }
    let mut hook = User::new(UserConfig { compiler: None, ..UserConfig::default() });
    let wire = Wire::new(9, 1);
    hook.open_port(wire.device(), PortConfig::default()).unwrap();
    let text = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
        struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, long); }
        seen SEC(\".maps\");
        struct { __uint(type, BPF_MAP_TYPE_CPUMAP); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, 8); }
        cpus SEC(\".maps\");
        SEC(\"xdp\") int first(struct xdp_md *ctx) { int k = 0; long *n = bpf_map_lookup_elem(&seen, &k);
        if (n) __sync_fetch_and_add(n, 1); return bpf_redirect_map(&cpus, 0, XDP_PASS); }
        SEC(\"xdp/cpumap\") int far(struct xdp_md *ctx) { return XDP_PASS; }
        char _license[] SEC(\"license\") = \"GPL\";";
    let bytes = xway_testkit::clang::compile_text("cycles", text, &[]).unwrap();
    let image = Image::parse(&bytes, &LoadOptions::default()).unwrap();
    let request = LoadRequest { programs: vec!["first".into(), "far".into()], ..LoadRequest::default() };
    let before = descriptors();
    let mut last: Option<ProgId> = None;
    for round in 0..rounds() {
        let objects = hook.load(&image, &request).unwrap();
        let of = |name: &str| objects.programs.iter().find(|(known, _)| known == name).unwrap().1;
        let (program, far) = (of("first"), of("far"));
        // A map that holds a program of its own object, which holds the map.
        let cpus = objects.maps.iter().find(|(name, _)| name == "cpus").unwrap().1;
        let descriptor = Surroundings::FD_FIRST + far.0 as i32;
        hook.map_update(cpus, &[0; 4], &[64, descriptor].map(i32::to_ne_bytes).concat(), 0).unwrap();
        let replace = last.map_or(Replace::Never, |id| Replace::Id(id.0));
        hook.attach(&AttachRequest { replace, ..AttachRequest::new("wire9", program) }).unwrap();
        [program, far].iter().for_each(|id| hook.release(ObjectId::Program(*id)).unwrap());
        objects.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
        wire.send(0, 50);
        last = Some(program);
        if round % 3 == 2 {
            hook.detach("wire9", None).unwrap();
            last = None;
        }
    }
    if last.is_some() {
        hook.detach("wire9", None).unwrap();
    }
    body::several(&mut hook, ("wire9", Mode::Auto), &image, rounds(), &mut |_| wire.send(0, 50));
    // What ran until a moment ago is freed behind the next quiescent point, by whoever changes something then.
    eventually(|| {
        Guard::collect();
        hook.alive() == (0, 0)
    });
    for report in hook.close_port("wire9").unwrap() {
        assert_eq!(report.counters.balance(), Ok(()));
        assert_eq!((report.leak, report.pool.outstanding), (None, 0));
        assert!(report.counters.rx > 0, "there was traffic");
    }
    assert_eq!(descriptors(), before);
}

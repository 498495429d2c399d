//! Loads, replacements and detachments through the service's socket, under traffic, leave no descriptor, program, map or pin: of a
//! program alone, and of several on one port. Alone in its process, because it counts descriptors. (`make cycles` does a thousand of each.)

#[path = "../../hook/tests/body/cycles.rs"]
mod body;
mod running;

use std::path::Path;

use running::until;
use xway_control::{Config, LogFormat, Server, Service};
use xway_engine::Stop;
use xway_hook::{AttachRequest, Hook, Image, LoadRequest, Mode, ObjectId, Replace};
use xway_object::LoadOptions;
use xway_testkit::{Needs, rounds};

const TEXT: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
    struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, long); }
    seen SEC(\".maps\");
    struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __type(key, int); __type(value, int); }
    next SEC(\".maps\");
    SEC(\"xdp\") int first(struct xdp_md *ctx) { int k = 0; long *n = bpf_map_lookup_elem(&seen, &k);
    if (n) __sync_fetch_and_add(n, 1); bpf_tail_call(ctx, &next, 0); return XDP_DROP; }
    char _license[] SEC(\"license\") = \"GPL\";";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn changes_under_traffic_leave_nothing() {
    if !Needs::of("control::cycles").clang().met() {
        return;
    }
    let dir = running::Running::dir("cycles");
    let text = "[[port]]\nname = \"sim:a?flows=16\"\n";
    let mut config = Config::parse(text).unwrap();
    config.service.socket = dir.join("control.sock");
    config.service.log = LogFormat::Off;
    let stop = Stop::new().unwrap();
    let server = Server::start(&config, text, LoadOptions::default(), &stop).unwrap();
    let thread = std::thread::spawn(move || server.run().map(drop).unwrap());
    let bytes = xway_testkit::clang::compile_text("cycles", TEXT, &[]).unwrap();
    let image = Image::parse(&bytes, &LoadOptions::default()).unwrap();

    let mut service = Service::connect(&config.service.socket).unwrap();
    let mut before = 0;
    let mut last = None;
    for round in 0..10 + rounds() {
        if round == 10 {
            // The server has taken the connection, and what is opened once is open.
            service.detach("sim:a", None).unwrap();
            last = None;
            until("what the first rounds made goes", || service.maps().unwrap().is_empty());
            before = descriptors();
        }
        let objects = service.load(&image, &LoadRequest::default()).unwrap();
        let (program, next) = (objects.programs[0].1, objects.map("next").unwrap());
        // It calls itself: each keeps the other alive.
        service.map_store(next, &[0; 4], ObjectId::Program(program), 0).unwrap();
        let replace = last.map_or(Replace::Never, Replace::Id);
        service.attach(&AttachRequest { replace, ..AttachRequest::new("sim:a", program) }).unwrap();
        if round.is_multiple_of(7) {
            service.pin(ObjectId::Map(next), Path::new("/next")).unwrap();
            drop(service.share(next, true).unwrap());
            service.unpin(Path::new("/next")).unwrap();
        }
        service.release(ObjectId::Program(program)).unwrap();
        objects.maps.iter().for_each(|(_, id)| service.release(ObjectId::Map(*id)).unwrap());
        last = Some(program.0);
        if round % 3 == 2 {
            service.detach("sim:a", None).unwrap();
            last = None;
        }
    }
    if last.is_some() {
        service.detach("sim:a", None).unwrap();
    }
    body::several(&mut service, ("sim:a", Mode::Auto), &image, rounds(), &mut |_| {});
    // What ran until a moment ago is freed behind the next quiescent point; the last descriptor's thread ends when it is noticed.
    until("maps and programs go", || service.maps().unwrap().is_empty() && service.programs().unwrap().is_empty());
    until("descriptors go", || descriptors() == before);
    let counted = service.statistics("sim:a").unwrap();
    assert!(counted.counters.iter().any(|(name, n)| name == "rx_packets" && *n > 0), "there was traffic");
    // Closing proves that every frame came home.
    service.close_port("sim:a").unwrap();
    assert_eq!(service.ports().unwrap(), [""; 0]);
    drop(service);
    stop.ask();
    thread.join().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

//! The part of the body that has a port: programs are put there, replaced, run beside others, taken off and watched.

use std::time::{Duration, Instant};

use xway_abi::{Errno, Verdict};
use xway_hook::{
    AttachRequest, Attached, Hook, HookError, HookKind, LoadRequest, MapId, ObjectId, Objects, ProgId, Replace,
    Verdicts,
};

/// Three programs that count their runs beside each other: one passes, one drops, one aborts.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 3); __type(key, __u32); __type(value, __u64); }
    ran SEC(".maps");
static __attribute__((always_inline)) int count(__u32 at, int verdict)
{
    __u64 *n = bpf_map_lookup_elem(&ran, &at);
    if (n)
        __sync_fetch_and_add(n, 1);
    return verdict;
}
SEC("xdp") int passes(struct xdp_md *ctx) { return count(0, XDP_PASS); }
SEC("xdp") int drops(struct xdp_md *ctx) { return count(1, XDP_DROP); }
SEC("xdp") int aborts(struct xdp_md *ctx) { return count(2, XDP_ABORTED); }
char _license[] SEC("license") = "GPL";
"#;

/// What is attached, and by whom it is watched.
struct Scene<'a> {
    hook: &'a mut dyn Hook,
    port: &'a str,
    /// Lets some packets arrive at the port.
    send: &'a mut dyn FnMut(),
    objects: Objects,
}

/// Runs everything on a port with nothing attached; nothing is left there. `send` lets some packets arrive at it.
pub fn attachments(hook: &mut dyn Hook, port: &str, send: &mut dyn FnMut()) {
    let objects = hook.load(&super::image(SOURCE), &LoadRequest::default()).unwrap();
    let mut scene = Scene { hook, port, send, objects };
    scene.alone();
    scene.watched();
    scene.of_a_queue();
    scene.beside_others();
    let Scene { hook, objects, .. } = scene;
    assert!(hook.attachments(Some(port)).unwrap().is_empty());
    objects.programs.iter().for_each(|(_, id)| hook.release(ObjectId::Program(*id)).unwrap());
    objects.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
}

impl Scene<'_> {
    fn program(&self, name: &str) -> ProgId {
        self.objects.program(name).unwrap()
    }

    fn attach(&mut self, name: &str, replace: Replace) -> Result<Attached, HookError> {
        let program = self.program(name);
        self.hook.attach(&AttachRequest { replace, ..AttachRequest::new(self.port, program) })
    }

    /// Programs of the port, in the order in which they run.
    fn there(&mut self) -> Vec<ProgId> {
        self.hook.attachments(Some(self.port)).unwrap().iter().map(|a| a.program.id).collect()
    }

    /// Runs of the programs that pass, drop and abort.
    fn ran(&mut self) -> [u64; 3] {
        let map: MapId = self.objects.map("ran").unwrap();
        [0u32, 1, 2].map(|at| {
            let value = self.hook.map_lookup(map, &at.to_ne_bytes(), 0).unwrap();
            u64::from_ne_bytes(value.try_into().unwrap())
        })
    }

    /// Packets that came in, by the name that the engine and Linux share.
    fn received(&mut self) -> u64 {
        self.hook.statistics(self.port).unwrap().get("rx_packets")
    }

    /// Sends until it is so; a minute is for ever.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < deadline, "{}: never: {what}", self.port);
            (self.send)();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the program at a place of the map runs, from now on.
    fn runs(&mut self, at: usize, what: &str) {
        let before = self.ran()[at];
        self.until(what, |scene| scene.ran()[at] > before);
    }

    /// One program: attached, refused beside another, replaced by number and by name, taken off.
    fn alone(&mut self) {
        let features = self.hook.features(self.port).unwrap();
        assert_eq!(features.port, self.port);
        assert!(features.rx_queues >= 1, "{features:?}");
        let [passes, drops] = ["passes", "drops"].map(|name| self.program(name));

        let done = self.attach("passes", Replace::Never).unwrap();
        assert_eq!((done.program, done.replaced), (passes, None));
        assert!(done.chain.is_none() && !done.mode.effective.is_empty(), "{done:?}");
        assert_ne!(done.mode.effective, "auto", "where it runs is said: {done:?}");
        assert_eq!(self.there(), [passes]);
        let all = self.hook.attachments(None).unwrap();
        let mine = all.iter().find(|a| a.program.id == passes).expect("it is among those of all ports");
        assert_eq!((mine.port.as_str(), mine.queue, mine.priority), (self.port, None, None));
        assert_eq!(mine.mode.name(), done.mode.effective);
        self.runs(0, "the program that was attached runs");

        super::refused(self.attach("drops", Replace::Never), Errno::EBUSY);
        for wrong in [Replace::Id(u32::MAX - 1), Replace::Id(drops.0), Replace::Name("nobody".into())] {
            let error = self.attach("drops", wrong.clone()).unwrap_err();
            assert!(error.errno.is_some() && !error.message.is_empty(), "{wrong:?}: {error}");
            assert_eq!(self.there(), [passes], "{wrong:?} changes nothing");
        }
        for (name, replace, old, new, at) in [
            ("drops", Replace::Id(passes.0), passes, drops, 1),
            ("passes", Replace::Name("drops".into()), drops, passes, 0),
            ("drops", Replace::Any, passes, drops, 1),
        ] {
            let done = self.attach(name, replace.clone()).unwrap();
            assert_eq!((done.program, done.replaced), (new, Some(old.0)), "{replace:?}");
            assert_eq!(self.there(), [new], "{replace:?}");
            self.runs(at, "the program that replaced another one runs");
        }

        assert!(self.hook.detach(self.port, Some(passes)).is_err(), "it is attached no more");
        assert_eq!(self.there(), [drops]);
        assert_eq!(self.hook.detach(self.port, Some(drops)).unwrap(), [drops]);
        assert!(self.there().is_empty());
        assert!(self.hook.detach(self.port, None).is_err(), "nothing is attached");
        super::refused(self.hook.link_detach(u32::MAX - 1), Errno::ENOENT);
    }

    /// Numbers rise; what goes wrong is an event.
    fn watched(&mut self) {
        self.hook.events(Duration::ZERO).unwrap();
        let aborts = self.attach("aborts", Replace::Never).unwrap().program;
        let before = self.received();
        self.until("packets are counted", |scene| scene.received() > before);
        self.runs(2, "the program that aborts runs");
        self.until("an exception of this port is told", |scene| {
            let told = scene.hook.events(Duration::from_millis(20)).unwrap();
            told.iter().any(|e| e.kind == "exception" && e.port.as_deref() == Some(scene.port) && e.packets > 0)
        });
        assert_eq!(self.hook.detach(self.port, None).unwrap(), [aborts]);
    }

    /// A queue of its own: the engine has that, Linux says by name that it has not.
    fn of_a_queue(&mut self) {
        let program = self.program("passes");
        let request = AttachRequest { queue: Some(0), ..AttachRequest::new(self.port, program) };
        let done = self.hook.attach(&request);
        if self.hook.kind() == HookKind::Kernel {
            let error = done.unwrap_err();
            assert!(error.message.contains("queue 0"), "{error}");
            assert!(self.there().is_empty());
            return;
        }
        done.unwrap();
        let all = self.hook.attachments(Some(self.port)).unwrap();
        assert_eq!(all.iter().map(|a| (a.queue, a.program.id)).collect::<Vec<_>>(), [(Some(0), program)]);
        self.runs(0, "the program of the queue runs");
        // By its number one of two goes, where the program's own number would take both.
        let whole = self.attach("passes", Replace::Never).unwrap().program;
        let numbers: Vec<_> =
            self.hook.attachments(Some(self.port)).unwrap().iter().map(|a| (a.queue, a.link)).collect();
        let [(None, Some(port)), (Some(0), Some(queue))] = numbers[..] else { panic!("{numbers:?}") };
        assert!(port > queue, "{numbers:?}");
        self.hook.link_detach(queue).unwrap();
        super::refused(self.hook.link_detach(queue), Errno::ENOENT);
        // It keeps the number when another program comes in its place.
        let drops = self.attach("drops", Replace::Id(whole.0)).unwrap().program;
        let all = self.hook.attachments(Some(self.port)).unwrap();
        assert_eq!(
            all.iter().map(|a| (a.queue, a.program.id, a.link)).collect::<Vec<_>>(),
            [(None, drops, Some(port))]
        );
        self.hook.link_detach(port).unwrap();
        assert!(self.there().is_empty());
    }

    fn chained(&mut self, name: &str, priority: u32, chain_on: Verdicts) -> Attached {
        let program = self.program(name);
        let request = AttachRequest { priority, chain_on, chain: true, ..AttachRequest::new(self.port, program) };
        self.hook.attach(&request).unwrap()
    }

    /// Several programs: smaller numbers first, and the next one behind the verdicts that say so. What runs in a chain of Linux's is
    /// another program there, with a number of its own.
    fn beside_others(&mut self) {
        let done = self.chained("passes", 20, Verdicts::PASS);
        assert!(done.chain.is_some(), "{done:?}");
        let passes = done.program;
        let drops = self.chained("drops", 10, Verdicts(1 << Verdict::Drop as u32)).program;
        let all = self.hook.attachments(Some(self.port)).unwrap();
        let order: Vec<_> = all.iter().map(|a| (a.program.id, a.priority)).collect();
        assert_eq!(order, [(drops, Some(10)), (passes, Some(20))]);
        self.runs(1, "the first of two runs");
        self.runs(0, "the second one runs behind DROP, as the first one asks for");

        // Anew, and the second one runs behind PASS alone.
        assert_eq!(self.hook.detach(self.port, Some(drops)).unwrap(), [drops]);
        assert_eq!(self.there(), [passes]);
        let drops = self.chained("drops", 10, Verdicts::PASS).program;
        self.runs(1, "the first of two runs again");
        let before = self.ran()[0];
        self.runs(1, "the first of two goes on");
        assert_eq!(self.ran()[0], before, "nothing runs behind DROP");

        for program in [drops, passes] {
            assert_eq!(self.hook.detach(self.port, Some(program)).unwrap(), [program]);
        }
    }
}

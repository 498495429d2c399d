//! Packets of several buffers: the interpreter and compiled code against the running kernel.

use std::sync::Arc;

use xway_abi::{Errno, Verdict};
use xway_engine::{Checked, Executor, Linked, LoadedProgram, Stop, Worker, WorkerConfig};
use xway_isa::assemble;
use xway_kernel::{KernelObject, TestInput, XdpMd, possible_cpus};
use xway_object::{Object, Program, ProgramKind};
use xway_packet::{Pool, PoolConfig};
use xway_port_sim::{Seen, SimPort, Traffic};
use xway_testkit::{Needs, clang};
use xway_trial::{ENGINES, Trial};
use xway_verifier::Config;
use xway_vm::{Instance, SystemHost, TestRun};

/// What a run gives: return value, data, context.
type Run = Result<(u32, Vec<u8>, Option<[u8; 24]>), Errno>;

/// One program, three ways to run it.
struct Three {
    kernel: KernelObject,
    ours: [Trial; ENGINES.len()],
}

impl Three {
    fn new(text: &str, frags: bool) -> Three {
        let insns = assemble(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let section = if frags { "xdp.frags" } else { "xdp" }.to_owned();
        let program =
            Program { name: "parts".into(), section, kind: ProgramKind::Xdp { frags }, insns, ..Program::default() };
        let object = Arc::new(Object { programs: vec![program], license: Some("GPL".into()), ..Object::default() });
        Three::load(object)
    }

    /// The first program of an object that a compiler made.
    fn of(bytes: &[u8]) -> Three {
        Three::load(Arc::new(Object::parse(bytes, &Default::default()).unwrap()))
    }

    fn load(object: Arc<Object>) -> Three {
        let kernel = KernelObject::load(&object).unwrap();
        if let Err(error) = &kernel.programs[0] {
            panic!("the kernel refuses\n{:?}\n{error}", object.programs[0].insns);
        }
        let instance = Instance::verified(object, possible_cpus(), Config::default()).unwrap();
        Three { kernel, ours: ENGINES.map(|engine| Trial::of(&instance, 0, engine)) }
    }

    fn same(&self, packet: &[u8], ctx: Option<XdpMd>, what: &str) {
        let program = self.kernel.programs[0].as_ref().unwrap();
        let kernel = program.test_run(&TestInput { ctx, ..TestInput::packet(packet) });
        let kernel: Run = kernel.map(|o| (o.ret, o.data, o.ctx.map(XdpMd::to_bytes)));
        let host = SystemHost::new();
        let bytes = ctx.map(XdpMd::to_bytes);
        let test = TestRun { ctx_in: bytes.as_ref().map(|b| &b[..]), ..TestRun::new(packet) };
        let shown = |run: &Run| match run {
            Ok((ret, data, ctx)) => format!("{} with {} bytes, {ctx:?}", *ret as i32, data.len()),
            Err(errno) => errno.to_string(),
        };
        for (trial, engine) in self.ours.iter().zip(ENGINES) {
            let run = trial.test_run(&test, &host).map_err(|e| e.errno);
            let run: Run = run.map(|o| (o.retval, o.data_out, ctx.map(|_| o.ctx_out)));
            assert!(run == kernel, "{what}, {engine:?}: {}, kernel {}", shown(&run), shown(&kernel));
        }
    }
}

/// A packet whose first four bytes are a number for the program.
fn packet(len: usize, number: u32) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|n| (n * 13 + n / 241) as u8).collect();
    packet[..4].copy_from_slice(&number.to_ne_bytes());
    packet
}

fn needs(name: &str) -> bool {
    Needs::of(&format!("testkit::frags::{name}")).root().kernel(6, 18).met()
}

/// Reads the number and leaves it in r6, the context in r9.
const NUMBER: &str =
    "r9 = r1\nr2 = 0\nr3 = r10\nr3 += -8\n*(u64 *)(r10 -8) = 0\nr4 = 4\ncall 189\nr6 = *(u32 *)(r10 -8)\n";

const LENGTHS: [usize; 9] = [14, 3519, 3520, 3521, 7616, 7617, 20_000, 65_535, 3520 + 17 * 4096];

#[test]
fn lengths_and_what_is_too_long() {
    if !needs("lengths_and_what_is_too_long") {
        return;
    }
    for frags in [true, false] {
        let three = Three::new("call 188\nexit", frags);
        for len in LENGTHS.into_iter().chain([3520 + 17 * 4096 + 1]) {
            three.same(&packet(len, 0), None, &format!("length of {len} bytes, frags {frags}"));
        }
    }
}

#[test]
fn loads_and_stores_anywhere() {
    if !needs("loads_and_stores_anywhere") {
        return;
    }
    for helper in [189, 190] {
        // 16 bytes between the stack and the packet at the offset that the packet names; what was loaded is stored at the front.
        let text = format!(
            "{NUMBER}*(u64 *)(r10 -24) = 0x1234567\n*(u64 *)(r10 -16) = 0x89abcde\nr1 = r9\nr2 = r6\nr3 = r10\nr3 += -24\n\
             r4 = 16\ncall {helper}\nr7 = r0\nr1 = r9\nr2 = 4\nr3 = r10\nr3 += -24\nr4 = 8\ncall 190\nr0 = r7\nexit"
        );
        let three = Three::new(&text, true);
        for len in [40, 3521, 7617, 20_000, 65_535] {
            let offsets = [0, 5, len - 17, len - 16, len - 15, len, 3510, 3519, 3520, 7600, 7610, 65_535, 65_536];
            for offset in offsets {
                let what = format!("helper {helper} at {offset} of {len} bytes");
                three.same(&packet(len, offset as u32), None, &what);
            }
        }
    }
}

#[test]
fn tails_grow_and_shrink() {
    if !needs("tails_grow_and_shrink") {
        return;
    }
    let text = format!("{NUMBER}r1 = r9\nr2 = r6\nr2 <<= 32\nr2 s>>= 32\ncall 65\nexit");
    let three = Three::new(&text, true);
    for len in [100i32, 3521, 7617, 20_000] {
        for delta in [
            0,
            1,
            -1,
            100,
            -100,
            4095,
            4096,
            -3000,
            -4096,
            -4097,
            14 - len,
            13 - len,
            -len,
            -70_000,
            i32::MAX,
            i32::MIN,
        ] {
            let what = format!("tail of {len} bytes moved by {delta}");
            three.same(&packet(len as usize, delta as u32), None, &what);
        }
    }
}

#[test]
fn contexts_say_where_the_first_buffer_ends() {
    if !needs("contexts_say_where_the_first_buffer_ends") {
        return;
    }
    let three = Three::new(
        "r6 = r1\ncall 188\nr1 = *(u32 *)(r6 +4)\nr2 = *(u32 *)(r6 +0)\nr1 -= r2\nr1 <<= 16\nr0 += r1\nexit",
        true,
    );
    for len in [100u32, 5000] {
        for (data, data_end) in
            [(0, 14), (0, 50), (0, 100), (8, 30), (8, 8), (8, 21), (8, 22), (0, 3520), (16, 4000), (0, 0), (9, 60)]
        {
            let ctx = XdpMd { data, data_end: data_end.min(len), ..XdpMd::default() };
            three.same(&packet(len as usize, 0), Some(ctx), &format!("{len} bytes, {ctx:?}"));
        }
    }
}

/// Through a port, the engine and back: what the program makes of packets of many lengths is what it makes of them on Linux, byte
/// for byte, with the interpreter and compiled, and all buffers come home.
#[test]
fn ports_carry_what_programs_make_of_long_packets() {
    if !needs("ports_carry_what_programs_make_of_long_packets") {
        return;
    }
    // Moves the tail by what the packet says and writes the new length into the last four bytes, wherever those lie.
    let text = format!(
        "{NUMBER}r1 = r9\nr2 = r6\nr2 <<= 32\nr2 s>>= 32\ncall 65\nif r0 == 0 goto +2\nr0 = 2\nexit\nr1 = r9\n\
         call 188\n*(u32 *)(r10 -16) = r0\nr2 = r0\nr2 += -4\nr1 = r9\nr3 = r10\nr3 += -16\nr4 = 4\ncall 190\n\
         r0 = 3\nexit"
    );
    let three = Three::new(&text, true);
    let deltas = [0, 7, -7, 3000, -3600, -9000, 5000];
    let lengths = [60, 3519, 3520, 3521, 9014, 20_000, 65_535];
    let packets: Vec<Vec<u8>> =
        lengths.iter().flat_map(|&len| deltas.map(|delta: i32| packet(len, delta as u32))).collect();
    let verdicts = through_ports(&three, &packets);
    assert!(verdicts[2] >= 7 && verdicts[3] >= 20, "{verdicts:?}");
}

/// A slice of a dynptr in each line of a packet, in a loop that an open-coded iterator counts, and a write behind all of them: on a port,
/// in packets of several buffers, as on Linux.
#[test]
fn dynptrs_and_iterators_reach_all_buffers() {
    if !Needs::of("testkit::frags::dynptrs_and_iterators_reach_all_buffers").root().kernel(6, 18).clang().met() {
        return;
    }
    let source = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct bpf_iter_num { __u64 opaque[1]; } __attribute__((aligned(8)));
extern int bpf_dynptr_from_xdp(struct xdp_md *x, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *p, __u32 offset, void *buffer, __u32 buffer__szk) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *p) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

SEC("xdp.frags")
int sums(struct xdp_md *ctx)
{
	struct bpf_iter_num it;
	struct bpf_dynptr packet;
	__u32 len, sum = 0;
	int *line;

	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return XDP_ABORTED;
	len = bpf_dynptr_size(&packet);
	bpf_iter_num_new(&it, 0, 1100);
	while ((line = bpf_iter_num_next(&it))) {
		__u8 room[4], *bytes;
		__u32 at = *line * 64;

		if (at + 4 > len)
			break;
		bytes = bpf_dynptr_slice(&packet, at, room, sizeof(room));
		if (!bytes)
			break;
		sum = sum * 31 + bytes[0] + bytes[3];
	}
	bpf_iter_num_destroy(&it);
	bpf_dynptr_write(&packet, len - 4, &sum, sizeof(sum), 0);
	return XDP_TX;
}

char _license[] SEC("license") = "GPL";
"#;
    let three = Three::of(&clang::compile_text("sums", source, &[]).unwrap());
    let packets: Vec<Vec<u8>> =
        [60, 3519, 3523, 3585, 9014, 20_000, 65_535].iter().map(|&len| packet(len, len as u32)).collect();
    assert_eq!(through_ports(&three, &packets)[Verdict::Tx as usize], 7);
}

/// Slices in every buffer, across their ends, and behind where the packet has ended since its dynptr was made: pointers into the packet
/// where Linux gives those, copies of what there is where it gives those, nothing where it gives nothing.
#[test]
fn slices_lie_where_linux_has_them() {
    if !Needs::of("testkit::frags::slices_lie_where_linux_has_them").root().kernel(6, 18).clang().met() {
        return;
    }
    let source = clang::repository().join("bpf/tests/slices.bpf.c");
    let three = Three::of(&clang::compile_file(&source, &["-mcpu=v3"]).unwrap());
    for len in [100u32, 3520, 3521, 7616, 7617, 7700, 20_000, 70_000] {
        let places = [60, 3504, 3505, 3520, 3600, 7600, 7601, 7616, 7690, 65_520, 65_535, 65_536, 69_000]
            .into_iter()
            .chain((8..50).map(|back| len - back))
            .filter(|at| *at < len + 20);
        for at in places {
            for less in [0, 1, 20, 30, 4096, 5000] {
                let mut packet = packet(len as usize, 0);
                for (place, number) in packet[14..26].as_chunks_mut::<4>().0.iter_mut().zip([at, less, at ^ 0x50]) {
                    *place = number.to_ne_bytes();
                }
                three.same(&packet, None, &format!("a slice at {at} of {len} bytes, {less} taken off"));
            }
        }
    }
}

/// Runs a program over packets on Linux, and over the same on a port with either engine; says how many had each verdict.
fn through_ports(three: &Three, packets: &[Vec<u8>]) -> [u64; 5] {
    let kernel = three.kernel.programs[0].as_ref().unwrap();
    let (mut verdicts, mut sent, mut passed) = ([0u64; 5], Seen::default(), Seen::default());
    for packet in packets {
        let run = kernel.test_run(&TestInput::packet(packet)).unwrap();
        verdicts[run.ret as usize] += 1;
        let seen = if run.ret == Verdict::Tx as u32 { &mut sent } else { &mut passed };
        seen.frames += 1;
        seen.bytes += run.data.len() as u64;
        seen.digest = seen.digest.wrapping_add(Seen::digest_of(&run.data));
    }
    let program = three.ours[0].program().clone();
    let engines: [Box<dyn Executor>; 2] =
        [Box::new(Checked::new(program.clone(), 0)), Linked::new(program).executor(0)];
    for engine in engines {
        let name = engine.info().engine;
        let traffic = Traffic::replay(packets).unwrap();
        let (port, sink) = SimPort::generated("long", 1, traffic, Some(packets.len() as u64));
        sink.inspect(true);
        let pool = Pool::new(PoolConfig::new(1024)).unwrap();
        let config = WorkerConfig::new(Stop::new().unwrap());
        let report = Worker::new(vec![Box::new(port.with_frags(true))], engine, pool, config).run();
        assert_eq!(report.leak, None, "{name}");
        assert_eq!(report.counters.balance(), Ok(()), "{name}");
        assert_eq!(Verdict::ALL.map(|verdict| report.counters.verdict(verdict)), verdicts, "{name}");
        assert_eq!((sink.sent(), sink.passed()), (sent, passed), "{name}");
    }
    verdicts
}

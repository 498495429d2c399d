//! One packet through a program, as `BPF_PROG_TEST_RUN` does it for XDP.

use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_packet::{ETH_HLEN, Frame, Pool, PoolConfig};

use crate::{Env, Fault, Host, Outcome, Program, run, xdp_md};

/// A test run.
#[derive(Clone, Copy, Debug)]
pub struct TestRun<'a> {
    /// The packet, from 14 bytes up; with a context, whatever metadata it declares comes first. What does not fit the first buffer
    /// goes into further ones of a page each, at most 17, whether the program says that it takes such packets or not.
    pub data_in: &'a [u8],
    /// `struct xdp_md`, 24 bytes or a shorter prefix of it; longer ones must be zero beyond. `data` is the length of the metadata
    /// in `data_in`, `data_end` the length of the part of `data_in` that lies in the first buffer (the rest goes into further ones),
    /// `data_meta` 0, `egress_ifindex` 0. `ingress_ifindex` and
    /// `rx_queue_index` are what the program sees.
    pub ctx_in: Option<&'a [u8]>,
    /// Times to run; 0 counts as 1. Each run gets the packet as the one before left it, as in Linux.
    pub repeat: u32,
    /// Queues of the device that `ingress_ifindex` names: a greater `rx_queue_index` is refused.
    pub queues: u32,
    /// The interface that `ingress_ifindex` names need not exist, and may have any number of queues. Linux asks for both.
    pub any_device: bool,
}

impl<'a> TestRun<'a> {
    /// One run over a packet, with the context that Linux makes when none is given.
    pub fn new(data_in: &'a [u8]) -> TestRun<'a> {
        TestRun { data_in, ctx_in: None, repeat: 1, queues: 1, any_device: false }
    }
}

/// What came out.
#[derive(Debug)]
pub struct TestRunResult {
    /// What the program returned, 32 bits.
    pub retval: u32,
    /// Metadata and packet after the (last) run.
    pub data_out: Vec<u8>,
    /// The context after the run, in the form of `ctx_in`.
    pub ctx_out: [u8; xdp_md::LEN],
    /// Mean time of a run.
    pub duration: Duration,
    /// Where `XDP_REDIRECT` would have gone.
    pub redirect: xway_packet::Redirect,
    /// Instructions of the last run.
    pub insns: u64,
    /// Set when the program was stopped; it then counts as `XDP_ABORTED`.
    pub fault: Option<Box<Fault>>,
}

/// Why a test run did not start: the errno that Linux gives, and what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why} ({errno})")]
pub struct TestRunError {
    /// Linux's errno.
    pub errno: Errno,
    /// In words.
    pub why: &'static str,
}

/// Headroom of a test run's packet: `XDP_PACKET_HEADROOM`.
const HEADROOM: u32 = 256;
/// What Linux keeps behind the packet for `struct skb_shared_info` on 64-bit machines.
const TAILROOM: u32 = 320;
const PAGE: u32 = 4096;
/// Longest packet that fits one page with its rooms.
const DATA_MAX: usize = (PAGE - HEADROOM - TAILROOM) as usize;

/// The interface index that a program sees in a test run without a context: the loopback's.
const LOOPBACK: u32 = 1;

/// Runs a program over one packet, as `BPF_PROG_TEST_RUN` does.
pub fn test_run<'e>(
    program: &'e Program,
    test: &TestRun<'_>,
    env: &mut Env<'e>,
) -> Result<TestRunResult, TestRunError> {
    test_run_with(test, env.host(), &mut |frame, times| several(times, || run(program, frame, env)))
}

/// Runs one after the other, up to so many, as far as none is stopped: the last outcome, and their number.
pub fn several(times: u32, mut run: impl FnMut() -> Outcome) -> (Outcome, u32) {
    let mut n = 1;
    loop {
        let outcome = run();
        if n >= times || outcome.fault.is_some() {
            return (outcome, n);
        }
        n += 1;
    }
}

/// Runs in a row: whoever runs them pins a guard for so many at most, because memory that maps let go waits for it.
const RUNS_IN_A_ROW: u32 = 1024;

/// The same for anything that runs a program over a frame, up to so many times ([`several`]): compiled code, for instance.
pub fn test_run_with(
    test: &TestRun<'_>,
    host: &dyn Host,
    run: &mut dyn FnMut(&mut Frame, u32) -> (Outcome, u32),
) -> Result<TestRunResult, TestRunError> {
    let ctx = Context::parse(test, host)?;
    let frames = 1 + Frame::FRAGS_MAX as u32;
    let config = PoolConfig { chunk_size: PAGE, headroom: HEADROOM, tailroom: TAILROOM, ..PoolConfig::new(frames) };
    let no_memory = TestRunError { errno: Errno::ENOMEM, why: "no memory for a packet" };
    let mut pool = Pool::new(config).map_err(|_| no_memory)?;
    let mut frame = pool.alloc().map_err(|_| no_memory)?;
    let repeat = test.repeat.max(1);
    let mut elapsed = Duration::ZERO;
    let mut n = 0;
    let too_long = TestRunError { errno: Errno::EINVAL, why: "the packet does not fit one page with its rooms" };
    // The metadata takes its room from the headroom.
    let (first, rest) = test.data_in.split_at(ctx.linear);
    let (meta, packet) = first.split_at(ctx.meta_len as usize);
    frame.fill(packet).map_err(|_| too_long)?;
    ctx.place(&mut frame, meta)?;
    let too_many = TestRunError { errno: Errno::ENOMEM, why: "a packet has at most 17 buffers behind the first" };
    for bytes in rest.chunks(PAGE as usize) {
        let mut part = pool.alloc().map_err(|_| too_many)?;
        part.fill_part(bytes).map_err(|_| too_many)?;
        frame.push_part(part).map_err(|_| too_many)?;
    }
    let outcome = loop {
        let start = Instant::now();
        let (outcome, runs) = run(&mut frame, RUNS_IN_A_ROW.min(repeat - n));
        elapsed += start.elapsed();
        n += runs;
        if n >= repeat || outcome.fault.is_some() {
            break outcome;
        }
    };
    let mut data_out = frame.accessible().to_vec();
    frame.parts().skip(1).for_each(|part| data_out.extend_from_slice(part));
    let ctx_out = ctx.write(&frame);
    let redirect = frame.redirect();
    pool.release(frame);
    Ok(TestRunResult {
        retval: outcome.ret as u32,
        data_out,
        ctx_out,
        duration: elapsed / n,
        redirect,
        insns: outcome.insns,
        fault: outcome.fault,
    })
}

/// The context that a caller asked for.
struct Context {
    meta_len: u32,
    /// Bytes of the data that lie in the first buffer, metadata included.
    linear: usize,
    ifindex: u32,
    queue: u32,
    /// `ingress_ifindex` and `rx_queue_index` as they were given.
    given: [u32; 2],
}

impl Context {
    fn parse(test: &TestRun<'_>, host: &dyn Host) -> Result<Context, TestRunError> {
        let refuse = |why| Err(TestRunError { errno: Errno::EINVAL, why });
        let mut ctx = Context { meta_len: 0, linear: test.data_in.len(), ifindex: LOOPBACK, queue: 0, given: [0; 2] };
        if test.data_in.len() < ETH_HLEN as usize {
            return refuse("a packet has at least 14 bytes");
        }
        if let Some(bytes) = test.ctx_in {
            let mut md = [0; xdp_md::LEN];
            let known = bytes.len().min(md.len());
            if bytes[known..].iter().any(|b| *b != 0) {
                return Err(TestRunError { errno: Errno::E2BIG, why: "the context is longer than struct xdp_md" });
            }
            md[..known].copy_from_slice(&bytes[..known]);
            let word = |n: usize| u32::from_ne_bytes([md[n * 4], md[n * 4 + 1], md[n * 4 + 2], md[n * 4 + 3]]);
            let [data, data_end, data_meta, ifindex, queue, egress] = std::array::from_fn(word);
            if data_meta != 0 || data_end as usize > test.data_in.len() || data > data_end || egress != 0 {
                return refuse(
                    "in the context, data_meta and egress_ifindex are 0 and data_end is at most the length of the data",
                );
            }
            if !data.is_multiple_of(4) || data > 252 {
                return refuse("in the context, data is the length of the metadata: a multiple of 4 up to 252");
            }
            if data as usize + ETH_HLEN as usize > test.data_in.len() {
                return refuse("a packet has at least 14 bytes behind its metadata");
            }
            if ifindex == 0 && queue != 0 {
                return refuse("in the context, rx_queue_index needs an ingress_ifindex");
            }
            if ifindex != 0 && !test.any_device {
                if host.device(ifindex).is_err() {
                    return Err(TestRunError { errno: Errno::ENODEV, why: "no interface has this ingress_ifindex" });
                }
                if queue >= test.queues {
                    return refuse("the interface has no such queue");
                }
            }
            if ifindex != 0 {
                (ctx.ifindex, ctx.queue) = (ifindex, queue);
            }
            ctx.meta_len = data;
            ctx.linear = data_end as usize;
            ctx.given = [ifindex, queue];
        }
        ctx.linear = ctx.linear.min(DATA_MAX + ctx.meta_len as usize);
        Ok(ctx)
    }

    fn place(&self, frame: &mut xway_packet::Frame, meta: &[u8]) -> Result<(), TestRunError> {
        frame.set_ingress(self.ifindex, self.queue);
        if !meta.is_empty() {
            let wrong = |_| TestRunError { errno: Errno::EINVAL, why: "the metadata does not fit" };
            frame.adjust_meta(-(meta.len() as i32)).map_err(wrong)?;
            frame.accessible_mut()[..meta.len()].copy_from_slice(meta);
        }
        Ok(())
    }

    fn write(&self, frame: &xway_packet::Frame) -> [u8; xdp_md::LEN] {
        let mut md = [0; xdp_md::LEN];
        let data = frame.data() - frame.data_meta();
        let [ifindex, queue] = self.given;
        let words = [data, frame.data_end() - frame.data_meta(), 0, ifindex, queue, 0];
        for (slot, word) in md.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        md
    }
}

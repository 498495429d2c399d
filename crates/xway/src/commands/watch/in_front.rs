//! `xway dump` on Linux's hook: packets as they come in, seen by a program of ours that stands in front of what is attached for as
//! long as the capture lasts. When this process is killed, a second one gives the program there its place back.

use std::time::Duration;

use xway_engine::{Executor, Results};
use xway_hook::{CapturePoint, CaptureRequest, CapturedPacket, CapturedPackets, Kernel};
use xway_kernel::XdpMode;
use xway_maps::Guard as Quiescence;
use xway_packet::layout::HEADROOM;
use xway_packet::{Guest, Guests};
use xway_tools::capture::{Capture, SNAP_MAX, wakeup};

use crate::args_kernel::Place;
use crate::args_watch::Dump;
use crate::commands::kernel::{failure, tool_failure};
use crate::failure::Failure;
use crate::tools::guard::Guard;

/// A capture on one interface. What it holds is dropped in this order: first what is captured is taken away, then nobody needs to
/// guard it.
pub struct InFront {
    capture: Capture,
    _guard: Option<Guard>,
    port: String,
    queue: Option<u32>,
    snaplen: usize,
    filter: Option<Filter>,
    /// One of so many that match, and how many of them are still to be left out.
    every: u32,
    skip: u32,
}

/// A filter expression, proved and compiled as the engine's are.
struct Filter {
    executor: Box<dyn Executor>,
    guests: Guests,
    results: Results,
    memory: Vec<u8>,
}

impl InFront {
    /// Begins. Says on standard error what stands in front of what.
    pub fn open(args: &Dump, place: Place, request: &CaptureRequest) -> Result<InFront, Failure> {
        let unseen = |what: &str| {
            let message = format!("{what}: on the kernel's hook packets are seen as they come in, before any program");
            Failure::usage(message).hint("xway load PORT OBJ --hook user runs the program where all of it is seen")
        };
        if request.at == CapturePoint::Exit {
            return Err(unseen("--at exit"));
        }
        if args.verdict.is_some() || args.prog.is_some() {
            return Err(unseen(if args.verdict.is_some() { "--verdict" } else { "--prog" }));
        }
        let filter = match request.filter.as_slice() {
            [] => None,
            classic => Some(Filter::new(classic)?),
        };
        let on = Kernel::device(&args.port).map_err(failure)?;
        let mode = match place {
            Place::Native => XdpMode::Native,
            Place::Generic => XdpMode::Generic,
            Place::Auto | Place::User => XdpMode::Any,
        };
        // A filter looks at all of a packet.
        let snap = if filter.is_some() { SNAP_MAX } else { request.snaplen.min(SNAP_MAX) };
        let capture = Capture::open(&on, mode, snap, wakeup(0, request.snaplen)).map_err(tool_failure)?;
        let guard = match capture.behind() {
            None => None,
            Some(id) => {
                eprintln!("{}: in front of program {id} for as long as this runs", on.name);
                let guard = Guard::start(&on, capture.program(), id);
                let failed = |e| Failure::needs(format!("the process that puts program {id} back: {e}"));
                Some(guard.map_err(failed)?)
            }
        };
        Ok(InFront {
            capture,
            _guard: guard,
            port: on.name,
            queue: request.queue,
            snaplen: request.snaplen as usize,
            filter,
            every: request.every.max(1),
            skip: 0,
        })
    }

    /// Packets since the last call, waiting for the first one at most this long.
    pub fn captured(&mut self, wait: Duration) -> Result<CapturedPackets, Failure> {
        let mut packets = Vec::new();
        let InFront { capture, port, queue, snaplen, filter, every, skip, .. } = self;
        let lost = capture.read(wait, &mut |packet| {
            let picked = queue.is_none_or(|only| only == packet.queue)
                && filter.as_mut().is_none_or(|filter| filter.matches(&packet.data));
            if !picked {
                return;
            }
            if *skip > 0 {
                *skip -= 1;
                return;
            }
            *skip = *every - 1;
            let mut data = packet.data;
            data.truncate(*snaplen);
            packets.push(CapturedPacket {
                time_ns: packet.time.as_nanos() as u64,
                port: port.clone(),
                queue: packet.queue,
                packet_id: packet.number,
                verdict: None,
                program: String::new(),
                reason: None,
                len: packet.len,
                data,
            });
        });
        // Rings are read CPU by CPU.
        packets.sort_by_key(|packet| packet.time_ns);
        Ok(CapturedPackets { packets, lost: lost.map_err(tool_failure)? })
    }
}

impl Filter {
    fn new(classic: &[xway_filter::Classic]) -> Result<Filter, Failure> {
        let program = xway_hook::user::filter(classic).map_err(failure)?;
        let guests = Guests::new().map_err(|e| Failure::needs(e.to_string()))?;
        Ok(Filter { executor: program.executor(0), guests, results: Results::default(), memory: Vec::new() })
    }

    /// Whether a packet matches; one that does not fit into memory as a frame does not.
    fn matches(&mut self, packet: &[u8]) -> bool {
        let Filter { executor, guests, results, memory } = self;
        memory.clear();
        memory.resize(HEADROOM as usize, 0);
        memory.extend_from_slice(packet);
        let end = memory.len();
        let Ok(guest) = Guest::new(memory, HEADROOM as usize..end) else { return false };
        results.clear();
        guests.host(&mut [guest], |frames| executor.run(frames, &Quiescence::pin(), results));
        executor.tick();
        results.rets().first().is_some_and(|ret| *ret as u32 != 0)
    }
}

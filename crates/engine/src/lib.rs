//! The engine: verdicts become actions here and nowhere else.
//!
//! A [`Worker`] owns [`Port`]s and an [`Executor`], the thing that runs a program: the checked interpreter ([`Checked`]) or compiled code
//! ([`Native`]). It works in bursts of up to 64 frames:
//!
//! ```text
//! port.rx(queue, pool, burst)        a port fills frames from the pool
//! executor.run(frames, guard)        the program runs over all of them; one guard for the burst
//! sort by verdict                    DROP, ABORTED, unknown codes -> pool, counted with the reason
//!                                    PASS -> stack side, TX -> same port, REDIRECT -> the port that was chosen
//! port.tx / port.pass, port.flush    one doorbell for each target
//! ```
//!
//! Nothing disappears unseen. [`Counters`] has one line for each way that a frame can end, [`Counters::balance`] says whether
//! they add up to what came in, and the pool says at the end whether every frame came home. What is rare and interesting
//! (a program that faults, a verdict that does not exist, a redirect that fails) is also an [`Event`] for whoever subscribed,
//! at a bounded rate.
//!
//! What the verdicts mean on a port is the port's business and is stated in its [`Capabilities`]: a capture file has no
//! stack side, a packet socket cannot take a packet away from its host.
#![forbid(unsafe_code)]

mod caps;
mod capture;
mod chain;
mod choice;
mod consumer;
mod core;
mod counters;
mod crew;
mod device;
mod discard;
mod engine;
mod event;
mod exec;
mod hub;
mod inbox;
mod interp;
mod lane;
mod live;
mod meters;
mod native;
mod outbox;
mod port;
mod profile;
mod program;
mod recorder;
mod slot;
mod socket;
pub mod steer;
mod stop;
mod wake;
mod worker;

pub use caps::{Capabilities, MemoryModel, Needs, Support};
pub use capture::{Capture, CaptureAt, CaptureConfig, Captured, Tap};
pub use chain::{ProgramCounters, VerdictSet};
pub use choice::Choice;
pub use consumer::{Consumer, ConsumerError, ConsumerTarget, consumer};
pub use counters::{Counters, Tally};
pub use crew::can_bind;
pub use device::{Device, OneQueue, Outcome};
pub use discard::Discard;
pub use engine::{
    ChainState, Engine, EngineConfig, EngineError, HookPoint, PortConfig, PortReport, PortState, QueueReport,
    QueueState, Stopped, Waker, is_called,
};
pub use event::{Event, EventKind, Subscriber};
pub use exec::{Executor, ExecutorInfo, FaultError, Results};
pub use hub::{Listener, Told, What};
pub use interp::Checked;
pub use lane::PassTo;
pub use live::Live;
pub use meters::Key;
pub use native::Native;
pub use port::{Backlog, Lost, Port, PortError, PortErrorKind, PortStats, Rx, Sent, TxPolicy};
pub use profile::Profile;
pub use program::{Linked, LoadedProgram, MapProgram};
pub use recorder::Recorder;
pub use slot::{AttachError, AttachFlags, Attached};
pub use socket::{SocketEntry, SocketTarget};
pub use stop::Stop;
pub use worker::{Desk, End, Limits, Report, Watched, Worker, WorkerConfig};

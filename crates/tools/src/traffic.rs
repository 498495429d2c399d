//! Packets made in the kernel and sent out of an interface (`BPF_F_TEST_XDP_LIVE_FRAMES`): no socket, no copy for
//! each packet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_kernel::{Device, KernelError, KernelObject, driver_features};
use xway_object::Object;

use crate::tally::PerCpu;
use crate::watch::{Counts, Scope, Watch};
use crate::{ToolError, objects};

/// Packets of one call into the kernel: short enough to be asked to stop, long enough to cost nothing.
const CHUNK: u32 = 1 << 14;
/// Frames that the kernel makes at once.
const BATCH: u32 = 64;
/// The test run's frames are one page with headroom and the kernel's own structure behind them: what fits, bytes.
pub const LEN_MAX: usize = 3400;

/// Destination ports in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The first one.
    pub first: u16,
    /// How many.
    pub count: u16,
    /// Where the port lies in the packet, bytes from its start.
    pub port_at: u32,
    /// Where the checksum lies that covers it.
    pub checksum_at: u32,
}

/// Makes packets for one interface; each thread that sends has its own loop over it.
#[derive(Debug)]
pub struct Generator {
    object: Object,
    kernel: KernelObject,
    program: &'static str,
    watch: Watch,
    packets: Vec<Vec<u8>>,
    /// Held for reading during a call into the kernel, and for writing by who asks the counters what calls made that did not end.
    calls: RwLock<()>,
    /// Packets that are known to be made.
    known: AtomicU64,
}

/// The kernel can do it.
///
/// # Errors
/// Why it cannot: older than 5.18, or not permitted.
pub fn probe() -> Result<(), ToolError> {
    let object = objects::object("measure", &[0; 4])?;
    let kernel = KernelObject::load_some(&object, |p| p.name == "drop_no_touch")?;
    let program = objects::program(&kernel, &object, "drop_no_touch")?;
    program.live_run(&[0; 64], 1, 1, 0).map_err(|errno| match errno {
        Errno::EINVAL => ToolError::Request("Kernel does not support live packet mode for XDP BPF_PROG_RUN.".into()),
        errno => ToolError::Kernel(KernelError::Call { step: "a test run with live frames", errno }),
    })
}

/// Whether a driver takes redirected frames. `None`: the kernel cannot say.
///
/// # Errors
/// What the kernel refuses.
pub fn takes_frames(device: &Device) -> Result<Option<bool>, ToolError> {
    let Some(features) = driver_features(device.ifindex)? else { return Ok(None) };
    /// `NETDEV_XDP_ACT_NDO_XMIT`
    const NDO_XMIT: u64 = 1 << 2;
    Ok(Some(features.xdp & NDO_XMIT != 0))
}

impl Generator {
    /// For these packets, one after the other, out of `device`; with `ports`, the first packet for each of them.
    ///
    /// # Errors
    /// Built without clang; packets that are too short or too long; what the kernel refuses.
    pub fn open(device: &Device, packets: Vec<Vec<u8>>, ports: Option<Ports>) -> Result<Generator, ToolError> {
        if let Some(wrong) = packets.iter().find(|p| p.len() < 14 || p.len() > LEN_MAX) {
            let message = format!("a packet of {} bytes: the kernel makes them from 14 to {LEN_MAX}", wrong.len());
            return Err(ToolError::Request(message));
        }
        if packets.is_empty() {
            return Err(ToolError::Request("there is no packet to send".into()));
        }
        let program = if ports.is_some_and(|p| p.count > 1) { "make_flows" } else { "make_same" };
        let p = ports.unwrap_or(Ports { first: 0, count: 0, port_at: 0, checksum_at: 0 });
        let settings = [device.ifindex, p.count.into(), p.first.into(), p.port_at, p.checksum_at];
        let object = objects::object("make", &settings)?;
        let kernel = KernelObject::load_some(&object, |known| known.name == program)?;
        objects::program(&kernel, &object, program)?;
        // The frames come in on the loopback interface, and leave by the device.
        let watch = Watch::open(&Scope { devices: vec![device.ifindex], ..Scope::default() })?;
        let (calls, known) = (RwLock::new(()), AtomicU64::new(0));
        Ok(Generator { object, kernel, program, watch, packets, calls, known })
    }

    /// Sends until `count` packets are made or `stop` says so, on this thread and the CPU that it runs on. Gives
    /// how many it made. `rate`: packets a second, at most.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn send(&self, count: Option<u64>, rate: Option<u64>, stop: &dyn Fn() -> bool) -> Result<u64, ToolError> {
        let program = objects::program(&self.kernel, &self.object, self.program)?;
        let several = self.packets.len() > 1;
        let mut pace = Pace::new(rate);
        let (mut made, mut at) = (0, 0);
        while !stop() {
            let left = count.map_or(u64::from(CHUNK), |count| count - made);
            let most = if several { 1 } else { CHUNK };
            let now = pace.allowed(left.min(most.into()));
            if left == 0 {
                break;
            }
            if now == 0 {
                // At most a tenth of a second, so that a stop is seen.
                std::thread::sleep(pace.wait());
                continue;
            }
            let packet = &self.packets[at];
            let calling = self.calls.read().unwrap_or_else(PoisonError::into_inner);
            let ran = program.live_run(packet, now as u32, BATCH.min(now as u32), 0);
            if ran.is_ok() {
                self.known.fetch_add(now, Ordering::Relaxed);
            }
            drop(calling);
            let ran = match ran {
                Ok(()) => now,
                // A signal, or the process was stopped and went on.
                Err(Errno::EINTR) => self.interrupted(now)?,
                Err(errno) => return Err(KernelError::Call { step: "making packets", errno }.into()),
            };
            made += ran;
            pace.took(ran);
            at = (at + usize::from(ran > 0)) % self.packets.len();
        }
        Ok(made)
    }

    /// How many a call made, of these at most, that a signal ended: it does not tell, so the program's own count is the witness. Where calls
    /// of several threads ended so, what they made is right together, whoever is told first.
    fn interrupted(&self, most: u64) -> Result<u64, ToolError> {
        let _alone = self.calls.write().unwrap_or_else(PoisonError::into_inner);
        let counted = self.made()?.sum().processed;
        let ran = counted.saturating_sub(self.known.load(Ordering::Relaxed)).min(most);
        self.known.fetch_add(ran, Ordering::Relaxed);
        Ok(ran)
    }

    /// Packets that the program saw, by the kernel's count.
    ///
    /// # Errors
    /// None but a map that is not there, which a test excludes.
    pub fn made(&self) -> Result<PerCpu, ToolError> {
        Ok(PerCpu::at(objects::map(&self.kernel, &self.object, "made")?, 0))
    }

    /// What became of them.
    ///
    /// # Errors
    /// As [`Watch::read`].
    pub fn counts(&self) -> Result<Counts, ToolError> {
        self.watch.read()
    }
}

/// Lets so many packets through in a second, in small portions.
#[derive(Debug)]
struct Pace {
    rate: Option<u64>,
    start: Instant,
    done: u64,
}

impl Pace {
    fn new(rate: Option<u64>) -> Pace {
        Pace { rate, start: Instant::now(), done: 0 }
    }

    /// How many of `wanted` may go now: what the time since the start permits, in portions of at most a hundredth
    /// of a second.
    fn allowed(&self, wanted: u64) -> u64 {
        let Some(rate) = self.rate else { return wanted };
        let due = (self.start.elapsed().as_nanos() * u128::from(rate) / 1_000_000_000) as u64 + 1;
        due.saturating_sub(self.done).min(rate / 100 + 1).min(wanted)
    }

    /// Until the next packet is due.
    fn wait(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let due = Duration::from_nanos((u128::from(self.done) * 1_000_000_000 / u128::from(rate.max(1))) as u64);
        due.saturating_sub(self.start.elapsed()).min(Duration::from_millis(100))
    }

    fn took(&mut self, packets: u64) {
        self.done += packets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_time_and_not_made_up_for_at_once() {
        let mut pace = Pace::new(Some(1000));
        pace.start = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(pace.allowed(5000), 11, "a hundredth of a second's worth");
        pace.took(1_000_000);
        assert_eq!(pace.allowed(5000), 0);
        assert_eq!(pace.wait(), Duration::from_millis(100));
        assert_eq!(Pace::new(None).allowed(7), 7);
    }
}

//! Packets as they come to the kernel's hook on one interface.
//!
//! Where nothing is attached, a program of ours is, for as long as the capture lasts, and passes everything. Where a program is, ours
//! takes its place in one step and hands every packet on to it by a tail call: its verdicts stay what they are, and when the
//! capture ends it gets its place back. (Linux's own way to look at programs that run, tracing them, is refused by many kernels.)

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xway_abi::Errno;
use xway_hook::{AttachRequest, Hook, Kernel, Mode, ProgId, Replace};
use xway_kernel::{Device, KernelError, KernelObject, KernelPerf, KernelProg, XdpLink, XdpMode};

use crate::{ToolError, objects};

/// Most bytes of a packet that an event carries.
pub const SNAP_MAX: u32 = 60_000;

/// How many packets of a CPU wake the reader once: as many as were asked for; 0: as many as fill half a ring with `snap` bytes each, at
/// most 64. What is less is found at the reader's next look, which does not wait for it.
pub fn wakeup(asked: u32, snap: u32) -> u32 {
    let half = KernelPerf::ring_bytes() / 2 / (ABOUT + 16 + snap.min(SNAP_MAX) as usize);
    if asked > 0 { asked } else { half.clamp(1, 64) as u32 }
}

/// Bytes of an event in front of its packet: `struct about` of bpf/tools/capture.bpf.c.
const ABOUT: usize = 32;

/// A packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Since 1970.
    pub time: Duration,
    /// Counted from 1, on all CPUs together.
    pub number: u64,
    /// Where it came in.
    pub ifindex: u32,
    /// Receive queue.
    pub queue: u32,
    /// Its length, bytes: of packets of several buffers that of the first.
    pub len: u32,
    /// Its first bytes.
    pub data: Vec<u8>,
}

/// A capture that runs until this is dropped.
#[derive(Debug)]
pub struct Capture {
    perf: KernelPerf,
    /// What the kernel's clock is behind 1970.
    offset: Duration,
    held: Held,
    program: u32,
    _kernel: KernelObject,
}

/// How the program got to the interface.
#[derive(Debug)]
enum Held {
    /// Nothing was there.
    Alone(#[expect(dead_code, reason = "dropping it detaches")] XdpLink),
    /// In the place of another one, which gets it back.
    InPlace { hook: Box<Kernel>, port: String, mode: Mode, old: u32 },
}

impl Capture {
    /// Begins. `snap`: bytes of a packet that are wanted, at most [`SNAP_MAX`]; `mode` is for an interface without a program,
    /// otherwise that program's is taken; `wakeup`: packets of a CPU that wake the reader once, as [`wakeup`] gives it.
    ///
    /// # Errors
    /// Built without clang; what the kernel refuses.
    pub fn open(device: &Device, mode: XdpMode, snap: u32, wakeup: u32) -> Result<Capture, ToolError> {
        let there = device.attached().next();
        // The two kinds of program, with and without several buffers, do not call each other: one of them fits.
        match Capture::with(device, mode, (snap, wakeup), there, "xdpdump") {
            Err(ToolError::Kernel(e)) if there.is_some() && e.errno() == Some(Errno::EINVAL) => {
                Capture::with(device, mode, (snap, wakeup), there, "xdpdump_frags")
            }
            other => other,
        }
    }

    fn with(
        device: &Device,
        mode: XdpMode,
        (snap, wakeup): (u32, u32),
        there: Option<(XdpMode, u32)>,
        name: &'static str,
    ) -> Result<Capture, ToolError> {
        let object = objects::object("capture", &[snap.min(SNAP_MAX), 0])?;
        let kernel = KernelObject::load_some(&object, |p| p.name == name)?;
        let program = objects::program(&kernel, &object, name)?;
        let refused = |name: &str, step| {
            let name = name.to_owned();
            move |errno| KernelError::Map { name, step, errno }
        };
        let perf = objects::map(&kernel, &object, "packets")?;
        let perf = KernelPerf::open_waking(perf, wakeup).map_err(refused("packets", "making its rings"))?;
        let offset = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since_boot());
        let id = program.info()?.id;
        let held = match there {
            None => Held::Alone(XdpLink::attach(program, device.ifindex, mode)?),
            Some((mode, old)) => {
                use std::os::fd::AsFd;
                let before = KernelProg::by_id(old)?;
                let behind = objects::map(&kernel, &object, "behind")?;
                behind
                    .update_fd(&[0; 4], before.as_fd(), 0)
                    .map_err(refused("behind", "handing on to the program there"))?;
                let mode = match mode {
                    XdpMode::Generic => Mode::Generic,
                    _ => Mode::Native,
                };
                let mut hook = Box::new(Kernel::new());
                exchange(&mut hook, &device.name, mode, old, id)?;
                Held::InPlace { hook, port: device.name.clone(), mode, old }
            }
        };
        Ok(Capture { perf, offset, held, program: id, _kernel: kernel })
    }

    /// Number of our program.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// The program that packets are handed on to.
    pub fn behind(&self) -> Option<u32> {
        match &self.held {
            Held::Alone(_) => None,
            Held::InPlace { old, .. } => Some(*old),
        }
    }

    /// Waits for packets at most this long, and hands them to `visit`, CPU by CPU. Gives how many found no room.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn read(&mut self, most: Duration, visit: &mut dyn FnMut(Packet)) -> Result<u64, ToolError> {
        let waited = self.perf.wait(most);
        waited.map_err(|errno| KernelError::Call { step: "waiting for packets", errno })?;
        let offset = self.offset;
        Ok(self.perf.drain(&mut |event| {
            if let Some(packet) = packet(&event.data, offset) {
                visit(packet);
            }
        }))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Held::InPlace { hook, port, mode, old } = &mut self.held {
            // Somebody else may have changed what is there meanwhile: then it is not ours to restore.
            let _ = exchange(hook, port, *mode, self.program, *old);
        }
    }
}

/// One program for another, in one step, if it is the one that is there.
fn exchange(hook: &mut Kernel, port: &str, mode: Mode, old: u32, new: u32) -> Result<(), ToolError> {
    let request = AttachRequest { mode, replace: Replace::Id(old), ..AttachRequest::new(port, ProgId(new)) };
    hook.attach(&request)?;
    Ok(())
}

/// The kernel's clock that programs read.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u32)
}

/// An event: [`ABOUT`] bytes, then the packet.
fn packet(event: &[u8], offset: Duration) -> Option<Packet> {
    let long = |at: usize| event.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b));
    let word = |at: usize| event.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
    let (time, number) = (Duration::from_nanos(long(0)?), long(8)?);
    let (ifindex, queue, len, captured) = (word(16)?, word(20)?, word(24)?, word(28)? as usize);
    // The kernel pads events.
    let data = event.get(ABOUT..ABOUT + captured)?.to_vec();
    Some(Packet { time: offset + time, number, ifindex, queue, len, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_is_woken_for_what_fills_half_a_ring() {
        assert_eq!((wakeup(7, 60), wakeup(1, SNAP_MAX)), (7, 1));
        assert_eq!(wakeup(0, 96), 64);
        let long = wakeup(0, u32::MAX) as usize;
        assert!((1..10).contains(&long) && long * SNAP_MAX as usize <= KernelPerf::ring_bytes(), "{long}");
    }

    #[test]
    fn events_are_read_and_short_ones_are_none() {
        let mut event = vec![0; 32];
        event[0] = 7;
        event[8] = 1;
        event[16] = 3;
        event[24] = 60;
        event[28] = 2;
        event.extend([0xaa, 0xbb, 0, 0]);
        let offset = Duration::from_secs(10);
        let got = packet(&event, offset).unwrap();
        assert_eq!((got.time, got.number, got.ifindex), (Duration::new(10, 7), 1, 3));
        assert_eq!((got.len, got.data.as_slice()), (60, &[0xaa, 0xbb][..]));
        assert_eq!(packet(&event[..33], offset), None);
    }
}

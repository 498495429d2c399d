//! Programs in the kernel: load, describe, run over one packet.
#![allow(unsafe_code)] // bpf(2) takes addresses: each call here says which buffers stand behind them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use xway_abi::Errno;
use xway_isa::{Slot, slots_to_bytes};

use crate::KernelError;
use crate::ids::{self, Fields, ObjectKind, info_by_fd};
use crate::sys::{Attr, Cmd, bpf, bpf_fd};

/// Numbers of `linux/bpf.h` that programs are loaded with.
pub mod consts {
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    pub const PROG_TYPE_SCHED_CLS: u32 = 3;
    /// `BPF_PROG_TYPE_EXT`.
    pub const PROG_TYPE_EXT: u32 = 28;
    /// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
    pub const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
    /// `BPF_TCX_INGRESS`.
    pub const ATTACH_TCX_INGRESS: u32 = 46;
    /// Programs on what an interface sends, before its queue is chosen.
    pub const ATTACH_TCX_EGRESS: u32 = 47;
    /// `BPF_PROG_TYPE_XDP`.
    pub const PROG_TYPE_XDP: u32 = 6;
    /// `BPF_XDP_DEVMAP`.
    pub const ATTACH_XDP_DEVMAP: u32 = 33;
    /// `BPF_XDP`.
    pub const ATTACH_XDP: u32 = 37;
    /// `BPF_XDP_CPUMAP`.
    pub const ATTACH_XDP_CPUMAP: u32 = 35;
    /// `BPF_F_XDP_HAS_FRAGS`.
    pub const F_XDP_HAS_FRAGS: u32 = 1 << 5;
    /// `BPF_F_TEST_RND_HI32`: random upper halves after 32-bit writes that the verifier thinks dead.
    pub const F_TEST_RND_HI32: u32 = 1 << 2;
}

/// One entry of `struct bpf_func_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncInfo {
    /// First slot of the function.
    pub insn: u32,
    /// BTF id of its `FUNC`.
    pub type_id: u32,
}

/// One entry of `struct bpf_line_info`; the offsets are those of the BTF's strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// First slot.
    pub insn: u32,
    /// File name.
    pub file_off: u32,
    /// Text of the line.
    pub text_off: u32,
    /// Line number, at most 22 bits.
    pub line: u32,
    /// Column, at most 10 bits.
    pub col: u32,
}

/// What `BPF_PROG_LOAD` is asked for.
#[derive(Clone, Debug)]
pub struct ProgSpec<'a> {
    /// `enum bpf_prog_type`.
    pub prog_type: u32,
    /// `enum bpf_attach_type`.
    pub attach_type: u32,
    /// `BPF_F_…` of program load.
    pub flags: u32,
    /// Name; the kernel keeps 15 bytes.
    pub name: &'a str,
    /// Licence text.
    pub license: &'a str,
    /// `LINUX_VERSION_CODE`, for program types that still look at it.
    pub kernel_version: u32,
    /// All slots.
    pub insns: &'a [Slot],
    /// Descriptors of maps, by the index that instructions hold.
    pub fd_array: &'a [RawFd],
    /// Type information that the next two refer to.
    pub btf: Option<BorrowedFd<'a>>,
    /// All functions, by rising slot, or none.
    pub funcs: &'a [FuncInfo],
    /// Source lines, by rising slot, or none.
    pub lines: &'a [LineInfo],
    /// For an extension program: the program whose function it replaces, and the type of that function among that program's
    /// types.
    pub replaces: Option<(BorrowedFd<'a>, u32)>,
    /// Number of the interface whose device is to run it, compiled by its driver (`prog_ifindex`); 0: the CPU runs it.
    pub device: u32,
    /// 0 for no log unless the load fails, 1 for the verifier's log of a program that it accepts, 2 for more of it, 4 for
    /// the reason and the figures alone, which costs next to nothing.
    pub log_level: u32,
}

impl<'a> ProgSpec<'a> {
    /// An XDP program without maps or types, under a licence that permits every helper.
    pub fn xdp(name: &'a str, insns: &'a [Slot]) -> ProgSpec<'a> {
        ProgSpec {
            prog_type: consts::PROG_TYPE_XDP,
            attach_type: consts::ATTACH_XDP,
            flags: 0,
            name,
            license: "GPL",
            kernel_version: 0,
            insns,
            fd_array: &[],
            btf: None,
            funcs: &[],
            lines: &[],
            replaces: None,
            device: 0,
            log_level: 0,
        }
    }
}

/// A program in the kernel. It lives as long as this descriptor or something else that holds it (a link, a map, a pin).
#[derive(Debug)]
pub struct KernelProg {
    fd: OwnedFd,
    log: String,
    load_time: Duration,
}

/// Room for the verifier's log. The kernel fills from the end when it does not suffice, so the reason is always in it.
const LOG_BYTES: usize = 1 << 20;

impl KernelProg {
    /// Loads a program (`BPF_PROG_LOAD`).
    ///
    /// A program that is refused is loaded once more with a log, unless a log was asked for at once: the first attempt is
    /// then cheap. Errors carry errno and log.
    pub fn load(spec: &ProgSpec<'_>) -> Result<KernelProg, KernelError> {
        let refuse = |(errno, log)| KernelError::Program { name: spec.name.to_owned(), errno, log };
        match load_once(spec, spec.log_level) {
            // The first errno stays: a log that does not fit would replace it with ENOSPC.
            Err((errno, _)) if spec.log_level == 0 => load_once(spec, 1).map_err(|(_, log)| refuse((errno, log))),
            other => other.map_err(refuse),
        }
    }

    /// The verifier's log of the load; empty unless it was asked for.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// What the system call took that loaded the program: the kernel's verifier and its compiler. Zero for a program that
    /// was there before.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The program with this id.
    pub fn by_id(id: u32) -> Result<KernelProg, KernelError> {
        Ok(KernelProg { fd: ids::open(ObjectKind::Program, id)?, log: String::new(), load_time: Duration::ZERO })
    }

    /// The program that is pinned at `path`.
    pub fn pinned(path: &Path) -> Result<KernelProg, KernelError> {
        let program = KernelProg { fd: ids::pinned(path)?, log: String::new(), load_time: Duration::ZERO };
        match ids::is_kind(program.fd.as_fd(), "bpf-prog") {
            true => Ok(program),
            false => Err(KernelError::Path {
                step: "opening as a program",
                path: path.display().to_string(),
                errno: Errno::EINVAL,
            }),
        }
    }

    /// What the kernel says about the program (`BPF_OBJ_GET_INFO_BY_FD`).
    pub fn info(&self) -> Result<ProgInfo, KernelError> {
        const STEP: &str = "asking about a program";
        let mut out = [0u8; 232];
        // SAFETY: all address fields are zero: the kernel copies nothing but the structure itself.
        match unsafe { info_by_fd(self.as_fd(), &mut out, STEP) } {
            // The device that it was loaded for has gone: the kernel tells nothing more of it.
            Err(e) if e.errno() == Some(Errno::ENODEV) => {
                let (id, prog_type) = (self.fdinfo("prog_id:"), self.fdinfo("prog_type:"));
                let number = |field: Option<u64>| field.unwrap_or(0) as u32;
                let memory = self.fdinfo("memlock:");
                let known = ProgInfo { id: number(id), prog_type: number(prog_type), memory, ..ProgInfo::default() };
                return Ok(ProgInfo { orphaned: true, ..known });
            }
            other => other?,
        }
        let count = Fields(&out).u32(52) as usize;
        let mut maps = vec![0u32; count];
        if count > 0 {
            let mut again = [0u8; 232];
            again[52..56].copy_from_slice(&(count as u32).to_ne_bytes());
            again[56..64].copy_from_slice(&(maps.as_mut_ptr() as u64).to_ne_bytes());
            // SAFETY: the only address is that of `maps`, which holds as many numbers as the count beside it says.
            unsafe { info_by_fd(self.as_fd(), &mut again, STEP) }?;
        }
        let of = Fields(&out);
        Ok(ProgInfo {
            id: of.u32(4),
            prog_type: of.u32(0),
            tag: std::array::from_fn(|i| out[8 + i]),
            jited_len: of.u32(16),
            xlated_len: of.u32(20),
            loaded_at: Duration::from_nanos(of.u64(40)),
            uid: of.u32(48),
            map_ids: maps,
            name: of.name(64),
            gpl_compatible: of.u32(84) & 1 != 0,
            btf_id: of.u32(128),
            run_time: Duration::from_nanos(of.u64(192)),
            run_count: of.u64(200),
            verified_insns: of.u32(216),
            recursion_misses: of.u64(208),
            memory: self.fdinfo("memlock:"),
            orphaned: false,
        })
    }

    /// A number that the kernel shows of the descriptor.
    fn fdinfo(&self, field: &str) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
    }

    /// Where functions and source lines are in the instructions and in the machine code. All are empty where the program has no
    /// types, or where the kernel does not show it.
    pub fn lines(&self) -> Result<ProgLines, KernelError> {
        const STEP: &str = "reading a program's source lines";
        /// Numbers and places of the counts and addresses in `struct bpf_prog_info`, and bytes of a record.
        const LISTS: [(usize, usize, usize); 6] =
            [(104, 112, 8), (108, 120, 4), (144, 136, 8), (148, 152, 16), (168, 160, 8), (180, 184, 8)];
        let mut out = [0u8; 232];
        // SAFETY: all address fields are zero: the kernel copies nothing but the structure itself.
        unsafe { info_by_fd(self.as_fd(), &mut out, STEP) }?;
        let counts = LISTS.map(|(count, _, _)| Fields(&out).u32(count) as usize);
        let mut again = [0u8; 232];
        let mut buffers: [Vec<u8>; 6] = std::array::from_fn(|i| vec![0; counts[i] * LISTS[i].2]);
        // Bytes of each record of functions, lines and lines of machine code.
        for (at, bytes) in [(132, 8u32), (172, 16), (176, 8)] {
            again[at..at + 4].copy_from_slice(&bytes.to_ne_bytes());
        }
        for ((count, address, _), (n, buffer)) in LISTS.into_iter().zip(counts.into_iter().zip(&mut buffers)) {
            if n > 0 {
                again[count..count + 4].copy_from_slice(&(n as u32).to_ne_bytes());
                again[address..address + 8].copy_from_slice(&(buffer.as_mut_ptr() as u64).to_ne_bytes());
            }
        }
        // SAFETY: each address is that of a buffer with room for as many records, of the size that is stated, as the count beside it
        // says; counts without an address are zero.
        unsafe { info_by_fd(self.as_fd(), &mut again, STEP) }?;
        let shown = |i: usize| -> &[u8] {
            // The kernel clears an address where it does not show what stands behind it.
            if Fields(&again).u64(LISTS[i].1) == 0 { &[] } else { &buffers[i] }
        };
        let longs = |i: usize| shown(i).as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let word = |b: &[u8], i: usize| Fields(b).u32(i * 4);
        Ok(ProgLines {
            addresses: longs(0),
            lengths: shown(1).as_chunks::<4>().0.iter().map(|b| u32::from_ne_bytes(*b)).collect(),
            funcs: shown(2).chunks_exact(8).map(|b| FuncInfo { insn: word(b, 0), type_id: word(b, 1) }).collect(),
            lines: (shown(3).chunks_exact(16))
                .map(|b| LineInfo {
                    insn: word(b, 0),
                    file_off: word(b, 1),
                    text_off: word(b, 2),
                    line: word(b, 3) >> 10,
                    col: word(b, 3) & 0x3ff,
                })
                .collect(),
            jited_lines: longs(4),
            tags: shown(5).as_chunks::<8>().0.to_vec(),
        })
    }

    /// Instructions as the kernel's verifier has left them, and machine code. Both are empty where the kernel does not
    /// show them (`kernel.kptr_restrict`, missing privilege).
    pub fn code(&self) -> Result<(Vec<Slot>, Vec<u8>), KernelError> {
        const STEP: &str = "reading a program's code";
        let info = self.info()?;
        let mut jited = vec![0u8; info.jited_len as usize];
        let mut xlated = vec![0u8; info.xlated_len as usize];
        let mut out = [0u8; 232];
        out[16..20].copy_from_slice(&info.jited_len.to_ne_bytes());
        out[20..24].copy_from_slice(&info.xlated_len.to_ne_bytes());
        out[24..32].copy_from_slice(&(jited.as_mut_ptr() as u64).to_ne_bytes());
        out[32..40].copy_from_slice(&(xlated.as_mut_ptr() as u64).to_ne_bytes());
        // SAFETY: the two addresses are those of buffers that are as long as the length fields beside them say.
        unsafe { info_by_fd(self.as_fd(), &mut out, STEP) }?;
        // The kernel clears an address where it does not show what stands behind it.
        if Fields(&out).u64(24) == 0 {
            jited.clear();
        }
        if Fields(&out).u64(32) == 0 {
            xlated.clear();
        }
        Ok((xway_isa::slots_from_bytes(&xlated).unwrap_or_default(), jited))
    }

    /// Runs the program over one packet (`BPF_PROG_TEST_RUN`).
    ///
    /// The kernel refuses packets below 14 bytes (`EINVAL`). What does not fit a page with its rooms goes into further buffers, at most
    /// 17 (`ENOMEM`). Redirects are not carried out: their verdict is returned.
    ///
    /// Between two repetitions the kernel looks whether a signal has come, also one that stops a process and lets it go on, and ends with
    /// `EINTR`. Then all of them are run again, a thousand times at most: maps have also what ran before.
    pub fn test_run(&self, input: &TestInput<'_>) -> Result<TestOutput, Errno> {
        let room = input.data.len() + input.spare;
        let mut data_out = vec![0u8; room];
        let mut ctx_out = [0u8; XdpMd::BYTES];
        let ctx_in = input.ctx.map(XdpMd::to_bytes);
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32)
            .u32(8, input.data.len() as u32)
            .u32(12, room as u32)
            .input(16, input.data)
            .output(24, &mut data_out)
            .u32(32, input.repeat)
            .min_len(80);
        if let Some(bytes) = &ctx_in {
            attr.u32(40, XdpMd::BYTES as u32).input(48, bytes);
            attr.u32(44, XdpMd::BYTES as u32).output(56, &mut ctx_out);
        }
        for attempt in 1.. {
            // SAFETY: each of the four buffers is as long as the length field beside its address says.
            match unsafe { bpf(Cmd::ProgTestRun, &mut attr) } {
                Err(Errno::EINTR) if attempt < INTERRUPTED_MAX => {}
                ran => {
                    ran?;
                    break;
                }
            }
        }
        let (ret, len, nanos) = (attr.get_u32(4), attr.get_u32(12) as usize, attr.get_u32(36));
        data_out.truncate(len);
        let ctx = ctx_in.is_some().then(|| XdpMd::from_bytes(&ctx_out));
        Ok(TestOutput { ret, data: data_out, ctx, duration: Duration::from_nanos(nanos.into()) })
    }
}

/// How often a test run begins again that a signal has ended. Whoever is interrupted more often is told so.
const INTERRUPTED_MAX: u32 = 1000;

/// `BPF_F_TEST_XDP_LIVE_FRAMES`
const LIVE_FRAMES: u32 = 1 << 1;

impl KernelProg {
    /// Runs the program over `count` frames that the kernel makes from `packet`, in batches of `batch`, and has it carry the
    /// verdicts out: what passes goes to the network stack of the calling thread's namespace, what is sent leaves by a device
    /// (`BPF_F_TEST_XDP_LIVE_FRAMES`). The packets come in on interface `ingress`, 0 for the loopback device.
    ///
    /// The kernel copies the packet into a frame once and lets programs meet it again as they left it.
    pub fn live_run(&self, packet: &[u8], count: u32, batch: u32, ingress: u32) -> Result<(), Errno> {
        let ctx = XdpMd { data_end: packet.len() as u32, ingress_ifindex: ingress, ..XdpMd::default() }.to_bytes();
        let mut attr = Attr::new();
        attr.u32(0, self.fd.as_raw_fd() as u32)
            .u32(8, packet.len() as u32)
            .input(16, packet)
            .u32(32, count)
            .u32(40, XdpMd::BYTES as u32)
            .input(48, &ctx)
            .u32(64, LIVE_FRAMES)
            .u32(72, batch)
            .min_len(80);
        // SAFETY: packet and context are as long as the fields beside their addresses say, and nothing is written back.
        unsafe { bpf(Cmd::ProgTestRun, &mut attr) }.map(drop)
    }
}

impl AsFd for KernelProg {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn load_once(spec: &ProgSpec<'_>, log_level: u32) -> Result<KernelProg, (Errno, String)> {
    let insns = slots_to_bytes(spec.insns);
    let license = [spec.license.as_bytes(), &[0]].concat();
    let fds: Vec<u8> = spec.fd_array.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
    let funcs: Vec<u8> = spec.funcs.iter().flat_map(|f| words(&[f.insn, f.type_id])).collect();
    let line = |l: &LineInfo| words(&[l.insn, l.file_off, l.text_off, l.line << 10 | l.col.min(0x3ff)]);
    let lines: Vec<u8> = spec.lines.iter().flat_map(line).collect();
    let mut log = vec![0u8; if log_level > 0 { LOG_BYTES } else { 0 }];

    let mut attr = Attr::new();
    attr.u32(0, spec.prog_type)
        .u32(4, spec.insns.len() as u32)
        .input(8, &insns)
        .input(16, &license)
        .u32(40, spec.kernel_version)
        .u32(44, spec.flags)
        .name(48, spec.name)
        .u32(64, spec.device)
        .u32(68, spec.attach_type);
    if log_level > 0 {
        attr.u32(24, log_level).u32(28, LOG_BYTES as u32).output(32, &mut log);
    }
    if let Some(btf) = spec.btf {
        attr.u32(72, btf.as_raw_fd() as u32);
        if !funcs.is_empty() {
            attr.u32(76, 8).input(80, &funcs).u32(88, spec.funcs.len() as u32);
        }
        if !lines.is_empty() {
            attr.u32(92, 16).input(96, &lines).u32(104, spec.lines.len() as u32);
        }
    }
    if let Some((target, function)) = spec.replaces {
        attr.u32(108, function).u32(112, target.as_raw_fd() as u32);
    }
    attr.input(120, &fds);
    // SAFETY: instructions, function and line records have the counts and record sizes that stand beside their
    // addresses; the licence ends with a zero; the log has the length that is stated. Of `fd_array` the kernel reads the
    // entries that instructions name by index: `check_indices` has seen that all are there.
    let mut call = || unsafe { bpf_fd(Cmd::ProgLoad, &mut attr) };
    let started = Instant::now();
    let loaded = check_indices(spec).and_then(|()| {
        // A signal during verification gives EAGAIN.
        (0..4).map(|_| call()).find(|r| !matches!(r, Err(Errno::EAGAIN))).unwrap_or(Err(Errno::EAGAIN))
    });
    let load_time = started.elapsed();
    let log = text(&log);
    match loaded {
        Ok(fd) => Ok(KernelProg { fd, log, load_time }),
        Err(errno) => Err((errno, log)),
    }
}

/// Refuses instructions that name an entry which `fd_array` does not have: the kernel would read behind the array.
fn check_indices(spec: &ProgSpec<'_>) -> Result<(), Errno> {
    let mut slots = spec.insns.iter();
    while let Some(slot) = slots.next() {
        let entry = match (slot.opcode, slot.src) {
            (xway_isa::op::LD_IMM64, 5 | 6) => slot.imm as u32 as usize,
            // The offset names the BTF of a module; 0 is the kernel's own and names no entry.
            (xway_isa::op::CALL, 2) if slot.off != 0 => slot.off as u16 as usize,
            _ => continue,
        };
        if entry >= spec.fd_array.len() {
            return Err(Errno::EBADF);
        }
        if slot.is_wide() {
            slots.next();
        }
    }
    Ok(())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

pub(crate) fn text(log: &[u8]) -> String {
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}

/// Run time and count of programs are taken while this lives (`BPF_ENABLE_STATS`).
#[derive(Debug)]
pub struct RunStatistics(#[expect(dead_code, reason = "closing it ends the counting")] OwnedFd);

/// Switches run statistics on, for all programs of the machine.
pub fn run_statistics() -> Result<RunStatistics, KernelError> {
    let mut attr = Attr::new();
    attr.u32(0, 0);
    // SAFETY: the command takes no addresses and returns a new descriptor.
    unsafe { bpf_fd(Cmd::EnableStats, &mut attr) }
        .map(RunStatistics)
        .map_err(|errno| KernelError::Call { step: "switching run statistics on", errno })
}

/// Where functions and source lines of a program are. Functions are in the order of the instructions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgLines {
    /// First instruction and type of each function.
    pub funcs: Vec<FuncInfo>,
    /// Source lines, by rising instruction.
    pub lines: Vec<LineInfo>,
    /// Where the machine code of each line is, in the order of `lines`.
    pub jited_lines: Vec<u64>,
    /// Where the machine code of each function is.
    pub addresses: Vec<u64>,
    /// Bytes of the machine code of each function.
    pub lengths: Vec<u32>,
    /// Tag of each function.
    pub tags: Vec<[u8; 8]>,
}

/// What the kernel says about a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProgInfo {
    /// Its number.
    pub id: u32,
    /// `enum bpf_prog_type`; 6 is XDP.
    pub prog_type: u32,
    /// SHA-1 over its normalised instructions, cut to eight bytes.
    pub tag: [u8; 8],
    /// Bytes of machine code; 0 where the kernel interprets.
    pub jited_len: u32,
    /// Bytes of instructions after the verifier's rewriting.
    pub xlated_len: u32,
    /// When it was loaded, since boot.
    pub loaded_at: Duration,
    /// Number of the user who loaded it.
    pub uid: u32,
    /// Ids of the maps that it uses.
    pub map_ids: Vec<u32>,
    /// Name, cut to 15 bytes.
    pub name: String,
    /// Its licence permits helpers that want the GPL.
    pub gpl_compatible: bool,
    /// Its type information, 0 for none.
    pub btf_id: u32,
    /// Time that it has run; counted only while statistics are on ([`crate::run_statistics`]).
    pub run_time: Duration,
    /// How often it has run, likewise.
    pub run_count: u64,
    /// Instructions that the verifier looked at.
    pub verified_insns: u32,
    /// How often it was not run because it ran already on that CPU.
    pub recursion_misses: u64,
    /// Memory that it takes, bytes; `None` where the kernel does not show it.
    pub memory: Option<u64>,
    /// The device that it was loaded for has gone. All but number, type and memory is unknown then.
    pub orphaned: bool,
}

/// `struct xdp_md`, as test runs take and give it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // The fields are the header's.
pub struct XdpMd {
    pub data: u32,
    pub data_end: u32,
    pub data_meta: u32,
    pub ingress_ifindex: u32,
    pub rx_queue_index: u32,
    pub egress_ifindex: u32,
}

impl XdpMd {
    /// Bytes of the structure.
    pub const BYTES: usize = 24;

    /// In memory order.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let fields =
            [self.data, self.data_end, self.data_meta, self.ingress_ifindex, self.rx_queue_index, self.egress_ifindex];
        let mut out = [0; Self::BYTES];
        for (place, field) in out.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
            *place = field.to_ne_bytes();
        }
        out
    }

    /// From memory order.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> XdpMd {
        let field = |i: usize| u32::from_ne_bytes(bytes.as_chunks::<4>().0[i]);
        XdpMd {
            data: field(0),
            data_end: field(1),
            data_meta: field(2),
            ingress_ifindex: field(3),
            rx_queue_index: field(4),
            egress_ifindex: field(5),
        }
    }
}

/// One test run.
#[derive(Clone, Copy, Debug)]
pub struct TestInput<'a> {
    /// The packet; with a context whose `data` is not 0 the metadata first.
    pub data: &'a [u8],
    /// The context: `data` is the length of the metadata, `data_end` that of all of [`TestInput::data`].
    pub ctx: Option<XdpMd>,
    /// Number of runs, over the same bytes without restoring them; 0 means 1.
    pub repeat: u32,
    /// Bytes that the packet may grow by.
    pub spare: usize,
}

impl<'a> TestInput<'a> {
    /// One run over `data` without a context of its own.
    pub fn packet(data: &'a [u8]) -> TestInput<'a> {
        TestInput { data, ctx: None, repeat: 1, spare: 4096 }
    }
}

/// What a test run gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TestOutput {
    /// The program's return value.
    pub ret: u32,
    /// The packet behind it (and its metadata before it, when a context was given).
    pub data: Vec<u8>,
    /// The context behind it, when one was given.
    pub ctx: Option<XdpMd>,
    /// Mean time of one run, whole nanoseconds.
    pub duration: Duration,
}

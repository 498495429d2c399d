//! Captures, packet by packet, in constant memory.
//!
//! The block structure is parsed by `pcap-parser`; what a block means (link type, clock, limits) is decided here.

use std::io::Read;
use std::path::Path;

use pcap_parser::{
    Block, LegacyPcapReader, Linktype, PcapBlockOwned, PcapError, PcapHeader, PcapNGReader, traits::PcapReaderIterator,
};

use crate::error::link_name;
use crate::input::{self, ErrorSlot, Progress, Watched};
use crate::{CaptureError, Record};

/// Buffer at the start, bytes: two records of the usual largest length.
const BUFFER_START: usize = 1 << 17;
/// Largest record, bytes: beyond `MAXIMUM_SNAPLEN` (256 KiB) of the usual tools, with options.
const RECORD_MAX: usize = 1 << 22;
/// Shortest pcapng block, bytes: type and both lengths.
const BLOCK_MIN: u32 = 12;
/// Type of the obsolete packet block.
const BLOCK_PACKET: u32 = 2;
/// Most interfaces in one pcapng section; a packet names one of them.
const INTERFACES_MAX: usize = 4096;

/// A capture that is being read.
pub struct CaptureReader {
    name: String,
    blocks: Box<dyn PcapReaderIterator + Send>,
    capacity: usize,
    pcapng: bool,
    read_error: ErrorSlot,
    progress: Progress,
    state: State,
}

/// What the headers so far say about the packets that follow.
struct State {
    clocks: Vec<Interface>,
    big_endian: bool,
    packets: u64,
    offset: u64,
}

struct Interface {
    link: Linktype,
    snaplen: u32,
    clock: Clock,
}

/// How a timestamp counts.
#[derive(Clone, Copy)]
enum Clock {
    /// Ticks of 1/`per_second` seconds since 1970 plus `offset` seconds.
    Ticks { per_second: u64, offset: i64 },
    /// Longer than any clock: timestamps have no meaning.
    Unknown,
}

impl CaptureReader {
    /// Opens a file (`-`: standard input), unpacks gzip and zstd, and reads the first header.
    ///
    /// # Errors
    /// [`CaptureError`]: the file is missing, no capture, empty, or its packets are not Ethernet frames.
    pub fn open(path: &Path) -> Result<CaptureReader, CaptureError> {
        let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
        let (bytes, progress) = input::open(path)?;
        Ok(CaptureReader { progress, ..Self::new(name, bytes)? })
    }

    /// The same for a regular file alone, `-` included, which is opened without waiting: what somebody else has named may be a pipe that
    /// nobody writes to.
    ///
    /// # Errors
    /// As [`CaptureReader::open`]; it is no regular file.
    pub fn open_file(path: &Path) -> Result<CaptureReader, CaptureError> {
        let (bytes, progress) = input::open_file(path)?;
        Ok(CaptureReader { progress, ..Self::new(path.display().to_string(), bytes)? })
    }

    /// Reads a capture from any source; `name` stands in its errors.
    ///
    /// # Errors
    /// As [`CaptureReader::open`].
    pub fn new(name: String, mut bytes: Box<dyn Read + Send>) -> Result<CaptureReader, CaptureError> {
        let read = |source| CaptureError::Read { name: name.clone(), packets: 0, source };
        // The parser wants its first header whole in one read, and pipes deliver what they like.
        let mut head = input::read_up_to(&mut *bytes, 12).map_err(read)?;
        let kind = Kind::of(&head).ok_or_else(|| match head.len() {
            0 => CaptureError::NoHeader { name: name.clone() },
            n => CaptureError::NotACapture { name: name.clone(), magic: head[..n.min(4)].to_vec() },
        })?;
        let want = kind.header_len(&head).filter(|n| (12..=BUFFER_START / 2).contains(n));
        let want = want.ok_or_else(|| CaptureError::NoHeader { name: name.clone() })?;
        head.extend(input::read_up_to(&mut *bytes, want - head.len()).map_err(read)?);
        if head.len() < want {
            return Err(CaptureError::NoHeader { name });
        }
        let (watched, read_error) = Watched::new(bytes);
        let whole = std::io::Cursor::new(head).chain(watched);
        let no_header = |_: PcapError<&'static [u8]>| CaptureError::NoHeader { name: name.clone() };
        let blocks: Box<dyn PcapReaderIterator + Send> = match kind {
            Kind::Pcap => Box::new(LegacyPcapReader::new(BUFFER_START, whole).map_err(no_header)?),
            Kind::Pcapng => Box::new(PcapNGReader::new(BUFFER_START, whole).map_err(no_header)?),
        };
        let state = State { clocks: Vec::new(), big_endian: false, packets: 0, offset: 0 };
        let mut reader = CaptureReader {
            name,
            blocks,
            capacity: BUFFER_START,
            pcapng: kind == Kind::Pcapng,
            read_error,
            progress: Progress::default(),
            state,
        };
        if kind == Kind::Pcap {
            reader.pcap_header()?;
        }
        Ok(reader)
    }

    /// Name of the input, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes read and bytes in all, as they lie in the file; `None` for a pipe.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.progress.get()
    }

    /// Bytes of (uncompressed) capture consumed so far.
    pub fn offset(&self) -> u64 {
        self.state.offset
    }

    /// Hands the next packet to `take`; `None` at the end of the capture.
    ///
    /// # Errors
    /// [`CaptureError`] when the capture is cut or damaged here; nothing can be read behind that.
    pub fn next_with<T>(&mut self, take: impl FnOnce(Record<'_>) -> T) -> Result<Option<T>, CaptureError> {
        let mut take = Some(take);
        let mut idle_refills = 0;
        loop {
            // The parser takes 12 off every length before it looks at it.
            if self.block_len().is_some_and(|len| len < BLOCK_MIN) {
                return Err(self
                    .state
                    .fault(&self.name, Fault::Malformed("its length is below that of any block".into())));
            }
            let problem = match self.blocks.next() {
                Ok((len, block)) => {
                    let out = self.state.block(block, &mut take).map_err(|w| self.state.fault(&self.name, w))?;
                    self.blocks.consume(len);
                    self.state.offset += len as u64;
                    idle_refills = 0;
                    match out {
                        Some(out) => return Ok(Some(out)),
                        None => continue,
                    }
                }
                Err(PcapError::Incomplete(_)) => Problem::More,
                Err(PcapError::BufferTooSmall) => Problem::Larger,
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::UnexpectedEof) => Problem::Cut,
                Err(PcapError::ReadError) => Problem::Read,
                Err(_) => Problem::Malformed,
            };
            // The parser asks for more bytes even where a block's inner lengths point beyond its own end.
            let problem = if self.block_is_whole() { Problem::Malformed } else { problem };
            match problem {
                Problem::More if idle_refills < 2 => {
                    let before = self.blocks.data().len();
                    if self.blocks.refill().is_err() {
                        return Err(self.read_failed());
                    }
                    idle_refills = if self.blocks.data().len() == before { idle_refills + 1 } else { 0 };
                }
                Problem::More | Problem::Larger => self.grow()?,
                Problem::Read => return Err(self.read_failed()),
                Problem::Cut => {
                    let (name, s) = (self.name.clone(), &self.state);
                    return Err(CaptureError::Cut { name, packets: s.packets, offset: s.offset });
                }
                Problem::Malformed => {
                    return Err(self.state.fault(&self.name, Fault::Malformed("its lengths do not fit".into())));
                }
            }
        }
    }

    /// Total length of the next pcapng block as its header says, once the header is there. (A section header may be in
    /// another byte order than the section before it; read the wrong way round, a length that fits looks far too large, and
    /// one that looks tiny is 16 MiB and more.)
    fn block_len(&self) -> Option<u32> {
        let (head, _) = self.blocks.data().split_first_chunk::<8>()?;
        let len = [head[4], head[5], head[6], head[7]];
        self.pcapng.then_some(if self.state.big_endian { u32::from_be_bytes(len) } else { u32::from_le_bytes(len) })
    }

    /// True when the buffer holds all that the next pcapng block's length asks for.
    fn block_is_whole(&self) -> bool {
        self.block_len().is_some_and(|len| self.blocks.data().len() >= len as usize)
    }

    fn grow(&mut self) -> Result<(), CaptureError> {
        let larger = self.capacity * 2;
        if larger > RECORD_MAX || !self.blocks.grow(larger) {
            let (name, s) = (self.name.clone(), &self.state);
            return Err(CaptureError::TooLong { name, packets: s.packets, offset: s.offset, limit: RECORD_MAX });
        }
        self.capacity = larger;
        if self.blocks.refill().is_err() {
            return Err(self.read_failed());
        }
        Ok(())
    }

    fn read_failed(&self) -> CaptureError {
        CaptureError::Read { name: self.name.clone(), packets: self.state.packets, source: self.read_error.take() }
    }

    /// Consumes the file header of a pcap, so that a wrong link type is refused before the first packet.
    fn pcap_header(&mut self) -> Result<(), CaptureError> {
        let Ok((len, PcapBlockOwned::LegacyHeader(header))) = self.blocks.next() else {
            return Err(CaptureError::NoHeader { name: self.name.clone() });
        };
        let interface = legacy_interface(&header);
        check_link(&interface).map_err(|w| self.state.fault(&self.name, w))?;
        self.blocks.consume(len);
        self.state.clocks.push(interface);
        self.state.offset += len as u64;
        Ok(())
    }
}

enum Problem {
    More,
    Larger,
    Cut,
    Read,
    Malformed,
}

/// What is wrong with one block, before it is known where.
enum Fault {
    Link(i32),
    Malformed(String),
}

impl State {
    fn fault(&self, name: &str, fault: Fault) -> CaptureError {
        let name = name.to_owned();
        match fault {
            Fault::Link(number) => CaptureError::LinkType { name, number, link: link_name(number) },
            Fault::Malformed(what) => {
                CaptureError::Malformed { name, packets: self.packets, offset: self.offset, what }
            }
        }
    }

    fn block<T>(
        &mut self,
        block: PcapBlockOwned<'_>,
        take: &mut Option<impl FnOnce(Record<'_>) -> T>,
    ) -> Result<Option<T>, Fault> {
        let (interface, ticks, data, original_len) = match block {
            PcapBlockOwned::Legacy(b) => {
                let per_second = match self.clocks.first().map(|i| i.clock) {
                    Some(Clock::Ticks { per_second, .. }) => per_second,
                    _ => 1_000_000,
                };
                let ticks = u64::from(b.ts_sec) * per_second + u64::from(b.ts_usec);
                (0, Some(ticks), b.data, b.origlen)
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(b)) => {
                let ticks = u64::from(b.ts_high) << 32 | u64::from(b.ts_low);
                let data = b.data.get(..b.caplen as usize).ok_or_else(|| {
                    Fault::Malformed(format!("{} captured bytes in a block that has {}", b.caplen, b.data.len()))
                })?;
                (b.if_id, Some(ticks), data, b.origlen)
            }
            PcapBlockOwned::NG(Block::SimplePacket(b)) => {
                let snaplen = self.clocks.first().map_or(0, |i| i.snaplen);
                let len = if snaplen == 0 { b.origlen } else { b.origlen.min(snaplen) } as usize;
                (0, None, b.data.get(..len).unwrap_or(b.data), b.origlen)
            }
            PcapBlockOwned::NG(Block::SectionHeader(b)) => {
                self.clocks.clear();
                self.big_endian = b.big_endian();
                return Ok(None);
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(b)) => {
                if self.clocks.len() == INTERFACES_MAX {
                    return Err(Fault::Malformed(format!("more than {INTERFACES_MAX} interfaces")));
                }
                let offset = if self.big_endian { b.if_tsoffset.swap_bytes() } else { b.if_tsoffset };
                let clock = clock(b.if_tsresol, offset);
                self.clocks.push(Interface { link: b.linktype, snaplen: b.snaplen, clock });
                return Ok(None);
            }
            // The parser reads an unknown block's type as little-endian, whatever the section says.
            PcapBlockOwned::NG(Block::Unknown(b))
                if b.block_type == if self.big_endian { BLOCK_PACKET.swap_bytes() } else { BLOCK_PACKET } =>
            {
                let packet = ObsoletePacket::parse(b.data, self.big_endian).ok_or_else(|| {
                    Fault::Malformed("an obsolete packet block that is shorter than its fields say".into())
                })?;
                (packet.interface, Some(packet.ticks), packet.data, packet.original_len)
            }
            _ => return Ok(None),
        };
        let known = self.clocks.get(interface as usize).ok_or_else(|| {
            Fault::Malformed(format!("interface {interface} of {} described so far", self.clocks.len()))
        })?;
        check_link(known)?;
        self.packets += 1;
        let timestamp = ticks.and_then(|t| known.clock.to_ns(t));
        let record = Record { data, original_len, timestamp, interface, number: self.packets };
        Ok(take.take().map(|f| f(record)))
    }
}

/// A packet block of the first pcapng drafts (appendix "Packet Block" of draft-ietf-opsawg-pcapng), which the parser knows
/// only by its type.
struct ObsoletePacket<'a> {
    interface: u32,
    ticks: u64,
    data: &'a [u8],
    original_len: u32,
}

impl<'a> ObsoletePacket<'a> {
    fn parse(body: &'a [u8], big_endian: bool) -> Option<ObsoletePacket<'a>> {
        let u16_at = |at: usize| {
            let bytes = body.get(at..at + 2)?.try_into().ok()?;
            Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
        };
        let u32_at = |at: usize| {
            let bytes = body.get(at..at + 4)?.try_into().ok()?;
            Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
        };
        let (high, low, captured, original_len) = (u32_at(4)?, u32_at(8)?, u32_at(12)?, u32_at(16)?);
        Some(ObsoletePacket {
            interface: u16_at(0)?.into(),
            ticks: u64::from(high) << 32 | u64::from(low),
            data: body.get(20..)?.get(..captured as usize)?,
            original_len,
        })
    }
}

fn check_link(interface: &Interface) -> Result<(), Fault> {
    // The upper bits of a pcap's link type say whether frames end with a checksum.
    match interface.link.0 & 0x03ff_ffff {
        1 => Ok(()),
        other => Err(Fault::Link(other)),
    }
}

fn legacy_interface(h: &PcapHeader) -> Interface {
    let per_second = if h.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
    Interface { link: h.network, snaplen: h.snaplen, clock: Clock::Ticks { per_second, offset: 0 } }
}

fn clock(resolution: u8, offset: i64) -> Clock {
    let exponent = u32::from(resolution & 0x7f);
    let per_second = match resolution & 0x80 {
        0 => 10u64.checked_pow(exponent),
        _ => 1u64.checked_shl(exponent),
    };
    per_second.map_or(Clock::Unknown, |per_second| Clock::Ticks { per_second, offset })
}

impl Clock {
    /// Nanoseconds since 1970; `None` for a moment that 64 bits cannot say.
    fn to_ns(self, ticks: u64) -> Option<u64> {
        let Clock::Ticks { per_second, offset } = self else { return None };
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(per_second);
        let ns = i128::try_from(ns).ok()? + i128::from(offset) * 1_000_000_000;
        u64::try_from(ns).ok()
    }
}

/// The two formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pcap,
    Pcapng,
}

impl Kind {
    fn of(head: &[u8]) -> Option<Kind> {
        match head {
            [0x0a, 0x0d, 0x0d, 0x0a, ..] => Some(Kind::Pcapng),
            [0xd4, 0xc3, 0xb2, 0xa1, ..]
            | [0xa1, 0xb2, 0xc3, 0xd4, ..]
            | [0x4d, 0x3c, 0xb2, 0xa1, ..]
            | [0xa1, 0xb2, 0x3c, 0x4d, ..]
            | [0x34, 0xcd, 0xb2, 0xa1, ..] => Some(Kind::Pcap),
            _ => None,
        }
    }

    /// Length of the first header, bytes; `None` when `head` (its first twelve bytes) is incomplete or damaged.
    fn header_len(self, head: &[u8]) -> Option<usize> {
        if self == Kind::Pcap {
            return (head.len() == 12).then_some(24);
        }
        let len: [u8; 4] = head.get(4..8)?.try_into().ok()?;
        match head.get(8..12)? {
            [0x4d, 0x3c, 0x2b, 0x1a] => Some(u32::from_le_bytes(len) as usize),
            [0x1a, 0x2b, 0x3c, 0x4d] => Some(u32::from_be_bytes(len) as usize),
            _ => None,
        }
    }
}

//! Packets of several buffers.
//!
//! ```text
//! frame -> chunk: | room | first part |        what programs reach through data and data_end
//!   |
//!   +---> chunk: | second part         |      a chunk each, up to `FRAGS_MAX` of them; programs reach them by copying
//!   +---> chunk: | third | free        |      (`bpf_xdp_load_bytes`, `_store_bytes`) and in slices of dynptrs
//! ```
//!
//! The further buffers belong to the first: they go where the frame goes, and home when it goes home.

use std::borrow::Cow;

use xway_abi::Errno;

use crate::frame::Frame;
use crate::layout::ETH_HLEN;

/// The parts of a packet, in order.
pub struct Parts<'a> {
    next: Option<&'a Frame>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let frame = self.next?;
        self.next = frame.next_part();
        Some(frame.packet())
    }
}

impl Frame {
    /// The most buffers behind the first (`MAX_SKB_FRAGS`).
    pub const FRAGS_MAX: usize = 17;

    /// Whether the packet has more than one buffer.
    #[inline]
    pub fn has_frags(&self) -> bool {
        self.next_part().is_some()
    }

    /// Number of buffers behind the first.
    pub fn frag_count(&self) -> usize {
        self.parts().count() - 1
    }

    /// All parts of the packet, the first one first.
    pub fn parts(&self) -> Parts<'_> {
        Parts { next: Some(self) }
    }

    /// The buffer with this number: 0 is the first.
    pub fn part(&self, number: usize) -> Option<&Frame> {
        let mut part = self;
        for _ in 0..number {
            part = part.next_part()?;
        }
        Some(part)
    }

    /// As [`Frame::part`], to be written.
    pub fn part_mut(&mut self, number: usize) -> Option<&mut Frame> {
        let mut part = self;
        for _ in 0..number {
            part = part.next_part_mut()?;
        }
        Some(part)
    }

    /// Where these bytes of the packet lie, if in one piece: the number of the buffer, and the place in its chunk.
    pub fn piece(&self, offset: usize, len: usize) -> Option<(usize, usize)> {
        let (mut number, mut part, mut from) = (0, self, offset);
        while let Some(next) = part.next_part().filter(|_| from >= part.len()) {
            from -= part.len();
            (number, part) = (number + 1, next);
        }
        let end = from.checked_add(len)?;
        (end <= part.len()).then(|| (number, part.data() as usize + from))
    }

    /// Length of the whole packet, all buffers together (`bpf_xdp_get_buff_len`). [`Frame::len`] is that of the first.
    #[inline]
    pub fn total_len(&self) -> usize {
        if self.has_frags() { self.len_of_parts() } else { self.len() }
    }

    #[cold]
    fn len_of_parts(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// The whole packet in one piece. Costs a copy where it has several buffers, and nothing where it has one.
    #[inline]
    pub fn contents(&self) -> Cow<'_, [u8]> {
        if self.has_frags() {
            Cow::Owned(self.parts().flatten().copied().collect())
        } else {
            Cow::Borrowed(self.packet())
        }
    }

    /// Appends a buffer: `part` holds at most a chunk of bytes, and its packet becomes the end of this one.
    ///
    /// # Errors
    /// Gives it back when there are [`Frame::FRAGS_MAX`], or when it has further buffers itself.
    pub fn push_part(&mut self, part: Frame) -> Result<(), Frame> {
        if self.frag_count() >= Frame::FRAGS_MAX || part.has_frags() {
            return Err(part);
        }
        self.last_part().set_next_part(Some(part));
        Ok(())
    }

    /// Takes the frame apart: its buffers in their order, each a frame of its own. For a port whose device gets a descriptor for
    /// each of them.
    pub fn into_parts(self) -> impl Iterator<Item = Frame> {
        let mut next = Some(self);
        std::iter::from_fn(move || {
            let mut part = next.take()?;
            next = part.take_next_part();
            Some(part)
        })
    }

    /// Makes `bytes` the contents of a buffer behind the first: they lie from the chunk's first byte on.
    ///
    /// # Errors
    /// `EINVAL` when they are longer than the chunk.
    pub fn fill_part(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.chunk_mut().get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        self.set_part_len(bytes.len() as u32);
        Ok(())
    }

    /// Copies bytes out of the packet, wherever they lie.
    ///
    /// # Errors
    /// `EINVAL` when the packet ends before they do.
    pub fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
        let end = offset.checked_add(out.len()).ok_or(Errno::EINVAL)?;
        if let Some(bytes) = self.packet().get(offset..end) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        if end > self.total_len() {
            return Err(Errno::EINVAL);
        }
        self.load_some(offset, out);
        Ok(())
    }

    /// Copies what the packet has of these bytes, and says how many that were: the first ones.
    pub fn load_some(&self, offset: usize, out: &mut [u8]) -> usize {
        let (mut skip, mut filled) = (offset, 0);
        for part in self.parts() {
            let from = skip.min(part.len());
            let count = (part.len() - from).min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&part[from..from + count]);
            (skip, filled) = (skip - from, filled + count);
        }
        filled
    }

    /// Copies bytes into the packet, wherever they lie.
    ///
    /// # Errors
    /// `EINVAL` when the packet ends before they do; nothing is changed then.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len()).ok_or(Errno::EINVAL)?;
        if let Some(there) = self.packet_mut().get_mut(offset..end) {
            there.copy_from_slice(bytes);
            return Ok(());
        }
        if end > self.total_len() {
            return Err(Errno::EINVAL);
        }
        let (mut skip, mut taken) = (offset, 0);
        let mut part = Some(self);
        while let Some(frame) = part {
            let there = frame.packet_mut();
            let from = skip.min(there.len());
            let count = (there.len() - from).min(bytes.len() - taken);
            there[from..from + count].copy_from_slice(&bytes[taken..taken + count]);
            (skip, taken) = (skip - from, taken + count);
            part = frame.next_part_mut();
        }
        Ok(())
    }

    /// `bpf_xdp_adjust_tail` of a packet of several buffers: it grows in its last one and shrinks through as many as it takes.
    pub(crate) fn adjust_tail_parts(&mut self, delta: i32) -> Result<(), Errno> {
        let count = delta.unsigned_abs() as usize;
        if delta == i32::MIN {
            return Ok(()); // Linux turns its sign, which changes nothing, and has nothing to do then
        }
        if delta >= 0 {
            return self.last_part().grow_part(count);
        }
        if self.total_len() < ETH_HLEN as usize + count {
            return Err(Errno::EINVAL);
        }
        let mut left = count;
        while left > 0 && self.has_frags() {
            let last = self.last_part();
            let len = last.len();
            if left < len {
                last.cut_end(left as u32);
                return Ok(());
            }
            left -= len;
            self.drop_last_part();
        }
        self.cut_end(left as u32);
        Ok(())
    }

    pub(crate) fn last_part(&mut self) -> &mut Frame {
        let mut last = self;
        while last.has_frags() {
            last = last.next_part_mut().expect("`has_frags` has just seen it");
        }
        last
    }

    /// Adds zeros at the end of a buffer that holds nothing else.
    fn grow_part(&mut self, count: usize) -> Result<(), Errno> {
        let from = self.data_end() as usize;
        let end = from.checked_add(count).ok_or(Errno::EINVAL)?;
        self.chunk_mut().get_mut(from..end).ok_or(Errno::EINVAL)?.fill(0);
        self.set_end(end as u32);
        Ok(())
    }

    fn drop_last_part(&mut self) {
        let mut frame = self;
        while frame.next_part().is_some_and(Frame::has_frags) {
            frame = frame.next_part_mut().expect("`next_part` has just seen it");
        }
        frame.set_next_part(None);
    }
}

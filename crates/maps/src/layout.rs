//! How a value lies in memory and how it is copied.

use xway_abi::{MapSpec, SpecialKind};

use crate::ValueRef;
use crate::native::ArrayLayout;

/// Size of a value, and the fields in it that copies leave alone.
#[derive(Clone, Debug)]
pub(crate) struct ValueLayout {
    size: u32,
    /// The special fields; few values have any.
    fields: Option<Box<Fields>>,
}

/// Special fields, as ranges (start, end), ascending, inside the value.
#[derive(Clone, Debug)]
struct Fields {
    all: Vec<(usize, usize)>,
    /// Those of them in which something is kept until it is given up: timers, kernel pointers.
    held: Vec<(usize, usize)>,
    /// All but the lock.
    others: Vec<(usize, usize)>,
    /// Offset of the spin lock, if the value has one.
    lock: Option<usize>,
}

impl ValueLayout {
    pub(crate) fn new(spec: &MapSpec) -> ValueLayout {
        let size = spec.value_size as usize;
        let ranges = |wanted: fn(SpecialKind) -> bool| {
            let fields = spec.special.iter().filter(|field| wanted(field.kind));
            let ranges =
                fields.map(|field| (field.offset as usize, field.offset as usize + field.kind.size() as usize));
            let mut ranges: Vec<(usize, usize)> = ranges.filter(|&(_, end)| end <= size).collect();
            ranges.sort_unstable();
            ranges
        };
        let kept = |kind| matches!(kind, SpecialKind::Timer | SpecialKind::Workqueue | SpecialKind::Kptr);
        let lock = spec.special.iter().find(|field| field.kind == SpecialKind::SpinLock);
        let fields = (!spec.special.is_empty()).then(|| Fields {
            all: ranges(|_| true),
            held: ranges(kept),
            others: ranges(|kind| kind != SpecialKind::SpinLock),
            lock: lock.map(|field| field.offset as usize),
        });
        ValueLayout { size: spec.value_size, fields: fields.map(Box::new) }
    }

    /// Bytes of a value as its map declares it.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// Bytes from one value to the next: the size, rounded up to 8.
    #[inline]
    pub(crate) fn stride(&self) -> usize {
        ArrayLayout::stride_of(self.size)
    }

    /// Bytes of memory beside itself.
    pub(crate) fn memory(&self) -> usize {
        let ranges =
            |fields: &Fields| (fields.all.len() + fields.held.len() + fields.others.len()) * 2 * size_of::<usize>();
        self.fields.as_deref().map_or(0, |fields| size_of::<Fields>() + ranges(fields))
    }

    fn special(&self) -> &[(usize, usize)] {
        self.fields.as_ref().map_or(&[], |fields| &fields.all)
    }

    fn lock(&self) -> Option<usize> {
        self.fields.as_ref()?.lock
    }

    /// Whether values hold a spin lock.
    pub(crate) fn has_lock(&self) -> bool {
        self.lock().is_some()
    }

    /// Whether values hold any special field.
    pub(crate) fn has_special(&self) -> bool {
        !self.special().is_empty()
    }

    /// Overwrites a live value; its special fields stay.
    #[inline]
    pub(crate) fn write(&self, value: ValueRef<'_>, bytes: &[u8]) {
        let mut at = 0;
        for &(start, end) in self.special() {
            self.copy_in(value, bytes, at, start);
            at = at.max(end);
        }
        self.copy_in(value, bytes, at, self.size());
    }

    /// As [`ValueLayout::write`], holding the value's spin lock.
    pub(crate) fn write_locked(&self, value: ValueRef<'_>, bytes: &[u8]) {
        self.with_lock(value, || self.write(value, bytes));
    }

    /// Fills the value of a new element; its special fields begin as zero, but for a lock that somebody holds.
    pub(crate) fn init(&self, value: ValueRef<'_>, bytes: &[u8]) {
        self.write(value, bytes);
        self.clear_special(value);
    }

    /// Zeroes the special fields of an element that comes or goes: what owns them (a running timer) finds out by that. The lock begins as
    /// zero and stays: a program may hold it, under which the element has gone to another key, and gives it back. Who locks the element
    /// of that key waits for it, as in Linux.
    pub(crate) fn clear_special(&self, value: ValueRef<'_>) {
        clear(value, self.fields.as_ref().map_or(&[], |fields| &fields.others));
    }

    /// Zeroes the special fields that hold something, and not the others: a lock may be held.
    #[inline]
    pub(crate) fn give_up(&self, value: ValueRef<'_>) {
        clear(value, self.fields.as_ref().map_or(&[], |fields| &fields.held));
    }

    /// Copies a value out; special fields read as zero.
    pub(crate) fn read(&self, value: ValueRef<'_>, out: &mut [u8]) {
        // Special fields are not even looked at: their owner uses other widths on them at the same time.
        let mut at = 0;
        for &(start, end) in self.special() {
            let _ = value.read_bytes(at, &mut out[at..start.max(at)]);
            out[start..end].fill(0);
            at = at.max(end);
        }
        let _ = value.read_bytes(at, &mut out[at..self.size()]);
    }

    /// As [`ValueLayout::read`], holding the value's spin lock.
    pub(crate) fn read_locked(&self, value: ValueRef<'_>, out: &mut [u8]) {
        self.with_lock(value, || self.read(value, out));
    }

    /// A per-CPU value as user space writes it: with the bytes up to the next multiple of 8, which are kept. `value` is
    /// [`ValueLayout::stride`] long.
    pub(crate) fn write_padded(&self, value: ValueRef<'_>, bytes: &[u8]) {
        if self.special().is_empty() {
            let _ = value.write_bytes(0, &bytes[..self.stride()]);
        } else {
            self.write(value, bytes);
        }
    }

    /// A per-CPU value as user space reads it.
    pub(crate) fn read_padded(&self, value: ValueRef<'_>, out: &mut [u8]) {
        if self.special().is_empty() {
            let _ = value.read_bytes(0, &mut out[..self.stride()]);
        } else {
            self.read(value, out);
        }
    }

    fn with_lock(&self, value: ValueRef<'_>, action: impl FnOnce()) {
        let locked = self.lock().is_some_and(|offset| value.spin_lock(offset));
        action();
        if let (true, Some(offset)) = (locked, self.lock()) {
            value.spin_unlock(offset);
        }
    }

    #[inline]
    fn copy_in(&self, value: ValueRef<'_>, bytes: &[u8], from: usize, to: usize) {
        if from < to {
            let _ = value.write_bytes(from, &bytes[from..to]);
        }
    }
}

#[inline]
fn clear(value: ValueRef<'_>, ranges: &[(usize, usize)]) {
    for &(start, end) in ranges {
        let zeros = [0u8; 64];
        for at in (start..end).step_by(zeros.len()) {
            let _ = value.write_bytes(at, &zeros[..zeros.len().min(end - at)]);
        }
    }
}

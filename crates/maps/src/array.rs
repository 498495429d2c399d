//! ARRAY and PERCPU_ARRAY: values by index, all there from the start, zeroed.
//!
//! Atomicity: an update from the system call side overwrites the value in place. Aligned pieces of up to eight bytes are
//! never torn; a reader that runs at the same time may see some pieces old and others new, as in Linux, unless both sides
//! use the value's spin lock (`BPF_F_LOCK`).

use xway_abi::map_flags::{LOCK, MMAPABLE, NOEXIST};
use xway_abi::{Errno, MapSpec};

use crate::hash::PerCpu;
use crate::layout::ValueLayout;
use crate::mapped::File;
use crate::native::{ArrayLayout, MapLayout, PercpuArrayLayout};
use crate::ops::{Batches, Ops, check_plain_flags, check_update_flags, index_of, next_index};
use crate::storage::Block;
use crate::{Env, Guard, ValueRef};

/// ARRAY.
pub(crate) struct Array {
    pub(crate) len: u32,
    pub(crate) layout: ValueLayout,
    pub(crate) values: Block,
    /// What they lie in, where others can have it.
    pub(crate) file: Option<File>,
}

impl Array {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<Array, Errno> {
        let layout = ValueLayout::new(spec);
        let bytes = layout.stride().checked_mul(spec.max_entries as usize).ok_or(Errno::ENOMEM)?;
        let mapped = env.map_memory && !cfg!(miri) && spec.flags & MMAPABLE != 0 && spec.special.is_empty();
        let (file, values) = match if mapped { File::create(spec) } else { None } {
            Some((file, values)) => (Some(file), values),
            None => (None, Block::with_pages(bytes, env.huge_pages)?),
        };
        Ok(Array { len: spec.max_entries, values, layout, file })
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::Array(ArrayLayout {
            base: self.values.addr(),
            stride: self.layout.stride(),
            max_entries: self.len,
            index_mask: u32::MAX.checked_shr((self.len - 1).leading_zeros()).unwrap_or(0),
        })
    }

    #[inline]
    pub(crate) fn at<'g>(&self, index: u32, guard: &'g Guard) -> Option<ValueRef<'g>> {
        (index < self.len).then(|| self.values.value(index as usize * self.layout.stride(), self.layout.size(), guard))
    }
}

impl Ops for Array {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.values]
    }

    fn memory(&self) -> usize {
        self.values.memory() + self.layout.memory()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], locked: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        let value = self.at(index_of(key), &guard).ok_or(Errno::ENOENT)?;
        if locked {
            self.layout.read_locked(value, out)
        } else {
            self.layout.read(value, out)
        }
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_update_flags(flags)?;
        let index = index_of(key);
        if index >= self.len {
            return Err(Errno::E2BIG);
        }
        let place = self.values.place(index as usize * self.layout.stride(), self.layout.size());
        if flags & NOEXIST != 0 {
            return Err(Errno::EEXIST);
        }
        if flags & LOCK != 0 {
            if !self.layout.has_lock() {
                return Err(Errno::EINVAL);
            }
            self.layout.write_locked(place, value);
        } else {
            self.layout.write(place, value);
        }
        // Whoever overwrites an element ends its timer, as in Linux.
        self.layout.give_up(place);
        Ok(())
    }

    fn delete(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, out)
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, ..Batches::default() }
    }

    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(index_of(key), guard)
    }

    fn prog_update(&self, _: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.update(key, value, flags)
    }

    fn for_each<'g>(
        &self,
        _: u32,
        guard: &'g Guard,
        visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        each_index(self.len, |index| self.at(index, guard), visit)
    }
}

/// PERCPU_ARRAY: an array for each CPU, in memory that no other CPU's array shares a cache line with.
pub(crate) struct PercpuArray {
    pub(crate) len: u32,
    pub(crate) layout: ValueLayout,
    pub(crate) values: PerCpu,
}

impl PercpuArray {
    pub(crate) fn new(spec: &MapSpec, env: &Env) -> Result<PercpuArray, Errno> {
        let layout = ValueLayout::new(spec);
        let values = PerCpu::new(layout.stride(), spec.max_entries as usize, env.cpus, Some(env.huge_pages))?;
        Ok(PercpuArray { len: spec.max_entries, layout, values })
    }

    pub(crate) fn layout(&self) -> MapLayout {
        MapLayout::PercpuArray(PercpuArrayLayout {
            base: self.values.values.addr(),
            cpu_stride: self.values.cpu_stride,
            stride: self.layout.stride(),
            max_entries: self.len,
            cpus: self.values.cpus,
        })
    }

    #[inline]
    pub(crate) fn at<'g>(&self, cpu: u32, index: u32, guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.part(cpu, index, self.layout.size(), guard)
    }

    /// The value with the bytes up to the next multiple of 8.
    fn padded<'g>(&self, cpu: u32, index: u32, guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.part(cpu, index, self.layout.stride(), guard)
    }

    #[inline]
    fn part<'g>(&self, cpu: u32, index: u32, len: usize, guard: &'g Guard) -> Option<ValueRef<'g>> {
        let offset = self.values.offset(cpu, index, self.layout.stride())?;
        (index < self.len).then(|| self.values.values.value(offset, len, guard))
    }

    /// The value for the map itself.
    #[inline]
    fn place(&self, cpu: u32, index: u32) -> Option<ValueRef<'_>> {
        let offset = self.values.offset(cpu, index, self.layout.stride())?;
        (index < self.len).then(|| self.values.values.place(offset, self.layout.size()))
    }

    fn cpus(&self) -> usize {
        self.values.cpus as usize
    }
}

impl Ops for PercpuArray {
    fn blocks(&self) -> Vec<&Block> {
        vec![&self.values.values]
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        for (cpu, out) in out.chunks_exact_mut(self.layout.stride()).enumerate().take(self.cpus()) {
            let value = self.padded(cpu as u32, index_of(key), &guard).ok_or(Errno::ENOENT)?;
            self.layout.read_padded(value, out);
        }
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let guard = Guard::pin();
        self.at(0, index_of(key), &guard).ok_or(Errno::E2BIG)?;
        if flags == NOEXIST {
            return Err(Errno::EEXIST);
        }
        for (cpu, value) in value.chunks_exact(self.layout.stride()).enumerate().take(self.cpus()) {
            let place = self.padded(cpu as u32, index_of(key), &guard).ok_or(Errno::E2BIG)?;
            self.layout.write_padded(place, value);
            self.layout.give_up(place);
        }
        Ok(())
    }

    fn delete(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        next_index(key, self.len, out)
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, ..Batches::default() }
    }

    fn value<'g>(&self, cpu: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(cpu, index_of(key), guard)
    }

    fn prog_update(&self, cpu: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_update_flags(flags)?;
        let place = self.place(cpu, index_of(key)).ok_or(Errno::E2BIG)?;
        if flags & NOEXIST != 0 {
            return Err(Errno::EEXIST);
        }
        if flags & LOCK != 0 && !self.layout.has_lock() {
            return Err(Errno::EINVAL);
        }
        self.layout.write(place, value);
        self.layout.give_up(place);
        Ok(())
    }

    fn for_each<'g>(
        &self,
        cpu: u32,
        guard: &'g Guard,
        visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
    ) -> Result<u64, Errno> {
        each_index(self.len, |index| self.at(cpu, index, guard), visit)
    }
}

fn each_index<'g>(
    len: u32,
    at: impl Fn(u32) -> Option<ValueRef<'g>>,
    visit: &mut dyn FnMut(&[u8], ValueRef<'g>) -> bool,
) -> Result<u64, Errno> {
    for index in 0..len {
        if let Some(value) = at(index)
            && !visit(&index.to_ne_bytes(), value)
        {
            return Ok(u64::from(index) + 1);
        }
    }
    Ok(u64::from(len))
}

//! STACK_TRACE: user space may create it; no XDP program can put a stack into it, so it stays empty.

use xway_abi::{Errno, MapSpec};

use crate::ops::{Ops, index_of};

pub(crate) struct StackTrace {
    buckets: u64,
}

impl StackTrace {
    pub(crate) fn new(spec: &MapSpec) -> StackTrace {
        StackTrace { buckets: u64::from(spec.max_entries).next_power_of_two() }
    }
}

impl Ops for StackTrace {
    fn lookup(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::ENOENT)
    }

    fn update(&self, _: &[u8], _: &[u8], _: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        if u64::from(index_of(key)) >= self.buckets { Err(Errno::E2BIG) } else { Err(Errno::ENOENT) }
    }

    fn next_key(&self, _: Option<&[u8]>, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::ENOENT)
    }

    fn lookup_and_delete(&self, _: &[u8], _: &mut [u8], _: bool) -> Result<(), Errno> {
        Err(Errno::ENOENT)
    }
}

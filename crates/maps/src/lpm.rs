//! LPM_TRIE: the value of the longest stored prefix that matches.
//!
//! A binary trie with compressed paths: a node stands where two stored prefixes part or where one ends. Nodes never change
//! once they are reachable, except for their two child links; an update puts a new node in the place of the old one.
//! Readers walk without a lock and see each update whole or not at all; writers take the trie's lock. What is unlinked is
//! freed behind the guards. The depth is at most the number of key bits.

use std::sync::Arc;

use parking_lot::Mutex;
use xway_abi::map_flags as f;
use xway_abi::{Errno, MapSpec};

use crate::ops::{Batches, Ops, check_plain_flags};
use crate::slots::Link;
use crate::storage::Block;
use crate::{Guard, ValueRef};

pub(crate) struct LpmTrie {
    /// Bytes of an address: the key without its prefix length.
    width: usize,
    value_size: usize,
    max: usize,
    root: Link<Node>,
    /// Stored prefixes.
    count: Mutex<usize>,
}

struct Node {
    /// Bits of the prefix.
    len: u32,
    bits: Box<[u8]>,
    /// `None` where two prefixes part and none ends.
    value: Option<Block>,
    children: [Link<Node>; 2],
}

impl LpmTrie {
    pub(crate) fn new(spec: &MapSpec) -> LpmTrie {
        LpmTrie {
            width: spec.key_size as usize - 4,
            value_size: spec.value_size as usize,
            max: spec.max_entries as usize,
            root: Link::new(None),
            count: Mutex::new(0),
        }
    }

    /// The longest stored prefix of the key.
    pub(crate) fn at<'g>(&self, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        let (len, bits) = self.split(key)?;
        let mut best = None;
        let mut at = self.root.get(guard);
        while let Some(node) = at {
            if node.len > len || !covers(node, bits) {
                break;
            }
            best = node.value.as_ref().or(best);
            at = node.child(bits).and_then(|link| link.get(guard));
        }
        best.map(|block| block.value(0, self.value_size, guard))
    }

    /// Prefix length and address; `None` when the length is more than the address has.
    fn split<'k>(&self, key: &'k [u8]) -> Option<(u32, &'k [u8])> {
        let (len, bits) = key.split_first_chunk::<4>()?;
        let len = u32::from_ne_bytes(*len);
        (len as usize <= self.width * 8).then_some((len, bits))
    }

    fn new_node(
        &self,
        len: u32,
        bits: &[u8],
        value: Option<&[u8]>,
        children: [Option<Arc<Node>>; 2],
    ) -> Result<Arc<Node>, Errno> {
        let value = match value {
            Some(bytes) => {
                let block = Block::new(self.value_size)?;
                let guard = Guard::pin();
                let _ = block.value(0, self.value_size, &guard).write_bytes(0, bytes);
                Some(block)
            }
            None => None,
        };
        Ok(Arc::new(Node { len, bits: bits.into(), value, children: children.map(Link::new) }))
    }

    fn store(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        check_plain_flags(flags)?;
        let (len, bits) = self.split(key).ok_or(Errno::EINVAL)?;
        let mut count = self.count.lock();
        let guard = &Guard::pin();
        // Down to where the prefix belongs: the first link whose node is not a proper prefix of it.
        let mut link = &self.root;
        let mut common = 0;
        while let Some(node) = link.get(guard) {
            common = common_bits(&node.bits, bits, node.len.min(len));
            match node.child(bits) {
                Some(next) if common == node.len && node.len < len => link = next,
                _ => break,
            }
        }
        let here = link.get(guard);
        let exact = here.filter(|node| node.len == len && common == len);
        let stored = exact.is_some_and(|node| node.value.is_some());
        match flags {
            f::NOEXIST if stored => return Err(Errno::EEXIST),
            f::EXIST if !stored => return Err(Errno::ENOENT),
            _ => {}
        }
        if !stored && *count >= self.max {
            return Err(Errno::ENOSPC);
        }
        let new = |children| self.new_node(len, bits, Some(value), children);
        let replacement = match (exact, here) {
            // In the old node's place, with its children.
            (Some(old), _) => new([0, 1].map(|side| old.children[side].share(guard)))?,
            (None, None) => new([None, None])?,
            // Above a node whose prefix it begins.
            (None, Some(node)) if common == len => new(one_child(bit(&node.bits, len), link.share(guard)))?,
            // Beside it, under a fork.
            (None, Some(node)) => {
                let mut children = one_child(bit(&node.bits, common), link.share(guard));
                children[bit(bits, common)] = Some(new([None, None])?);
                self.new_node(common, bits, None, children)?
            }
        };
        link.set(Some(replacement));
        if !stored {
            *count += 1;
        }
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        let (len, bits) = self.split(key).ok_or(Errno::EINVAL)?;
        let mut count = self.count.lock();
        let guard = &Guard::pin();
        let mut above: Option<(&Link<Node>, &Node)> = None;
        let mut link = &self.root;
        let node = loop {
            let node = link.get(guard).ok_or(Errno::ENOENT)?;
            if node.len > len || !covers(node, bits) {
                return Err(Errno::ENOENT);
            }
            if node.len == len {
                break node;
            }
            above = Some((link, node));
            link = node.child(bits).ok_or(Errno::ENOENT)?;
        };
        if node.value.is_none() {
            return Err(Errno::ENOENT);
        }
        match [0, 1].map(|side| node.children[side].share(guard)) {
            // Prefixes still part here.
            [Some(left), Some(right)] => link.set(Some(self.new_node(len, bits, None, [Some(left), Some(right)])?)),
            [None, None] => match above {
                // A fork with one way left is none.
                Some((link_above, parent)) if parent.value.is_none() => {
                    link_above.set(parent.children[1 - bit(bits, parent.len)].share(guard));
                }
                _ => link.set(None),
            },
            [left, right] => link.set(left.or(right)),
        }
        *count -= 1;
        Ok(())
    }
}

impl Node {
    /// The link towards an address that this prefix begins; `None` where there are no more bits.
    fn child(&self, bits: &[u8]) -> Option<&Link<Node>> {
        ((self.len as usize) < self.bits.len() * 8).then(|| &self.children[bit(bits, self.len)])
    }
}

fn one_child(side: usize, node: Option<Arc<Node>>) -> [Option<Arc<Node>>; 2] {
    if side == 0 { [node, None] } else { [None, node] }
}

impl Ops for LpmTrie {
    fn lookup(&self, key: &[u8], out: &mut [u8], _: bool) -> Result<(), Errno> {
        let guard = Guard::pin();
        let value = self.at(key, &guard).ok_or(Errno::ENOENT)?;
        let _ = value.read_bytes(0, &mut out[..self.value_size]);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.store(key, value, flags)
    }

    fn delete(&self, key: &[u8]) -> Result<(), Errno> {
        self.remove(key)
    }

    /// Order: what lies below a prefix comes before it, bit 0 before bit 1. After a key that is not stored: from the first.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), Errno> {
        let guard = Guard::pin();
        // The path to the key's node, if it is stored.
        let mut path: Vec<&Node> = Vec::new();
        let mut found = false;
        if let Some((len, bits)) = key.and_then(|key| self.split(key)) {
            let mut at = self.root.get(&guard);
            while let Some(node) = at.filter(|node| node.len <= len && covers(node, bits)) {
                path.push(node);
                if node.len == len {
                    found = node.value.is_some();
                    break;
                }
                at = node.child(bits).and_then(|link| link.get(&guard));
            }
        }
        let next = if found { self.successor(&path, &guard) } else { self.first_below(&self.root, &guard) };
        let node = next.ok_or(Errno::ENOENT)?;
        out[..4].copy_from_slice(&node.len.to_ne_bytes());
        out[4..4 + self.width].copy_from_slice(&node.bits);
        Ok(())
    }

    fn batches(&self) -> Batches {
        Batches { lookup: true, update: true, delete: true, ..Batches::default() }
    }

    fn value<'g>(&self, _: u32, key: &[u8], guard: &'g Guard) -> Option<ValueRef<'g>> {
        self.at(key, guard)
    }

    fn prog_update(&self, _: u32, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.store(key, value, flags)
    }

    fn prog_delete(&self, _: u32, key: &[u8]) -> Result<(), Errno> {
        self.remove(key)
    }
}

impl LpmTrie {
    /// The first stored prefix, in the order of `next_key`, of the subtree behind a link.
    fn first_below<'g>(&self, link: &Link<Node>, guard: &'g Guard) -> Option<&'g Node> {
        let mut node = link.get(guard)?;
        // Down to a leaf, left where there is a left. A leaf always has a value.
        loop {
            match node.children[0].get(guard).or_else(|| node.children[1].get(guard)) {
                Some(child) => node = child,
                None => return node.value.is_some().then_some(node),
            }
        }
    }

    /// The stored prefix after the last of the path.
    fn successor<'g>(&self, path: &[&'g Node], guard: &'g Guard) -> Option<&'g Node> {
        for pair in path.windows(2).rev() {
            let [parent, child] = pair else { return None };
            if bit(&child.bits, parent.len) == 0
                && let Some(node) = self.first_below(&parent.children[1], guard)
            {
                return Some(node);
            }
            if parent.value.is_some() {
                return Some(parent);
            }
        }
        None
    }
}

/// Whether the node's prefix is a prefix of the address.
fn covers(node: &Node, bits: &[u8]) -> bool {
    common_bits(&node.bits, bits, node.len) == node.len
}

/// How many of the first `limit` bits are the same.
fn common_bits(a: &[u8], b: &[u8], limit: u32) -> u32 {
    let mut common = 0;
    for (a, b) in a.iter().zip(b) {
        let differ = (a ^ b).leading_zeros();
        common += differ;
        if differ < 8 || common >= limit {
            break;
        }
    }
    common.min(limit)
}

/// The bit at a position, counted from the most significant bit of the first byte.
fn bit(bits: &[u8], at: u32) -> usize {
    usize::from(bits.get(at as usize / 8).is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0))
}

//! Bytes in pieces of 8, 4, 2 and 1, as processors load and store them.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types::I64};

use super::Body;

/// The pieces of so many bytes, the longest first: where each begins, and how long it is.
pub(super) fn pieces(len: i32) -> impl Iterator<Item = (i32, i32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|size| *size <= len - at)?;
        at += size;
        Some((at - size, size))
    })
}

impl Body<'_, '_> {
    /// A piece as a number.
    pub(super) fn load_piece(&mut self, flags: MemFlagsData, from: Value, off: i32, size: i32) -> Value {
        let ins = self.b.ins();
        match size {
            8 => ins.load(I64, flags, from, off),
            4 => ins.uload32(flags, from, off),
            2 => ins.uload16(I64, flags, from, off),
            _ => ins.uload8(I64, flags, from, off),
        }
    }

    /// Stores the low bytes of a number.
    pub(super) fn store_piece(&mut self, flags: MemFlagsData, number: Value, to: Value, off: i32, size: i32) {
        let ins = self.b.ins();
        match size {
            8 => ins.store(flags, number, to, off),
            4 => ins.istore32(flags, number, to, off),
            2 => ins.istore16(flags, number, to, off),
            _ => ins.istore8(flags, number, to, off),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_make_up_the_whole() {
        for (len, want) in [(0, vec![]), (1, vec![1]), (7, vec![4, 2, 1]), (8, vec![8]), (22, vec![8, 8, 4, 2])] {
            assert_eq!(pieces(len).map(|(_, size)| size).collect::<Vec<_>>(), want, "{len}");
            let mut next = 0;
            pieces(len).for_each(|(at, size)| next = if at == next { at + size } else { panic!("a gap at {at}") });
            assert_eq!(next, len);
        }
    }
}

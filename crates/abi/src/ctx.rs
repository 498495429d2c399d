//! The program context `struct xdp_md` (`linux/bpf.h`) and what a program may do with its fields.
//!
//! The rules are those of Linux's `xdp_is_valid_access`: a field is read as a whole, four bytes at its own offset; nothing is
//! written by a program that runs on the host.

use crate::XdpAttach;

/// Length of `struct xdp_md`, bytes.
pub const XDP_MD_SIZE: u32 = 24;

/// What a load from a context field gives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtxValue {
    /// Address of the first byte of the packet.
    PacketStart,
    /// Address behind the last byte of the packet's first buffer.
    PacketEnd,
    /// Address of the first byte of the metadata in front of the packet.
    MetaStart,
    /// A number of 32 bits.
    Scalar,
}

/// One field of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CtxField {
    /// Name in the header.
    pub name: &'static str,
    /// Offset, bytes. Every field is four bytes long.
    pub offset: u32,
    /// What a load gives. Pointers are 64 bits wide in the register although the field has 32, and a sign-extending
    /// load of a pointer is refused.
    pub value: CtxValue,
    /// A program loaded for this place only may read it; `None`: any XDP program.
    pub only_for: Option<XdpAttach>,
}

/// The fields of `struct xdp_md`, by rising offset. None may be written. (Linux lets an offloaded program write
/// `rx_queue_index`; there is no such program here.)
pub const XDP_MD: [CtxField; 6] = [
    CtxField { name: "data", offset: 0, value: CtxValue::PacketStart, only_for: None },
    CtxField { name: "data_end", offset: 4, value: CtxValue::PacketEnd, only_for: None },
    CtxField { name: "data_meta", offset: 8, value: CtxValue::MetaStart, only_for: None },
    CtxField { name: "ingress_ifindex", offset: 12, value: CtxValue::Scalar, only_for: None },
    CtxField { name: "rx_queue_index", offset: 16, value: CtxValue::Scalar, only_for: None },
    CtxField { name: "egress_ifindex", offset: 20, value: CtxValue::Scalar, only_for: Some(XdpAttach::Devmap) },
];

/// The field that a load of `size` bytes at `offset` reads, in a program loaded for `place`; `None` when Linux refuses it.
pub const fn ctx_field(offset: i64, size: u32, place: XdpAttach) -> Option<&'static CtxField> {
    if size != 4 || offset < 0 || offset >= XDP_MD_SIZE as i64 || offset % 4 != 0 {
        return None;
    }
    let field = &FIELDS[(offset / 4) as usize];
    match field.only_for {
        Some(only) if only as u32 != place as u32 => None,
        _ => Some(field),
    }
}

static FIELDS: [CtxField; 6] = XDP_MD;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_one_after_the_other() {
        for (i, f) in XDP_MD.iter().enumerate() {
            assert_eq!(f.offset as usize, 4 * i, "{}", f.name);
        }
        assert_eq!(XDP_MD_SIZE, 24);
    }

    #[test]
    fn only_whole_fields_can_be_read() {
        let name = |off, size, place| ctx_field(off, size, place).map(|f| f.name);
        assert_eq!(name(0, 4, XdpAttach::Device), Some("data"));
        assert_eq!(name(20, 4, XdpAttach::Devmap), Some("egress_ifindex"));
        assert_eq!(name(20, 4, XdpAttach::Device), None);
        assert_eq!(name(20, 4, XdpAttach::Cpumap), None);
        for (off, size) in [(0, 8), (0, 2), (2, 4), (24, 4), (-4, 4), (i64::MIN, 4), (i64::MAX, 4)] {
            assert_eq!(name(off, size, XdpAttach::Device), None, "{off} {size}");
        }
    }
}

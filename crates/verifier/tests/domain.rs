//! The abstract numbers at their full width: what they say of random members stays true under every operation.
//!
//! The tests beside the code try everything at a width of four bits. Here an abstract number is made around a few 64-bit
//! numbers, looser or tighter by chance, and the same operation is done on it and on them. The concrete operations are written
//! with the machine's own integers and share nothing with the code that they judge.

use proptest::prelude::*;
use xway_isa::{AluOp, ByteOrder, Cond, Width};
use xway_verifier::domain::range::Range;
use xway_verifier::domain::{Scalar, Tnum, refine};

/// An abstract number and some of its members.
#[derive(Clone, Debug)]
struct Some3 {
    scalar: Scalar,
    members: [u64; 3],
}

const CORNERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Numbers where programs break: corners, small ones of either sign, those of random length.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        proptest::sample::select(CORNERS.to_vec()),
        (-70i64..70).prop_map(|n| n as u64),
        (any::<u64>(), 0u32..64).prop_map(|(n, by)| n >> by),
        any::<u64>(),
    ]
}

/// Numbers near one another, as the values of one variable are; or far apart.
fn members() -> impl Strategy<Value = [u64; 3]> {
    prop_oneof![
        [number(), number(), number()],
        number().prop_map(|n| [n; 3]),
        (number(), 0u64..300, 0u64..300).prop_map(|(n, a, b)| [n, n.wrapping_add(a), n.wrapping_sub(b)]),
        (number(), number()).prop_map(|(n, mask)| [n, n & mask, n & !mask]),
    ]
}

/// How much looser than its members a number is made: bits that are not known, and room at each end of each interval.
#[derive(Clone, Debug)]
struct Slack {
    bits: u64,
    ends: [u64; 8],
    known: [bool; 5],
}

fn slack() -> impl Strategy<Value = Slack> {
    let end = || prop_oneof![Just(0u64), 0u64..16, (any::<u64>(), 0u32..64).prop_map(|(n, by)| n >> by)];
    let ends = [end(), end(), end(), end(), end(), end(), end(), end()];
    let bits = prop_oneof![Just(0u64), (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a & b), any::<u64>()];
    (bits, ends, any::<[bool; 5]>()).prop_map(|(bits, ends, known)| Slack { bits, ends, known })
}

/// The tightest description of the members, loosened; and what the domain makes of it.
fn around(members: [u64; 3], slack: &Slack) -> Some3 {
    let [a, b, c] = members;
    let mask = (a ^ b) | (a ^ c) | slack.bits;
    let tnum = if slack.known[0] { Tnum { value: a & !mask, mask } } else { Tnum::unknown(64) };
    let e = &slack.ends;
    let unsigned = (a.min(b).min(c).saturating_sub(e[0]), a.max(b).max(c).saturating_add(e[1]));
    let s = members.map(|m| m as i64);
    let by = |n: u64| (n >> 1) as i64;
    let signed = (s[0].min(s[1]).min(s[2]).saturating_sub(by(e[2])), s[0].max(s[1]).max(s[2]).saturating_add(by(e[3])));
    let h = members.map(|m| m as u32);
    let low = |n: u64| n.min(u64::from(u32::MAX)) as u32;
    let half = (
        h[0].min(h[1]).min(h[2]).saturating_sub(low(e[4])).into(),
        h[0].max(h[1]).max(h[2]).saturating_add(low(e[5])).into(),
    );
    let hs = h.map(|m| m as i32);
    let by = |n: u64| (low(n) >> 1) as i32;
    let half_signed = (
        hs[0].min(hs[1]).min(hs[2]).saturating_sub(by(e[6])).into(),
        hs[0].max(hs[1]).max(hs[2]).saturating_add(by(e[7])).into(),
    );
    let mut whole = Range::full(64);
    if slack.known[1] {
        (whole.umin, whole.umax) = unsigned;
    }
    if slack.known[2] {
        (whole.smin, whole.smax) = signed;
    }
    let mut low = Range::full(32);
    if slack.known[3] {
        (low.umin, low.umax) = half;
    }
    if slack.known[4] {
        (low.smin, low.smax) = half_signed;
    }
    let scalar = Scalar { tnum, whole, half: low }.reduce().expect("it has members");
    Some3 { scalar, members }
}

fn some3() -> impl Strategy<Value = Some3> {
    (members(), slack()).prop_map(|(m, s)| around(m, &s))
}

fn alu64(op: AluOp, x: u64, y: u64) -> u64 {
    let (sx, sy) = (x as i64, y as i64);
    match op {
        AluOp::Add => x.wrapping_add(y),
        AluOp::Sub => x.wrapping_sub(y),
        AluOp::Mul => x.wrapping_mul(y),
        AluOp::Div => x.checked_div(y).unwrap_or(0),
        AluOp::SDiv => {
            if y == 0 {
                0
            } else {
                sx.wrapping_div(sy) as u64
            }
        }
        AluOp::Or => x | y,
        AluOp::And => x & y,
        AluOp::Lsh => x.wrapping_shl(y as u32),
        AluOp::Rsh => x.wrapping_shr(y as u32),
        AluOp::Mod => x.checked_rem(y).unwrap_or(x),
        AluOp::SMod => {
            if y == 0 {
                x
            } else {
                sx.wrapping_rem(sy) as u64
            }
        }
        AluOp::Xor => x ^ y,
        AluOp::Arsh => sx.wrapping_shr(y as u32) as u64,
    }
}

fn alu32(op: AluOp, x: u32, y: u32) -> u64 {
    let (sx, sy) = (x as i32, y as i32);
    let r = match op {
        AluOp::Add => x.wrapping_add(y),
        AluOp::Sub => x.wrapping_sub(y),
        AluOp::Mul => x.wrapping_mul(y),
        AluOp::Div => x.checked_div(y).unwrap_or(0),
        AluOp::SDiv => {
            if y == 0 {
                0
            } else {
                sx.wrapping_div(sy) as u32
            }
        }
        AluOp::Or => x | y,
        AluOp::And => x & y,
        AluOp::Lsh => x.wrapping_shl(y),
        AluOp::Rsh => x.wrapping_shr(y),
        AluOp::Mod => x.checked_rem(y).unwrap_or(x),
        AluOp::SMod => {
            if y == 0 {
                x
            } else {
                sx.wrapping_rem(sy) as u32
            }
        }
        AluOp::Xor => x ^ y,
        AluOp::Arsh => sx.wrapping_shr(y) as u32,
    };
    r.into()
}

fn holds64(cond: Cond, x: u64, y: u64) -> bool {
    let (sx, sy) = (x as i64, y as i64);
    match cond {
        Cond::Eq => x == y,
        Cond::Ne => x != y,
        Cond::Set => x & y != 0,
        Cond::Gt => x > y,
        Cond::Ge => x >= y,
        Cond::Lt => x < y,
        Cond::Le => x <= y,
        Cond::SGt => sx > sy,
        Cond::SGe => sx >= sy,
        Cond::SLt => sx < sy,
        Cond::SLe => sx <= sy,
    }
}

fn holds(cond: Cond, width: Width, x: u64, y: u64) -> bool {
    match width {
        Width::W64 => holds64(cond, x, y),
        // Sign extension keeps both orders of 32-bit numbers, and which bits two of them share except above.
        Width::W32 if cond == Cond::Set => (x as u32) & (y as u32) != 0,
        Width::W32 => holds64(cond, x as u32 as i32 as u64, y as u32 as i32 as u64),
    }
}

fn endian(order: ByteOrder, bits: u32, x: u64) -> u64 {
    match (order, bits) {
        (ByteOrder::ToLe, 16) => (x as u16).into(),
        (ByteOrder::ToLe, 32) => (x as u32).into(),
        (ByteOrder::ToLe, _) => x,
        (_, 16) => (x as u16).swap_bytes().into(),
        (_, 32) => (x as u32).swap_bytes().into(),
        _ => x.swap_bytes(),
    }
}

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

proptest! {
    #![proptest_config(ProptestConfig { cases: 8000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sharpening_loses_no_member(a in some3()) {
        prop_assert!(a.members.iter().all(|m| a.scalar.contains(*m)), "{a:x?}");
        prop_assert_eq!(a.scalar.reduce().map(|again| a.members.map(|m| again.contains(m))), Some([true; 3]));
    }

    #[test]
    fn arithmetic_holds_every_result(a in some3(), b in some3()) {
        for op in AluOp::ALL {
            for width in WIDTHS {
                let result = a.scalar.alu(op, &b.scalar, width);
                for x in a.members {
                    for y in b.members {
                        let want = match width {
                            Width::W64 => alu64(op, x, y),
                            Width::W32 => alu32(op, x as u32, y as u32),
                        };
                        prop_assert!(result.contains(want), "{op:?} {width:?}: {x:#x}, {y:#x} give {want:#x}\n{result:x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn arithmetic_on_constants_is_exact(x in number(), y in number()) {
        for op in AluOp::ALL {
            let (a, b) = (Scalar::constant(x), Scalar::constant(y));
            prop_assert_eq!(a.alu(op, &b, Width::W64).as_const(), Some(alu64(op, x, y)));
            prop_assert_eq!(a.alu(op, &b, Width::W32).as_const(), Some(alu32(op, x as u32, y as u32)));
        }
    }

    #[test]
    fn negation_and_constant_sums_hold_every_result(a in some3(), c in number()) {
        let (whole, half, sum) = (a.scalar.neg(Width::W64), a.scalar.neg(Width::W32), a.scalar.add_const(c as i64));
        for x in a.members {
            prop_assert!(whole.contains(x.wrapping_neg()), "-{x:#x}: {whole:x?}");
            prop_assert!(half.contains((x as u32).wrapping_neg().into()), "-{x:#x}: {half:x?}");
            prop_assert!(sum.contains(x.wrapping_add(c)), "{x:#x} + {c:#x}: {sum:x?}");
        }
    }

    #[test]
    fn conversions_hold_every_result(a in some3(), bits in 1u32..=64) {
        let cut = a.scalar.truncate(bits);
        for x in a.members {
            prop_assert!(cut.contains(x & (u64::MAX >> (64 - bits))), "{x:#x} to {bits} bits: {cut:x?}");
        }
        for order in [ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap] {
            for bits in [16, 32, 64] {
                let swapped = a.scalar.endian(order, bits);
                for x in a.members {
                    prop_assert!(swapped.contains(endian(order, bits, x)), "{order:?} {bits} {x:#x}: {swapped:x?}");
                }
            }
        }
        for (from, to) in [(8, 32), (16, 32), (8, 64), (16, 64), (32, 64)] {
            let extended = a.scalar.sign_extend(from, to);
            for x in a.members {
                let full = ((x << (64 - from)) as i64 >> (64 - from)) as u64;
                let want = if to == 32 { full & 0xffff_ffff } else { full };
                prop_assert!(extended.contains(want), "{x:#x} from {from} to {to}: {extended:x?}");
            }
        }
    }

    #[test]
    fn a_branch_keeps_whoever_takes_it(a in some3(), b in some3()) {
        for cond in Cond::ALL {
            for width in WIDTHS {
                let ways = [false, true].map(|taken| refine(&a.scalar, &b.scalar, cond, width, taken));
                for x in a.members {
                    for y in b.members {
                        let way = &ways[usize::from(holds(cond, width, x, y))];
                        let kept = way.is_some_and(|(a, b)| a.contains(x) && b.contains(y));
                        prop_assert!(kept, "{x:#x} {cond:?} {y:#x} {width:?}: {way:x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_branch_makes_nothing_looser(a in some3(), b in some3()) {
        for cond in Cond::ALL {
            for (width, taken) in WIDTHS.into_iter().flat_map(|w| [(w, false), (w, true)]) {
                if let Some((left, right)) = refine(&a.scalar, &b.scalar, cond, width, taken) {
                    prop_assert!(a.scalar.includes(&left), "{cond:?} {width:?} {taken}: {left:x?} of {:x?}", a.scalar);
                    prop_assert!(b.scalar.includes(&right), "{cond:?} {width:?} {taken}: {right:x?} of {:x?}", b.scalar);
                }
            }
        }
    }

    #[test]
    fn joins_meets_and_widening_hold_what_they_must(a in some3(), m in members(), s in slack(), which in 0usize..3) {
        // One member is common.
        let mut m = m;
        m[which] = a.members[0];
        let b = around(m, &s);
        let (join, wide) = (a.scalar.join(&b.scalar), b.scalar.widen(&a.scalar));
        prop_assert!(a.members.iter().chain(&b.members).all(|x| join.contains(*x)), "{join:x?}");
        prop_assert!(b.members.iter().all(|x| wide.contains(*x)), "{wide:x?}");
        prop_assert!(a.scalar.meet(&b.scalar).is_some_and(|m| m.contains(a.members[0])));
        if a.scalar.includes(&b.scalar) {
            prop_assert!(b.members.iter().all(|x| a.scalar.contains(*x)));
        }
    }

    #[test]
    fn known_bits_hold_every_result(a in some3(), b in some3(), by in 0u32..64) {
        let (t, u) = (a.scalar.tnum, b.scalar.tnum);
        let low = by % 32;
        for x in a.members {
            for y in b.members {
                prop_assert!(t.add(u, 64).contains(x.wrapping_add(y)));
                prop_assert!(t.sub(u, 64).contains(x.wrapping_sub(y)));
                prop_assert!(t.mul(u, 64).contains(x.wrapping_mul(y)));
                prop_assert!(t.and(u).contains(x & y));
                prop_assert!(t.or(u).contains(x | y));
                prop_assert!(t.xor(u).contains(x ^ y));
            }
            prop_assert!(t.shl(by, 64).contains(x << by));
            prop_assert!(t.shr(by).contains(x >> by));
            prop_assert!(t.sar(by, 64).contains((x as i64 >> by) as u64));
            prop_assert!(t.cast(32).shl(low, 32).contains((x as u32).wrapping_shl(low).into()));
            prop_assert!(t.cast(32).sar(low, 32).contains((x as i32 >> low) as u32 as u64));
            prop_assert!(t.swap_bytes(64).contains(x.swap_bytes()));
            prop_assert!(t.min() <= x && x <= t.max());
        }
        let (min, max) = (a.members.into_iter().min(), a.members.into_iter().max());
        let (Some(min), Some(max)) = (min, max) else { unreachable!("three members") };
        prop_assert!(a.members.iter().all(|x| Tnum::range(min, max).contains(*x)));
    }
}

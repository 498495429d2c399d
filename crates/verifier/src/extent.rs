//! How long the packet is: what is known of it beyond the ranges of single pointers.
//!
//! Four kinds of knowledge, of which Linux keeps the last one only, and that for single registers:
//!
//! * **A least length.** Once `data + 14 <= data_end` was proved, `data_end - 1` is a byte of the packet.
//! * **Rooms.** `len = data_end - data` is a number that *is* the distance between a place and the end. It has a link; all
//!   numbers of that link differ from the distance by a constant. A check of such a number (`len >= 34`) proves bytes
//!   for every pointer that counts from the place, and the number itself may be a length at that place.
//! * **Places.** `p + n` for an unknown `n` is a new place. Of what was proved behind `p` it keeps all but the largest `n`.
//!   When the same `n` is added to the same `p` again, it is the same place, and what was proved about it holds.
//! * **What is disproved.** Behind `if (p > data_end)`, where it holds, the packet ends before `p`. The same comparison made
//!   again has the same outcome.
//!
//! All of it ends when the packet moves. It is compared between states only when something relied on it (`def`), as slots of
//! the stack are.

use xway_isa::{Operand, Reg, Width};

use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::graph::{Def, NONE};
use crate::memory::Access;
use crate::state::State;
use crate::value::{Base, Num, Ptr, Value};

/// No packet is longer: the largest chunk that packet memory is made of (`xway_packet`'s `CHUNK_MAX`; a test holds the two
/// together).
pub const PACKET_LEN_MAX: i64 = 128 * 1024;
/// Places, and rooms, that are remembered at the same time.
const PLACES_MAX: usize = 8;
/// Places behind which the packet is known to end.
const BEYOND_MAX: usize = 4;

/// A distance, which has 33 bits, plus no more than this does not wrap. Only then an order of such sums says something about the
/// distance.
const DELTA_MAX: u64 = 1 << 62;

/// What is known on one path.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Extent {
    /// The packet has at least this many bytes.
    pub least: u32,
    /// Numbers that are distances to the end.
    pub rooms: Vec<Room>,
    /// Sums of a pointer and a number.
    pub places: Vec<Place>,
    /// Marked when something relied on the above.
    pub def: Def,
    /// What lies behind the end.
    pub beyond: Vec<Beyond>,
    /// Marked when something relied on that.
    pub beyond_def: Def,
}

/// The place `id` plus `off` bytes lies behind the end of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beyond {
    pub id: u32,
    pub off: i64,
}

/// A number with this link and delta `d` is `data_end - place + d`, where `place` is where pointers of `id` with offset 0
/// point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub link: u32,
    pub id: u32,
}

/// The place `id` is the place `from` plus the number with this link and delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub from: u32,
    pub link: u32,
    pub delta: i64,
    pub id: u32,
    /// Bytes behind the place that are proved to lie inside the packet.
    pub range: u32,
}

impl Extent {
    /// The packet moved: nothing is known any more.
    pub fn forget(&mut self) {
        *self = Extent { def: self.def, beyond_def: self.beyond_def, ..Extent::default() };
    }

    /// Bytes that the lists hold.
    pub fn bytes(&self) -> usize {
        self.rooms.capacity() * std::mem::size_of::<Room>()
            + self.places.capacity() * std::mem::size_of::<Place>()
            + self.beyond.capacity() * std::mem::size_of::<Beyond>()
    }

    /// The link means more than "equal to others": it must not be dropped when only one number has it.
    pub fn names(&self, link: u32) -> bool {
        self.rooms.iter().any(|r| r.link == link) || self.places.iter().any(|p| p.link == link)
    }

    /// Drops what no number and no pointer can refer to any more; `links` are the links that numbers have, sorted, `ids` the
    /// places from which packet pointers count.
    pub fn clean(&mut self, links: &[u32], ids: &[u32]) {
        self.beyond.retain(|b| ids.contains(&b.id));
        let used = |link: u32| links.binary_search(&link).is_ok();
        self.rooms.retain(|r| used(r.link));
        self.places.retain(|p| used(p.link));
    }
}

impl Verifier<'_> {
    /// Something relied on what is known of the packet's length.
    fn rely_on_extent(&mut self, st: &State) {
        self.graph.mark(st.extent.def);
    }

    /// `p` was found behind the end (`off` 0), or at it or behind it (1).
    pub(crate) fn found_beyond(&mut self, st: &mut State, p: &Ptr, off: i64) {
        if !counts(p) {
            return;
        }
        let off = i64::from(p.off) + off;
        let beyond = &mut st.extent.beyond;
        match beyond.iter_mut().find(|b| b.id == p.id) {
            Some(known) => known.off = known.off.min(off),
            None => {
                if beyond.len() >= BEYOND_MAX {
                    beyond.remove(0);
                }
                beyond.push(Beyond { id: p.id, off });
            }
        }
    }

    /// True when the packet is known to end before the byte `off` behind `p`, so that `p + off <= end` is impossible.
    pub(crate) fn is_beyond(&mut self, st: &State, p: &Ptr, off: i64) -> bool {
        let off = i64::from(p.off) + off;
        let known = counts(p) && st.extent.beyond.iter().any(|b| b.id == p.id && off >= b.off);
        if known {
            self.graph.mark(st.extent.beyond_def);
        }
        known
    }

    /// `data_end + end.off - p`, both of the present packet. In 32 bits it is the same number as long as it has no more and is
    /// not negative; compilers for ISA v3 compute `__u32 len = data_end - data` so.
    pub(crate) fn distance(&mut self, st: &mut State, end: &Ptr, p: &Ptr, width: Width) -> Value {
        let delta = i64::from(end.off) - i64::from(p.off);
        let bounds = counts(p).then(|| far_from_end(st, p, delta));
        let half = width == Width::W32;
        // The difference of two addresses may wrap, a distance in the packet may not: of a place that may lie before the packet or
        // that is too far away nothing is said.
        let Some(s) = bounds.filter(|s| !half || s.umax() <= u32::MAX.into()) else {
            if half {
                self.facts.address_seen();
            }
            return Value::num(Scalar::of_bits(if half { 32 } else { 64 }), NONE);
        };
        self.rely_on_extent(st);
        let link = self.id();
        if st.extent.rooms.len() >= PLACES_MAX {
            st.extent.rooms.remove(0);
        }
        st.extent.rooms.push(Room { link, id: p.id });
        let node = self.graph.op(st.extent.def, NONE);
        Value::Num(Num { s, link, delta, def: node })
    }

    /// A number was bounded by a comparison: when it is a distance to the end, bytes are proved.
    pub(crate) fn number_bounded(&mut self, st: &mut State, n: &Num) {
        let Some(room) = st.extent.rooms.iter().find(|r| n.link != 0 && r.link == n.link).copied() else { return };
        if n.delta.unsigned_abs() > DELTA_MAX {
            return;
        }
        let reach = n.s.smin().saturating_sub(n.delta);
        if reach > 0 {
            self.graph.mark(n.def);
            self.rely_on_extent(st);
            prove(st, room.id, reach.min(PACKET_LEN_MAX) as u32, room.id == 0);
        }
    }

    /// The number behind a register is added to a packet pointer: it gets a link, so that a second sum is recognised.
    pub(crate) fn link_offset(&mut self, st: &mut State, p: &Ptr, n: &Num, src: Operand) -> Num {
        let Operand::Reg(r) = src else { return *n };
        if n.link != 0 || p.base != Base::Packet || n.s.as_const().is_some() || p.var.smin() < 0 {
            return *n;
        }
        let linked = Num { link: self.id(), delta: 0, ..*n };
        st.set(r, Value::Num(linked));
        linked
    }

    /// `q` is `p` plus the number `n`: the place that it points to may be known already, and what is proved behind `p` is
    /// proved behind `q`, less the farthest that `q` may lie from it.
    pub(crate) fn place_of_sum(&mut self, st: &mut State, p: &Ptr, n: &Num, q: &mut Ptr) {
        if q.base != Base::Packet {
            return;
        }
        // The bounds of `n` were marked as relied on when it was added.
        if n.s.smin() >= 0 && p.var.smin() >= 0 {
            q.range = p.range.saturating_sub(u32::try_from(n.s.umax()).unwrap_or(u32::MAX));
        }
        if n.link == 0 {
            return;
        }
        let known = st.extent.places.iter().find(|e| e.from == p.id && e.link == n.link).copied();
        if let Some(e) = known {
            let shift = n.delta.wrapping_sub(e.delta);
            let off = i64::from(p.off).saturating_add(shift);
            let var = n.s.add_const(shift.wrapping_neg());
            if off.unsigned_abs() < crate::alu::OFFSET_MAX.unsigned_abs() && var.smin() >= 0 {
                self.rely_on_extent(st);
                // from + n = from + (n0 + shift) = the known place + shift.
                q.id = e.id;
                q.off = off as i32;
                q.var = p.var.alu(xway_isa::AluOp::Add, &var, xway_isa::Width::W64);
                let carried = if q.range == 0 { 0 } else { i64::from(q.range).saturating_add(shift) };
                q.range = e.range.max(u32::try_from(carried).unwrap_or(0));
            }
            return;
        }
        let places = &mut st.extent.places;
        if places.len() >= PLACES_MAX {
            places.remove(0);
        }
        places.push(Place { from: p.id, link: n.link, delta: n.delta, id: q.id, range: q.range });
    }

    /// True when `n` bytes from `p` are known to end before the packet does, although `n` is not a constant.
    pub(crate) fn length_fits(&mut self, st: &State, p: &Ptr, n: &Num) -> bool {
        if p.base != Base::Packet || p.off < 0 || p.var.smin() < 0 || n.link == 0 || n.s.smin() < 0 {
            return false;
        }
        if n.delta.unsigned_abs() > DELTA_MAX {
            return false;
        }
        let off = i64::from(p.off);
        // n = data_end - place + delta: p + n = data_end + off + delta.
        let room = st.extent.rooms.iter().any(|r| r.link == n.link && r.id == p.id && off.saturating_add(n.delta) <= 0);
        // p + n = place(from) + off + n = place(id) + off + (n.delta - delta). A range of 0 says nothing, not even that the
        // place lies before the end.
        let place = st.extent.places.iter().any(|e| {
            let end = off.saturating_add(n.delta).saturating_sub(e.delta);
            e.link == n.link && e.from == p.id && e.range > 0 && end <= i64::from(e.range)
        });
        if room || place {
            self.graph.mark(n.def);
            self.rely_on_extent(st);
        }
        room || place
    }

    /// `size` bytes at `data_end + off` may be accessed: they end before the end and the packet is long enough.
    pub(crate) fn check_end(&mut self, st: &State, p: &Ptr, off: i64, size: u32, access: Access) -> Result<(), Fail> {
        let at = i64::from(p.off) + off;
        if at + i64::from(size) > 0 {
            return fail!(PacketBounds, "data_end points behind the packet: nothing can be accessed through it");
        }
        let least = i64::from(st.extent.least);
        if least < -at {
            return fail!(
                PacketBounds,
                "{} bytes before data_end are accessed, and the packet is proved to have {least} bytes",
                -at
            )
            .map_err(|e| e.hint(format!("before this access check `if (data + {} > data_end) return …`", -at)));
        }
        self.rely_on_extent(st);
        self.facts.packet_access(PACKET_LEN_MAX as u64, access == Access::Write);
        Ok(())
    }

    /// A number of the running frame, when the register holds one.
    pub(crate) fn number(&self, st: &State, r: Reg) -> Option<Num> {
        st.reg(r).as_num().copied()
    }
}

/// The pointer's place is one of the packet, and so near that sums with it do not wrap.
fn counts(p: &Ptr) -> bool {
    p.base == Base::Packet && p.var.smin() >= 0 && p.var.umax() <= crate::branch::PACKET_OFFSET_MAX
}

/// The distance from the place that `p` counts from to the end, plus `delta`: at least what was proved, at most what a packet can be. A place behind
/// the end is as far away as its offset says.
fn far_from_end(st: &State, p: &Ptr, delta: i64) -> Scalar {
    let known = if p.id == 0 { st.extent.least.max(p.range) } else { p.range };
    let farthest = i64::from(st.extent.least) - p.var.smax();
    let low = if known > 0 || p.id == 0 { farthest.max(known.into()) } else { farthest };
    let high = (PACKET_LEN_MAX - p.var.smin()).max(low);
    Scalar::between_signed(low + delta, high + delta)
}

/// `reach` bytes behind the place `id` lie inside the packet: pointers and sums that count from it know. `inside` says that
/// the place itself is known not to lie before the packet.
pub(crate) fn prove(st: &mut State, id: u32, reach: u32, inside: bool) {
    let mut inside = inside;
    st.replace(|v| match v {
        Value::Ptr(q) if q.id == id && q.base == Base::Packet && !q.nullable && q.var.smin() >= 0 => {
            inside = true;
            // The place is so far from the start that this many bytes still fit into the longest packet.
            let last = Scalar::between(0, PACKET_LEN_MAX as u64 - u64::from(reach).min(PACKET_LEN_MAX as u64));
            let var = q.var.meet(&last).unwrap_or(q.var);
            let more = q.range < reach || var != q.var;
            more.then(|| Value::Ptr(Ptr { range: q.range.max(reach), var, ..*q }))
        }
        _ => None,
    });
    if inside {
        let e = &mut st.extent;
        e.least = e.least.max(reach);
        for p in e.places.iter_mut().filter(|p| p.id == id) {
            p.range = p.range.max(reach);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfg::Cfg;
    use crate::testing::{behind, program};
    use crate::{Config, MapsView};

    const EDGES: [u64; 12] = [
        0,
        1,
        13,
        14,
        1000,
        PACKET_LEN_MAX as u64,
        1 << 31,
        u32::MAX as u64,
        1 << 32,
        1 << 61,
        (1 << 63) - 1001,
        (1 << 63) - 1,
    ];

    /// Offsets of a place, between two edges.
    fn places() -> impl Iterator<Item = (u64, u64)> {
        EDGES.into_iter().enumerate().flat_map(|(n, low)| EDGES[n..].iter().map(move |high| (low, *high)))
    }

    /// Packets with the place of a pointer, both allowed by what is known: (length, offset of the place).
    fn runs(least: u32, range: u32, (low, high): (u64, u64)) -> Vec<(i64, i64)> {
        let lengths = [0, 1, 14, 60, 1000, PACKET_LEN_MAX].into_iter().filter(|len| *len >= least.into());
        let at = EDGES.into_iter().filter(move |v| (low..=high).contains(v)).map(|v| v as i64);
        let all = lengths.flat_map(|len| at.clone().map(move |v| (len, v)));
        all.filter(|(len, v)| range == 0 || v.checked_add(range.into()).is_some_and(|end| end <= *len)).collect()
    }

    #[test]
    fn a_distance_has_its_bounds_and_a_check_of_it_proves_what_is_there() {
        let program = program("r0 = 2\nexit");
        let (config, cfg) = (Config::default(), Cfg::new(&program).ok().unwrap());
        let mut v = Verifier::new(&program, MapsView::empty(), &config, cfg);
        let meter = crate::meter::Meter::default();
        let (mut tried, mut proved, mut halves) = (0, 0, 0);
        let offs = [-9, 0, 20].into_iter().flat_map(|a| [-9, 0, 20].map(|b| (a, b)));
        let known = [(0, 0), (14, 0), (0, 1), (14, 60)];
        for ((low, high), (of_end, of_p)) in places().flat_map(|place| offs.clone().map(move |off| (place, off))) {
            for (least, range) in known {
                let runs = runs(least, range, (low, high));
                let mut st = crate::state::tests::state(&meter);
                st.extent.least = least;
                let var = Scalar::between(low, high);
                let p = Ptr { off: of_p, var, id: 7, range, ..Ptr::to(Base::Packet) };
                st.set(Reg::R2, Value::Ptr(p));
                let end = Ptr { off: of_end, ..Ptr::to(Base::End) };
                let Value::Num(half) = v.distance(&mut st, &end, &p, Width::W32) else { panic!("a number") };
                let Value::Num(n) = v.distance(&mut st, &end, &p, Width::W64) else { panic!("a number") };
                let real = |(len, at): (i64, i64)| (len - at).wrapping_add(i64::from(of_end) - i64::from(of_p));
                for run in &runs {
                    let real = real(*run);
                    assert!(half.s.contains(real as u64 & 0xffff_ffff), "{real} of {run:?}: {half:?} for {p:?}");
                    assert!(half.link == 0 || (0..1 << 32).contains(&real), "{real} of {run:?}: {half:?} for {p:?}");
                }
                halves += u32::from(half.link != 0);
                for run in &runs {
                    let real = real(*run);
                    assert!((n.s.smin()..=n.s.smax()).contains(&real), "{real} of {run:?}: {n:?} for {p:?}");
                }
                for step in [0, -1000, 1000, i64::from(i32::MIN), 1 << 61, i64::MIN, i64::MAX] {
                    for least_now in [1, 14, 900] {
                        let sum = |run: (i64, i64)| real(run).wrapping_add(step);
                        let here: Vec<_> = runs.iter().filter(|run| sum(**run) >= least_now).collect();
                        let checked = n.s.add_const(step).meet(&Scalar::between_signed(least_now, i64::MAX));
                        assert!(checked.is_some() || here.is_empty(), "{here:?} for {n:?} {step:+}");
                        let Some(s) = checked else { continue };
                        let mut after = st.clone();
                        v.number_bounded(&mut after, &Num { s, delta: n.delta.wrapping_add(step), ..n });
                        for (len, at) in here {
                            assert!(i64::from(after.extent.least) <= *len, "{len} {at}: {:?}", after.extent);
                            let q = after.reg(Reg::R2).as_ptr().expect("a pointer");
                            assert!((q.var.umin()..=q.var.umax()).contains(&(*at as u64)), "{len} {at}: {q:?}");
                            assert!(q.range == 0 || at + i64::from(q.range) <= *len, "{len} {at}: {q:?}");
                            tried += 1;
                            proved += u32::from(q.range > range);
                        }
                    }
                }
            }
        }
        assert!(tried > 10_000 && proved > 1_000 && halves > 100, "{tried} {proved} {halves}");
    }

    #[test]
    fn a_place_that_is_too_far_away_has_no_distance() {
        // The number comes from the packet: half of what 64 bits hold.
        let from = |source: &str| {
            format!(
                "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 8\nif r4 > r3 goto out\n{source}\nr4 = r2\nr4 += r6\n\
                 r3 -= r4\nif r3 s< 1 goto out\nr0 = *(u8 *)(r4 +0)\nout: r0 = 2\nexit"
            )
        };
        let wide = from("r6 = *(u64 *)(r2 +0)\nr6 >>= 1");
        assert!(crate::testing::check(&wide, &[]).is_err());
        assert!(crate::testing::check(&wide.replace("if r3", "r3 += -1000\nif r3"), &[]).is_err());
        assert!(crate::testing::check(&from("r6 = *(u32 *)(r2 +0)"), &[]).is_ok());
    }

    #[test]
    fn the_same_comparison_with_the_end_has_the_same_outcome() {
        let start = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 62\nr0 = 0\nr5 = 0\n";
        let mirrored = |cond: &str| match cond {
            ">" => "<",
            ">=" => "<=",
            "<" => ">",
            _ => ">=",
        };
        // (first, second): whether the second one's outcome follows where the first one holds.
        for (first, second, follows) in [(">", ">", true), (">", ">=", true), (">=", ">=", true), (">=", ">", false)] {
            for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
                let compare = |cond: &str, turned: bool, to: &str| match turned {
                    false => format!("if r4 {cond} r3 goto {to}"),
                    true => format!("if r3 {} r4 goto {to}", mirrored(cond)),
                };
                let text = format!(
                    "{start}{}\nr5 = r2\nagain: {}\nr0 = *(u16 *)(r5 +54)\nout: r0 = 2\nexit",
                    compare(first, a, "again"),
                    compare(second, b, "out")
                );
                assert_eq!(crate::testing::check(&text, &[]).is_ok(), follows, "{text}");
            }
        }
        // Another place, a place before it, and a packet that has moved, say nothing.
        let other = |between: &str, refused: bool| {
            let text = format!(
                "{start}r6 = r1\nif r4 > r3 goto again\nr5 = r2\nagain: {between}\nif r4 > r3 goto out\nr0 = *(u16 *)(r5 +54)\nout: r0 = 2\nexit"
            );
            assert_eq!(crate::testing::check(&text, &[]).is_err(), refused, "{text}");
        };
        other("r7 = 1", false);
        other("r4 = r2\nr4 += 63", false);
        other("r4 = r2\nr4 += 61", true);
        other("r7 = *(u32 *)(r1 +16)\nr7 &= 63\nr4 = r2\nr4 += r7", true);
    }

    #[test]
    fn a_length_that_is_compared_proves_bytes() {
        let start = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr3 -= r2\nr0 = 0\nif r3 < 14 goto +1\n";
        assert!(behind(&format!("{start}r0 = *(u8 *)(r2 +13)\nexit"), 5).ends_with("R2=pkt(r=14)"));
    }
}

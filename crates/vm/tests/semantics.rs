//! RFC 9669, operation by operation, at the edges, in each engine. The same operations run against the kernel at random in testkit.

mod common;

use common::{value, value_over};

#[test]
fn arithmetic_at_its_edges() {
    let cases: &[(&str, u64)] = &[
        // 32-bit results are zero-extended.
        ("r0 = -1\nw0 += 0\nexit", 0xffff_ffff),
        ("r0 = -1\nw0 = w0\nexit", 0xffff_ffff),
        ("r0 = -1\nr0 += 1\nexit", 0),
        ("w0 = -1\nw0 += 1\nexit", 0),
        ("r0 = 1\nr0 -= 2\nexit", u64::MAX),
        ("w0 = 1\nw0 -= 2\nexit", 0xffff_ffff),
        ("w0 = 65537\nw0 *= 65537\nexit", 131_073),
        // Division and remainder by zero, by register.
        ("r0 = 7\nr1 = 0\nr0 /= r1\nexit", 0),
        ("r0 = 7\nr1 = 0\nr0 %= r1\nexit", 7),
        ("r0 = -1\nr1 = 0\nw0 %= w1\nexit", 0xffff_ffff),
        ("r0 = -7\nr1 = 0\nr0 s/= r1\nexit", 0),
        ("r0 = -7\nr1 = 0\nr0 s%= r1\nexit", -7i64 as u64),
        // Signed division truncates; its one overflow wraps.
        ("r0 = -13\nr0 s/= 3\nexit", -4i64 as u64),
        ("r0 = -13\nr0 s%= 3\nexit", -1i64 as u64),
        ("r0 = 13\nr0 s/= -3\nexit", -4i64 as u64),
        ("r0 = 13\nr0 s%= -3\nexit", 1),
        ("r0 = 0x8000000000000000\nr1 = -1\nr0 s/= r1\nexit", 1 << 63),
        ("r0 = 0x8000000000000000\nr1 = -1\nr0 s%= r1\nexit", 0),
        ("w0 = -2147483648\nw1 = -1\nw0 s/= w1\nexit", 0x8000_0000),
        ("r0 = -13\nr0 /= 3\nexit", (-13i64 as u64) / 3),
        // Shift counts are masked to the width.
        ("r0 = 1\nr1 = 65\nr0 <<= r1\nexit", 2),
        ("w0 = 1\nw1 = 33\nw0 <<= w1\nexit", 2),
        ("r0 = -1\nr0 >>= 63\nexit", 1),
        ("r0 = -16\nr0 s>>= 2\nexit", -4i64 as u64),
        ("w0 = -16\nw0 s>>= 2\nexit", 0xffff_fffc),
        ("r0 = 5\nr0 = -r0\nexit", -5i64 as u64),
        ("w0 = 5\nw0 = -w0\nexit", 0xffff_fffb),
        // Moves with sign extension.
        ("r1 = 0x180\nr0 = (s8)r1\nexit", 0xffff_ffff_ffff_ff80),
        ("r1 = 0x18000\nr0 = (s16)r1\nexit", 0xffff_ffff_ffff_8000),
        ("r1 = 0x80000000\nr0 = (s32)r1\nexit", 0xffff_ffff_8000_0000),
        ("r1 = 0x180\nw0 = (s8)w1\nexit", 0xffff_ff80),
        // Byte order.
        ("r0 = 0x1122334455667788\nr0 = be16 r0\nexit", 0x8877),
        ("r0 = 0x1122334455667788\nr0 = be32 r0\nexit", 0x8877_6655),
        ("r0 = 0x1122334455667788\nr0 = be64 r0\nexit", 0x8877_6655_4433_2211),
        ("r0 = 0x1122334455667788\nr0 = le16 r0\nexit", 0x7788),
        ("r0 = 0x1122334455667788\nr0 = le32 r0\nexit", 0x5566_7788),
        ("r0 = 0x1122334455667788\nr0 = bswap16 r0\nexit", 0x8877),
        ("r0 = 0x1122334455667788\nr0 = bswap64 r0\nexit", 0x8877_6655_4433_2211),
    ];
    for (text, expected) in cases {
        assert_eq!(value(text), *expected, "{text}");
    }
}

#[test]
fn comparisons() {
    let taken = |head: &str, cond: &str| value(&format!("{head}\nr0 = 1\nif {cond} goto yes\nr0 = 0\nyes:\nexit")) == 1;
    let minus = "r1 = -1\nr2 = 1";
    for (cond, expected) in [
        ("r1 > r2", true),
        ("r1 s> r2", false),
        ("r1 < r2", false),
        ("r1 s< r2", true),
        ("r1 >= r1", true),
        ("r1 s<= r2", true),
        ("r1 & r2", true),
        ("r2 & 2", false),
        ("r1 == -1", true),
        ("w1 == -1", true),
        ("w1 s< 0", true),
        ("w1 > 5", true),
        ("r1 != r2", true),
        ("w2 s>= 1", true),
        ("r2 <= 0", false),
    ] {
        assert_eq!(taken(minus, cond), expected, "{cond}");
    }
    // Only the low halves count.
    let high = "r1 = 0x100000005\nr2 = 5";
    assert!(taken(high, "w1 == w2") && !taken(high, "r1 == r2"));
}

#[test]
fn memory_and_atomics() {
    let mut memory: Vec<u8> = (1..=16).collect();
    let read = |text: &str, memory: &mut [u8]| value_over(&format!("{text}\nexit"), memory);
    assert_eq!(read("r0 = *(u16 *)(r1 +1)", &mut memory), 0x0302);
    assert_eq!(read("*(u8 *)(r1 +3) = 255\nr0 = *(s8 *)(r1 +3)", &mut memory), u64::MAX);
    assert_eq!(read("*(u32 *)(r1 +4) = -2\nr0 = *(s32 *)(r1 +4)", &mut memory), -2i64 as u64);
    assert_eq!(read("*(u64 *)(r1 +8) = -2\nr0 = *(u64 *)(r1 +8)", &mut memory), -2i64 as u64);
    assert_eq!(read("r0 = r2", &mut memory), 16);
    let set = "*(u64 *)(r1 +8) = 6\nr3 = 3\n";
    assert_eq!(read(&format!("{set}r3 = atomic64_fetch_add((u64 *)(r1 +8), r3)\nr0 = r3"), &mut memory), 6);
    assert_eq!(read("r0 = *(u64 *)(r1 +8)", &mut memory), 9);
    assert_eq!(read(&format!("{set}lock *(u64 *)(r1 +8) ^= r3\nr0 = *(u64 *)(r1 +8)"), &mut memory), 5);
    assert_eq!(read(&format!("{set}r3 = atomic64_xchg((u64 *)(r1 +8), r3)\nr0 = r3"), &mut memory), 6);
    let swap = "r0 = 6\nr0 = atomic64_cmpxchg((u64 *)(r1 +8), r0, r3)\n";
    assert_eq!(read(&format!("{set}{swap}"), &mut memory), 6);
    assert_eq!(memory[8], 3);
    assert_eq!(read(&format!("{set}*(u64 *)(r1 +8) = 7\n{swap}"), &mut memory), 7);
    assert_eq!(memory[8], 7);
    assert_eq!(read("r3 = 9\nstore_release((u64 *)(r1 +8), r3)\nr0 = load_acquire((u64 *)(r1 +8))", &mut memory), 9);
}

#[test]
fn what_is_fused_means_what_its_parts_mean() {
    // A jump into the middle of a fused pair runs the second part alone.
    let text = "r1 = 5\nr0 = 7\nif r1 == 5 goto mid\nr0 = r1\nmid:\nr0 += 3\nexit";
    assert_eq!(value(text), 10);
    let text = "r0 = 0x1ffffffff\nr0 <<= 32\nr0 >>= 32\nexit";
    assert_eq!(value(text), 0xffff_ffff);
    let text = "r0 = 0x1ffffffff\nif r0 != 0 goto mid\nr0 <<= 32\nmid:\nr0 >>= 32\nexit";
    assert_eq!(value(text), 1);
    // Load, add, store through memory that is no map value.
    let mut memory = [0xff, 0, 0, 0, 0, 0, 0, 0];
    let ret = value_over("r0 = *(u32 *)(r1 +0)\nr0 += 1\n*(u32 *)(r1 +0) = r0\nexit", &mut memory);
    assert_eq!((ret, memory[0], memory[1]), (256, 0, 1));
}

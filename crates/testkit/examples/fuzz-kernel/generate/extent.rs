//! Lengths, distances to the end and sums of pointers: small programs around what `extent.rs` of the verifier knows.

use xway_testkit::Rng;

/// Numbers at which sums and bounds may wrap.
const FAR: [i64; 12] = [
    -1000,
    1000,
    i32::MIN as i64,
    i32::MAX as i64,
    1 << 31,
    1 << 32,
    1 << 61,
    -(1 << 61),
    i64::MAX,
    i64::MIN,
    i64::MAX - 999,
    (1 << 48) + 1,
];

/// r6 context, r7 data, r8 data_end, r9 a number from the packet; r2 to r5 are worked on, r0 is accessed through. A third of the
/// programs have numbers of up to 64 bits.
pub fn text(rng: &mut Rng) -> String {
    let first = [8, 8, 34, 64, 100][rng.index(5)];
    let far = rng.one_in(3);
    let number = match far {
        false => "r9 = *(u8 *)(r7 +0)",
        true => [
            "r9 = *(u16 *)(r7 +0)",
            "r9 = *(u32 *)(r7 +0)",
            "r9 = *(s32 *)(r7 +0)",
            "r9 = *(u64 *)(r7 +0)",
            "r9 = *(u64 *)(r7 +0)\nr9 >>= 1",
            "r9 = *(u64 *)(r7 +0)\nr9 >>= 1",
            "r9 = *(u64 *)(r7 +0)\nif r9 s< 0 goto out",
            "r9 = *(u64 *)(r7 +0)\nr9 >>= 31",
        ][rng.index(8)],
    };
    let mut text = format!(
        "r6 = r1\n*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\nr7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\nr2 = r7\nr2 += {first}\n\
         if r2 > r8 goto out\n{number}\nr2 = r7\nr3 = r8\nr4 = r9\nr5 = 0\n"
    );
    let mut label = 0;
    for _ in 0..3 + rng.below(12) {
        let r = |rng: &mut Rng| 2 + rng.below(4);
        let (a, b) = (r(rng), r(rng));
        let source = [7, 8, 9, a, b][rng.index(5)];
        let k = [-40i64, -20, -8, -4, -1, 0, 1, 2, 4, 8, 14, 20, 34, 60][rng.index(14)];
        // ISA v3 computes lengths of 32 bits with halves of registers.
        let w = if rng.one_in(5) { "w" } else { "r" };
        match rng.below(14) {
            _ if far && rng.one_in(4) => text.push_str(&match rng.below(4) {
                0 | 1 => format!("r1 = {:#x} ll\nr{a} += r1\n", FAR[rng.index(FAR.len())]),
                2 => format!("r{a} += {}\n", FAR[rng.index(4)]),
                _ => format!("r{a} {} {}\n", [">>=", "s>>="][rng.index(2)], [1, 30, 32, 47, 61][rng.index(5)]),
            }),
            0 | 1 => text.push_str(&format!("{w}{a} = {w}{source}\n")),
            2 | 3 => text.push_str(&format!("{w}{a} -= {w}{source}\n")),
            4 | 5 => text.push_str(&format!("r{a} += r{source}\n")),
            6 | 7 => text.push_str(&format!("{w}{a} += {k}\n")),
            8 => text.push_str(&format!("r{a} <<= 32\nr{a} >>= 32\n")),
            9 => text.push_str(&format!("r{a} &= {}\n", [3, 60, 63, 0xff, 0x7fc][rng.index(5)])),
            10 => text.push_str(&format!("*(u64 *)(r10 -8) = r{a}\nr{b} = *(u64 *)(r10 -8)\n")),
            n => {
                let cond = ["<", "<=", ">", ">=", "s<", "s>", "==", "!="][rng.index(8)];
                let right = if n == 11 { format!("{}", k.abs()) } else { format!("{w}{source}") };
                let target = if rng.below(4) == 0 {
                    label += 1;
                    format!("l{label}")
                } else {
                    "out".to_owned()
                };
                text.push_str(&format!("if {w}{a} {cond} {right} goto {target}\n"));
                if target != "out" {
                    text.push_str(&format!("r{b} += {}\n{target}: r0 = 0\n", k.abs()));
                }
            }
        }
    }
    for _ in 0..1 + rng.below(3) {
        let a = [2, 3, 4, 5, 7, 8][rng.index(6)];
        let off = [-14i64, -4, -1, 0, 1, 4, 13, 20, 33][rng.index(9)];
        let size = ["u8", "u16", "u32"][rng.index(3)];
        if rng.below(4) == 0 {
            text.push_str("r1 = 0\nr2 = 0\nr5 = 0\ncall 28\n");
            break;
        }
        // Some number as an index: sixteen bytes, and above them the end of the stack.
        let index = [2, 3, 4, 5, 9][rng.index(5)];
        text.push_str(&match far && rng.one_in(3) {
            true => format!("r1 = r10\nr1 += -16\nr1 += r{index}\nr0 = *(u8 *)(r1 +0)\n"),
            false => format!("r0 = *({size} *)(r{a} {off:+})\n"),
        });
    }
    text.push_str("out: r0 = 2\nexit");
    text
}

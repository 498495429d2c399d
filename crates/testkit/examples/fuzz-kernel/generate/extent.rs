//! Lengths, distances to the end and sums of pointers: small programs around what `extent.rs` of the verifier knows.

use xway_testkit::Rng;

/// r6 context, r7 data, r8 data_end, r9 a number from the packet; r2 to r5 are worked on, r0 is accessed through.
pub fn text(rng: &mut Rng) -> String {
    let first = [2, 2, 34, 64, 100][rng.index(5)];
    let mut text = format!(
        "r6 = r1\nr7 = *(u32 *)(r6 +0)\nr8 = *(u32 *)(r6 +4)\nr2 = r7\nr2 += {first}\nif r2 > r8 goto out\n\
         r9 = *(u8 *)(r7 +0)\nr2 = r7\nr3 = r8\nr4 = r9\nr5 = 0\n"
    );
    let mut label = 0;
    for _ in 0..3 + rng.below(12) {
        let r = |rng: &mut Rng| 2 + rng.below(4);
        let (a, b) = (r(rng), r(rng));
        let source = [7, 8, 9, a, b][rng.index(5)];
        let k = [-40i64, -20, -8, -4, -1, 0, 1, 2, 4, 8, 14, 20, 34, 60][rng.index(14)];
        match rng.below(14) {
            0 | 1 => text.push_str(&format!("r{a} = r{source}\n")),
            2 | 3 => text.push_str(&format!("r{a} -= r{source}\n")),
            4 | 5 => text.push_str(&format!("r{a} += r{source}\n")),
            6 | 7 => text.push_str(&format!("r{a} += {k}\n")),
            8 => text.push_str(&format!("r{a} <<= 32\nr{a} >>= 32\n")),
            9 => text.push_str(&format!("r{a} &= {}\n", [3, 60, 63, 0xff, 0x7fc][rng.index(5)])),
            10 => text.push_str(&format!("*(u64 *)(r10 -8) = r{a}\nr{b} = *(u64 *)(r10 -8)\n")),
            n => {
                let cond = ["<", "<=", ">", ">=", "s<", "s>", "==", "!="][rng.index(8)];
                let right = if n == 11 { format!("{}", k.abs()) } else { format!("r{source}") };
                let target = if rng.below(4) == 0 {
                    label += 1;
                    format!("l{label}")
                } else {
                    "out".to_owned()
                };
                text.push_str(&format!("if r{a} {cond} {right} goto {target}\n"));
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
        text.push_str(&format!("r0 = *({size} *)(r{a} {off:+})\n"));
    }
    text.push_str("out: r0 = 2\nexit");
    text
}

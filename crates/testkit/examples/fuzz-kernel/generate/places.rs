//! Packet pointers that meet: each way leaves one or two at places of its own, at other constant distances and with other bytes proved,
//! and what lies before and behind them is used where the ways have met. Whether a way may be cut off there is `packet_ptr` of the
//! verifier's `include.rs`.

use xway_testkit::Rng;

/// Constant distances.
const STEPS: [i64; 10] = [0, 1, 2, 4, 4, 8, 8, 14, 16, 20];

/// r7 data, r8 data_end, r9 scratch for decisions; r2 and r3 are the pointers, r4 to r6 numbers.
pub fn text(rng: &mut Rng) -> String {
    let mut text =
        "r7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 14\nif r2 > r8 goto out\nr3 = r2\n".to_owned();
    let two = rng.one_in(3);
    let levels = 1 + u64::from(rng.one_in(3));
    let mut label = 0;
    for level in 0..levels {
        let others = 1 + rng.below(2);
        for way in 0..others {
            let (byte, bit) = (rng.below(14), 1 << rng.below(3));
            text.push_str(&format!("r9 = *(u8 *)(r7 +{byte})\nif r9 & {bit} goto way{level}_{way}\n"));
        }
        for way in 0..=others {
            if way > 0 {
                text.push_str(&format!("way{level}_{}: r0 = 0\n", way - 1));
            }
            pointer(rng, &mut text, 2, &mut label);
            if two {
                match rng.below(3) {
                    0 => text.push_str(&format!("r3 = r2\nr3 += {}\n", step(rng))),
                    _ => pointer(rng, &mut text, 3, &mut label),
                }
            }
            distance(rng, &mut text);
            text.push_str(&format!("goto j{level}\n"));
        }
        text.push_str(&format!("j{level}: r0 = 0\n"));
    }
    if rng.one_in(3) {
        check(rng, &mut text, 2);
    }
    for _ in 0..1 + rng.below(2) {
        let (r, size) = (if two { 2 + rng.below(2) } else { 2 }, ["u8", "u16", "u32", "u64"][rng.index(4)]);
        let off = if rng.one_in(2) { -step(rng) } else { step(rng) };
        text.push_str(&match rng.below(4) {
            0 => format!("*({size} *)(r{r} {off:+}) = 7\n"),
            _ => format!("r0 = *({size} *)(r{r} {off:+})\n"),
        });
    }
    text.push_str("out: r0 = 2\nexit");
    text
}

fn step(rng: &mut Rng) -> i64 {
    STEPS[rng.index(STEPS.len())]
}

/// Enough instructions and jumps that states are kept on the way.
fn distance(rng: &mut Rng, text: &mut String) {
    if !rng.one_in(3) {
        for _ in 0..2 {
            let here = text.len();
            text.push_str(&format!("goto d{here}\nd{here}: r8 = r8\n"));
        }
        (0..6 + rng.below(4)).for_each(|_| text.push_str("r8 = r8\n"));
    }
}

/// A pointer at a place of its own, mostly with something proved about it.
fn pointer(rng: &mut Rng, text: &mut String, r: u64, label: &mut u32) {
    text.push_str(&format!("r{r} = r7\n"));
    for n in 4..4 + rng.below(3) {
        let (size, mask) = (["u8", "u16"][rng.index(2)], [3, 7, 15, 63, 0xffff][rng.index(5)]);
        text.push_str(&format!(
            "r{n} = *({size} *)(r7 +{})\nr{n} &= {mask}\nr{n} += {}\nr{r} += r{n}\n",
            rng.below(13),
            step(rng)
        ));
    }
    if rng.one_in(2) {
        let sign = if rng.one_in(4) { "-" } else { "" };
        text.push_str(&format!("r{r} += {sign}{}\n", step(rng)));
    }
    if !rng.one_in(4) {
        check(rng, text, r);
    }
    if rng.one_in(4) {
        *label += 1;
        text.push_str(&format!(
            "if r{r} {} r8 goto l{label}\nr{r} += {}\nl{label}: r0 = 0\n",
            [">", "<="][rng.index(2)],
            step(rng)
        ));
    }
    if rng.one_in(2) {
        let sign = if rng.one_in(2) { "-" } else { "" };
        text.push_str(&format!("r{r} += {sign}{}\n", step(rng)));
    }
}

/// A comparison with the end, of the pointer or of a sum, or of the distance.
fn check(rng: &mut Rng, text: &mut String, r: u64) {
    text.push_str(&match rng.below(6) {
        0 => format!("r5 = r8\nr5 -= r{r}\nif r5 s< {} goto out\n", step(rng)),
        1 | 2 => format!("if r{r} > r8 goto out\n"),
        _ => format!("r1 = r{r}\nr1 += {}\nif r1 {} r8 goto out\n", step(rng), [">", ">="][rng.index(2)]),
    });
}

//! Ways that meet: each writes the same stack slots and registers in its own lengths, and what they leave is used behind the meeting
//! without a check. Whether a way may be cut off there hangs on what the one before relied on (`include.rs`, `settle.rs` of the
//! verifier), which three ways one behind the other put to the test.

use xway_testkit::Rng;

/// Mostly inside of the value that is looked into, now and then far outside.
const NEAR: [i64; 8] = [0, 0, 1, 2, 3, 5, 7, 15];
const FAR: [i64; 6] = [64, 255, 0x100, 0x10_0000, -1, -8];
const SLOTS: [i64; 2] = [-8, -16];

/// r7 data, r8 data_end, r9 scratch for decisions; r2 to r5 hold numbers.
pub fn text(rng: &mut Rng) -> String {
    let mut text =
        "r7 = *(u32 *)(r1 +0)\nr8 = *(u32 *)(r1 +4)\nr2 = r7\nr2 += 14\nif r2 > r8 goto out\n*(u64 *)(r10 -8) = 3\n\
                    *(u64 *)(r10 -16) = 5\nr2 = 1\nr3 = 2\nr4 = 3\nr5 = 0\n"
            .to_owned();
    let levels = 2 + rng.below(3);
    // Programs in which everything is far away are refused at once.
    let mut far = 1 + rng.below(2);
    let mut label = 0;
    for level in 0..levels {
        text.push_str(&format!("j{level}: r0 = 0\n"));
        distance(rng, &mut text);
        (0..rng.below(4)).for_each(|_| text.push_str(&between(rng)));
        let others = 1 + rng.below(2);
        for way in 0..others {
            let (byte, bit) = (rng.below(14), 1 << rng.below(3));
            text.push_str(&format!("r9 = *(u8 *)(r7 +{byte})\nif r9 & {bit} goto way{}\n", label + way));
        }
        for way in 0..=others {
            if way > 0 {
                text.push_str(&format!("way{}: r0 = 0\n", label + way - 1));
            }
            (0..rng.below(4)).for_each(|_| text.push_str(&write(rng, &mut far)));
            if rng.one_in(3) {
                distance(rng, &mut text);
            }
            // Some ways meet later than others.
            let to = level + 1 + u64::from(rng.one_in(3));
            text.push_str(&match to < levels {
                true => format!("goto j{to}\n"),
                false => "goto end\n".to_owned(),
            });
        }
        label += others;
    }
    text.push_str("end: r0 = 0\n");
    distance(rng, &mut text);
    for _ in 0..1 + rng.below(3) {
        let r = 2 + rng.below(4);
        if !rng.one_in(4) {
            text.push_str(&read(rng, r));
        }
        text.push_str(&format!("r1 = map[idx:9][0]\nr1 += r{r}\nr0 = *(u8 *)(r1 +0)\n"));
    }
    text.push_str("out: r0 = 2\nexit");
    text
}

/// Enough instructions and jumps that states are kept on the way.
fn distance(rng: &mut Rng, text: &mut String) {
    if !rng.one_in(6) {
        for _ in 0..2 {
            let here = text.len();
            text.push_str(&format!("goto d{here}\nd{here}: r8 = r8\n"));
        }
        (0..6 + rng.below(4)).for_each(|_| text.push_str("r8 = r8\n"));
    }
}

fn number(rng: &mut Rng, far: &mut u64) -> String {
    if *far > 0 && rng.one_in(4) {
        *far -= 1;
        return format!("{}", FAR[rng.index(FAR.len())]);
    }
    format!("{}", NEAR[rng.index(NEAR.len())])
}

/// A register or part of a slot gets another number.
fn write(rng: &mut Rng, far: &mut u64) -> String {
    let r = 2 + rng.below(4);
    let value = match rng.below(4) {
        0 | 1 => format!("r{r} = {}\n", number(rng, far)),
        2 => format!("r{r} = *(u8 *)(r7 +{})\nr{r} &= {}\n", rng.below(14), [1, 3, 7, 15][rng.index(4)]),
        _ => format!("r{r} = {:#x} ll\n", [0x1_0000_0001i64, 0x7_0000_0005, 1 << 40][rng.index(3)]),
    };
    match rng.below(8) {
        0 | 1 => value,
        2 => format!("*({} = {}\n", part(rng), NEAR[rng.index(NEAR.len())]),
        _ => format!("{value}*({} = r{r}\n", part(rng)),
    }
}

fn read(rng: &mut Rng, r: u64) -> String {
    format!("r{r} = *({}\n", part(rng))
}

/// What is done with numbers on the way.
fn between(rng: &mut Rng) -> String {
    let (r, s) = (2 + rng.below(4), 2 + rng.below(4));
    match rng.below(6) {
        0 | 1 => read(rng, r),
        2 => format!("{}*({} = r{r}\n", read(rng, r), part(rng)),
        3 => {
            let half = ["r", "w"][rng.index(2)];
            format!("{half}{r} = {half}{s}\n")
        }
        4 => format!("r{r} += {}\n", [0, 1, 2, -1][rng.index(4)]),
        _ => format!("r{r} &= {}\n", [63, 255, 0xffff][rng.index(3)]),
    }
}

/// A slot, or part of one: mostly its lower end.
fn part(rng: &mut Rng) -> String {
    let (name, len) = [("u32", 4), ("u32", 4), ("u64", 8), ("u64", 8), ("u64", 8), ("u8", 1), ("u16", 2)][rng.index(7)];
    let inside = if rng.one_in(4) { len * rng.below(8 / len as u64) as i64 } else { 0 };
    format!("{name} *)(r10 {:+})", SLOTS[rng.index(2)] + inside)
}

//! Callbacks: of loops and of walks over maps, with the caller's stack and its context in their hands.

use std::fmt::Write;

use super::{Mix, Role};

/// What a callback does with the packet: it is the one that moves its bounds, the caller asks for them once more.
const MOVES: [(u32, i64); 8] = [(44, -20), (44, 4), (44, -1), (44, 0), (65, -4), (65, 1), (54, -8), (54, 4)];

impl Mix<'_> {
    pub(super) fn callback(&mut self) {
        let depth = self.rng.below(3);
        // The context and the bytes above it are the callback's.
        self.line("*(u64 *)(r10 -88) = r6");
        let (text, moves) = self.call_back("r10", -88, "r9", depth);
        self.line(&text);
        self.line("r9 += r0");
        if moves {
            self.packet();
        }
    }

    /// A loop or a walk from a function of which this register and number lead to the context in a caller's frame; whether it moves the
    /// packet.
    fn call_back(&mut self, base: &str, at: i64, number: &str, depth: u64) -> (String, bool) {
        let walk = self.rng.one_in(3);
        let (name, moves) = self.called(walk, depth);
        let ctx = |register: u32| format!("r{register} = {base}\nr{register} += {at}");
        if walk {
            // Hashes have an order of their own: what comes of it is seldom compared.
            let map = *self.rng.pick(&[0, 0, 0, 3, 3, 3, 1, 14]);
            return (format!("r1 = map[idx:{map}]\nr2 = subprog[{name}]\n{}\nr4 = 0\ncall 164", ctx(3)), moves);
        }
        let turns = match self.rng.below(4) {
            0 => format!("r1 = {number}\nr1 &= 7"),
            _ => format!("r1 = {}", self.below(6)),
        };
        (format!("{turns}\nr2 = subprog[{name}]\n{}\nr4 = 0\ncall 181", ctx(3)), moves)
    }

    /// A callback: r6 is the turn, or a value of a map; r7 is where the caller keeps the context, with bytes from 24 to 88 behind.
    fn called(&mut self, walk: bool, depth: u64) -> (String, bool) {
        let place = self.functions.len();
        let name = format!("f{place}");
        // Those that are called in here come behind.
        self.functions.push((String::new(), if walk { Role::Element } else { Role::Loop }));
        let end = self.label();
        let mut moves = false;
        let (first, last) = if walk {
            ("r6 = r3\nr7 = r4", *self.rng.pick(&["r0 = 0", "r0 = 0", "r0 = 1"]))
        } else {
            ("r6 = r1\nr7 = r2", "r0 = 0")
        };
        let mut body = format!("{name}: {first}\nr9 = 0\n");
        for _ in 0..1 + self.rng.below(3) {
            let (size_name, size) = self.size();
            let at = 24 + size * self.below(64 / size);
            let _ = match self.rng.below(10) {
                0 if walk => writeln!(body, "r1 = *({size_name} *)(r6 +8)\n*({size_name} *)(r7 +{at}) = r1\nr9 += r1"),
                1 if walk => writeln!(body, "r1 = *({size_name} *)(r7 +{at})\n*({size_name} *)(r6 +8) = r1\nr9 ^= r1"),
                0 | 1 => writeln!(
                    body,
                    "r1 = *(u32 *)(r7 +{})\nr1 += r6\n*(u32 *)(r7 +28) = r1",
                    24 + 4 * self.rng.below(16)
                ),
                2 => writeln!(
                    body,
                    "r1 = *({size_name} *)(r7 +{at})\nr9 += r1\n*(u8 *)(r7 +{}) = r9",
                    24 + self.rng.below(64)
                ),
                3 => {
                    // An end before the last turn.
                    let mask = 1 << self.rng.below(4);
                    writeln!(body, "r1 = *(u8 *)(r7 +{})\nr0 = 1\nif r1 & {mask} goto {end}", 24 + self.rng.below(64))
                }
                4 | 5 => self.in_packet(&mut body),
                6 | 7 => {
                    let (helper, by) = *self.rng.pick(&MOVES);
                    let before = self.rng.one_in(2);
                    if before {
                        let _ = self.in_packet(&mut body);
                    }
                    moves = true;
                    let asked = match self.rng.below(3) {
                        0 => format!("r1 = r0\nr0 = 1\nif r1 != 0 goto {end}"),
                        1 => "r9 += r0".to_owned(),
                        _ => format!("if r0 == 0 goto {0}\nr0 = 1\ngoto {end}\n{0}: r0 = 0", self.label()),
                    };
                    let _ = writeln!(body, "r1 = *(u64 *)(r7 +0)\nr2 = {by}\ncall {helper}\n{asked}");
                    self.in_packet(&mut body)
                }
                8 if depth > 0 => {
                    let (text, inner) = self.call_back("r7", 0, "r9", depth - 1);
                    moves |= inner;
                    writeln!(body, "{text}\nr9 += r0")
                }
                _ => {
                    // A value of a map, by a key on its own stack.
                    let miss = self.label();
                    writeln!(
                        body,
                        "*(u32 *)(r10 -4) = {}\nr2 = r10\nr2 += -4\nr1 = map[idx:3]\ncall 1\nif r0 == 0 goto {miss}\n\
                         r1 = *(u64 *)(r0 +0)\nr1 += 1\n*(u64 *)(r0 +0) = r1\n{miss}: r0 = 0",
                        self.below(3)
                    )
                }
            };
        }
        let _ = writeln!(body, "*(u8 *)(r7 +{}) = r9\n{last}\n{end}: exit", 24 + self.rng.below(64));
        self.functions[place].0 = body;
        (name, moves)
    }

    /// A look at the packet from a callback, with its own check.
    fn in_packet(&mut self, body: &mut String) -> std::fmt::Result {
        let short = self.label();
        let len = *self.rng.pick(&[14, 20, 34]);
        let (name, size) = self.size();
        let at = self.below(len - size + 1);
        let does = if self.rng.one_in(2) { format!("*({name} *)(r8 +{at}) = r9\n") } else { String::new() };
        writeln!(
            body,
            "r1 = *(u64 *)(r7 +0)\nr8 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r8\nr4 += {len}\nif r4 > r3 goto {short}\n\
             r4 = *({name} *)(r8 +{at})\nr9 += r4\n{does}{short}: r0 = 0"
        )
    }
}

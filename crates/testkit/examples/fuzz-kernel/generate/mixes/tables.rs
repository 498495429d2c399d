//! Hashes with a value for each CPU, tries, and maps in maps: looked up, given values, and taken out, in any order.

use super::Mix;

/// Where a key lies: on the stack, or in the packet at r7.
#[derive(Clone, Copy)]
enum Key {
    Stack(i64),
    Packet(i64),
}

impl Key {
    /// A pointer to it in r2.
    fn text(self) -> String {
        match self {
            Key::Stack(at) => format!("r2 = r10\nr2 += {at}"),
            Key::Packet(at) => format!("r2 = r7\nr2 += {at}"),
        }
    }
}

impl Mix<'_> {
    pub(super) fn per_cpu(&mut self) {
        let (map, len) = *self.rng.pick(&[(14, 8), (15, 4)]);
        let key = if self.rng.one_in(4) {
            Key::Packet(self.place(len))
        } else {
            let (name, mask) = (if len == 8 { "u64" } else { "u32" }, *self.rng.pick(&[0, 1, 7]));
            match self.rng.below(3) {
                0 => self.line(&format!("*({name} *)(r10 -72) = {mask}")),
                1 => self.line(&format!("r1 = r9\nr1 &= {mask}\n*({name} *)(r10 -72) = r1")),
                _ => self.line(&format!("r1 = r9\n*({name} *)(r10 -72) = 0\nr1 &= {mask}\n*(u16 *)(r10 -72) = r1")),
            }
            Key::Stack(-72)
        };
        for _ in 0..1 + self.rng.below(4) {
            self.on_map(&format!("map[idx:{map}]"), key, 16);
        }
    }

    /// Prefixes within prefixes of one address.
    pub(super) fn prefixes(&mut self) {
        let (map, bytes, len) = *self.rng.pick(&[(16, 4, 16), (17, 6, 8), (18, 16, 8)]);
        let key = self.address(bytes);
        for _ in 0..1 + self.rng.below(5) {
            if self.rng.one_in(2) {
                self.prefix_length(key, bytes);
            }
            self.on_map(&format!("map[idx:{map}]"), key, len);
        }
    }

    /// A key of a trie.
    fn address(&mut self, bytes: i64) -> Key {
        let key = if self.rng.one_in(4) {
            Key::Packet(self.place(4 + bytes))
        } else {
            // Copied, or a constant with some of the packet's bits at one place.
            let from = if self.rng.one_in(2) { Some(self.place(bytes)) } else { None };
            for n in (0..bytes).step_by(2) {
                match from {
                    Some(from) => {
                        self.line(&format!("r1 = *(u16 *)(r7 +{})\n*(u16 *)(r10 {}) = r1", from + n, n - 108))
                    }
                    None if n % 4 == 0 && bytes - n >= 4 => {
                        self.line(&format!("*(u32 *)(r10 {}) = 0x45000801", n - 108))
                    }
                    None if n % 4 == 0 => self.line(&format!("*(u16 *)(r10 {}) = 0x801", n - 108)),
                    None => {}
                }
            }
            if self.rng.one_in(2) {
                let (at, mask) = (self.below(bytes) - 108, *self.rng.pick(&[1, 3, 0x80, 0xff]));
                self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u8 *)(r10 {at}) = r1"));
            }
            Key::Stack(-112)
        };
        // What the packet has there is mostly too long.
        if matches!(key, Key::Stack(_)) || !self.rng.one_in(8) {
            self.prefix_length(key, bytes);
        }
        key
    }

    fn prefix_length(&mut self, key: Key, bytes: i64) {
        let most = 8 * bytes;
        let lens = [most, most, most, most - 1, most / 2, 0, 1, 7, 8, 9, 13, 15, 16, 17, 31, most + 1];
        let place = match key {
            Key::Stack(at) => format!("(r10 {at})"),
            Key::Packet(at) => format!("(r7 +{at})"),
        };
        if self.rng.one_in(4) {
            let (mask, more) = *self.rng.pick(&[(7, 0), (31, 0), (3, most - 3), (3, 6)]);
            self.line(&format!("r1 = r9\nr1 &= {mask}\nr1 += {more}\n*(u32 *){place} = r1"));
        } else {
            let len = *self.rng.pick(&lens);
            self.line(&format!("*(u32 *){place} = {len}"));
        }
    }

    /// A map that lies in a slot, or none, and what is done with it.
    pub(super) fn inner(&mut self) {
        let outer = *self.rng.pick(&[8, 19, 20, 21]);
        let slot = match self.rng.below(3) {
            0 => Key::Packet(self.place(4)),
            1 => {
                let mask = *self.rng.pick(&[1, 3, 7]);
                self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u32 *)(r10 -72) = r1"));
                Key::Stack(-72)
            }
            _ => {
                let n = self.below(4);
                self.line(&format!("*(u32 *)(r10 -72) = {n}"));
                Key::Stack(-72)
            }
        };
        let key = if self.rng.one_in(4) {
            Key::Packet(self.place(4))
        } else {
            let mask = *self.rng.pick(&[0, 1, 3]);
            self.line(&format!("r1 = r9\nr1 &= {mask}\n*(u32 *)(r10 -80) = r1"));
            Key::Stack(-80)
        };
        let none = self.label();
        self.line(&format!("{}\nr1 = map[idx:{outer}]\ncall 1\nif r0 == 0 goto {none}", slot.text()));
        if self.rng.one_in(2) {
            let miss = self.label();
            self.line(&format!("r1 = r0\n{}\ncall 1\nif r0 == 0 goto {miss}", key.text()));
            self.in_value(16);
            self.line(&format!("{miss}: r0 = 0"));
        } else {
            // The map is kept, and used again.
            self.line("*(u64 *)(r10 -120) = r0");
            for _ in 0..1 + self.rng.below(3) {
                self.on_map("*(u64 *)(r10 -120)", key, 16);
            }
        }
        self.line(&format!("{none}: r0 = 0"));
    }

    /// One thing that is done with a map. No check leads into it: what is proved of the packet stays so.
    fn on_map(&mut self, map: &str, key: Key, len: i64) {
        let key = key.text();
        match self.rng.below(6) {
            0..=2 => {
                let miss = self.label();
                self.line(&format!("{key}\nr1 = {map}\ncall 1\nif r0 == 0 goto {miss}"));
                for _ in 0..1 + self.rng.below(2) {
                    self.in_value(len);
                }
                self.line(&format!("{miss}: r0 = 0"));
            }
            3 => self.line(&format!("{key}\nr1 = {map}\ncall 3\nr9 += r0")),
            _ => {
                let flags = *self.rng.pick(&[0, 0, 0, 1, 2]);
                let value = if self.proved >= len && self.rng.one_in(3) {
                    let at = self.below(self.proved - len + 1);
                    format!("r3 = r7\nr3 += {at}")
                } else {
                    let at = -64 + 8 * self.below((64 - len) / 8 + 1);
                    format!("r3 = r10\nr3 += {at}")
                };
                self.line(&format!("{key}\n{value}\nr4 = {flags}\nr1 = {map}\ncall 2\nr9 += r0"));
            }
        }
    }
}

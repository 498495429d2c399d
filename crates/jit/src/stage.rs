//! `stage`: memory of large maps, fetched for a whole burst before the program asks for it.
//!
//! ```text
//! scout   for each frame: fetches the bucket (or value) that the program will look at     generated, plan/scout.rs
//! fetch   then all elements; in one trie, all look-ups at once                            Map::fetch_ahead, Map::answer_many
//! run     the program over all frames                                                     the burst function
//! ```
//!
//! Results cannot change: a scout writes nothing that anybody else sees, and nothing of what it found goes into the program, answers
//! apart (`lower/answer.rs`), which are used only where the look-up itself would find the same. So there is nothing to prove about
//! the order of effects between frames. `docs/design-notes/staging.md` weighs that against
//! splitting the program in two.
//!
//! Whether it pays depends on how much of a map is in use, which is asked for each burst: a few loads.

use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use xway_abi::MapType;
use xway_maps::Map;

use crate::Options;
use crate::lower::{can_fetch, can_inline};
use crate::plan::Plan;
use crate::plan::scout::{self, Around, In, NOTES_MAX, Scout, VALUE_MAX};

/// Frames that are looked at ahead: the memory that they need fits the first-level cache, and there are enough of them for the
/// waits to pass side by side.
pub(crate) const FRAMES: usize = 64;
/// With fewer frames there is too little to overlap.
const FRAMES_MIN: usize = 4;

/// What was looked up for a frame.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// The key.
    pub key: u64,
    /// The value's address, 0 for none.
    pub value: u64,
}

impl Answer {
    /// Bytes of the keys that are answered.
    pub const KEY: usize = 8;
}

/// Notes of a burst: the frames' notes number `n` begin at `n * FRAMES`.
pub(crate) type Notes = [MaybeUninit<u64>; FRAMES * NOTES_MAX];
/// Answers of a burst.
pub(crate) type Answers = [MaybeUninit<Answer>; FRAMES];

/// What is needed to look ahead.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Offset of the scout in the code.
    pub offset: usize,
    pub targets: Vec<Target>,
    /// The target whose look-ups are made at once.
    pub answered: Option<usize>,
    from: usize,
}

/// A place in the program that memory is fetched for.
#[derive(Debug)]
pub(crate) struct Target {
    pub at: In,
    /// The map that the program names.
    map: Arc<Map>,
    /// The number of its first note.
    pub note: usize,
}

impl Stage {
    /// `answered`: the map, by index, whose look-ups are answered.
    pub fn new(offset: usize, scout: &Scout, maps: &[Arc<Map>], answered: Option<u32>, options: &Options) -> Stage {
        let looks = &scout.targets;
        let target = |(n, at): (usize, &In)| Target {
            at: *at,
            map: maps[at.map() as usize].clone(),
            note: scout::notes(&looks[..n]),
        };
        let targets = looks.iter().enumerate().map(target).collect();
        let from = options.stage_from.unwrap_or_else(second_level);
        Stage { offset, targets, answered: answered.and_then(|map| scout.first_in(map)), from }
    }

    /// Whether the other one does the same, in code that is the same.
    pub fn same_as(&self, other: &Stage) -> bool {
        let looks = |t: &Target| (t.at, Arc::as_ptr(&t.map));
        let rest = |s: &Stage| (s.offset, s.answered, s.from);
        self.targets.iter().map(looks).eq(other.targets.iter().map(looks)) && rest(self) == rest(other)
    }

    /// Whether a burst of so many frames is worth it, as full as the maps are by now.
    #[inline]
    pub fn pays(&self, frames: usize) -> bool {
        (frames >= FRAMES_MIN || self.from == 0) && self.targets.iter().any(|target| target.map.spread() >= self.from)
    }

    /// Fetches what comes behind the lines that the scout has fetched, for a target in the map that the program names.
    pub fn fetch(&self, cpu: u32, target: usize, notes: &[u64]) {
        self.targets[target].map.fetch_ahead(cpu, notes);
    }

    /// Looks up what the notes ask for and gives the map's count of changes; `None`: these answers cannot be used.
    pub fn answer(&self, target: usize, notes: &[u64], answers: &mut Answers) -> Option<u64> {
        self.each_answer(target, notes, |n, answer| {
            answers[n].write(answer);
        })
    }

    /// The same, with each frame's number and its answer handed on.
    fn each_answer(&self, target: usize, notes: &[u64], mut take: impl FnMut(usize, Answer)) -> Option<u64> {
        let each = |n: usize, value: Option<usize>| {
            // A prefix of that length is in no trie.
            const NOTHING: Answer = Answer { key: u64::MAX, value: 0 };
            take(n, value.map_or(NOTHING, |value| Answer { key: notes[n], value: value as u64 }));
        };
        self.targets[target].map.answer_many(notes, each)
    }
}

/// The map of a program whose look-ups are made for a whole burst: the first trie with short keys among the targets.
pub(crate) fn answered(scout: &Scout, maps: &[Arc<Map>]) -> Option<u32> {
    let trie = |map: &Map| map.map_type() == MapType::LpmTrie && map.key_size() == Answer::KEY;
    scout.targets.iter().rev().find(|at| **at == In::Map(at.map()) && trie(&maps[at.map() as usize])).map(|at| at.map())
}

/// The scout of a program, if some map may outgrow the cache.
pub(crate) fn scout(plan: &Plan, maps: &[Arc<Map>], options: &Options) -> Option<Scout> {
    let from = options.stage_from.unwrap_or_else(second_level);
    let large: Vec<bool> = maps.iter().map(|map| map.spread_max() > from).collect();
    if !(options.stage && options.burst && options.inline_lookups && large.contains(&true)) {
        return None;
    }
    plan.funcs.first()?;
    let inline = |call: &_| can_inline(call, maps, options);
    let fetch = |call: &_| can_fetch(call, maps);
    scout::scout(plan, &mut Around::new(maps, &large, &inline, &fetch))
}

/// Address of what a scout takes for a value: zeros.
pub(crate) fn zeros() -> u64 {
    #[repr(align(64))]
    struct Zeros([u8; VALUE_MAX]);
    static ZEROS: Zeros = Zeros([0; VALUE_MAX]);
    ZEROS.0.as_ptr() as u64
}

/// Bytes of the second-level cache; a megabyte where the system does not say.
fn second_level() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
        let kib = text.trim().strip_suffix('K').and_then(|k| k.parse::<usize>().ok());
        kib.map_or(1 << 20, |kib| kib << 10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compiled, RunEnv, compile};
    use xway_abi::{MapSpec, map_flags};
    use xway_maps::native::{self, MapLayout};
    use xway_maps::{Env, Guard};
    use xway_object::{MapDef, Program};
    use xway_packet::{Frame, Pool, PoolConfig};
    use xway_verifier::{Config, MapsView};
    use xway_vm::FixedHost;

    use crate::plan::scout::TURNS_MAX;

    fn trie() -> MapSpec {
        MapSpec { flags: map_flags::NO_PREALLOC, ..MapSpec::new(MapType::LpmTrie, 8, 8, 64) }
    }

    /// A program with these maps, staged however small they are.
    fn staged(text: &str, maps: &[(MapSpec, Arc<Map>)], options: Options) -> Arc<Compiled> {
        let insns = xway_isa::assemble(text).unwrap();
        let image = Program { name: "asks".into(), section: "xdp".into(), insns, ..Program::default() };
        let defs: Vec<MapDef> = maps.iter().map(|(spec, _)| MapDef::new("of the test", spec.clone())).collect();
        let view = MapsView { maps: &defs, btf: None, kernel: None, license: Some("GPL") };
        let maps: Vec<Arc<Map>> = maps.iter().map(|(_, map)| map.clone()).collect();
        let program = xway_vm::Program::verify(&image, &maps, &view, &Config::default()).unwrap();
        let options = Options { stage_from: Some(0), check: true, ..options };
        compile(&program, program.proof().unwrap(), &options).unwrap()
    }

    fn map(spec: MapSpec) -> (MapSpec, Arc<Map>) {
        let map = Map::create(&spec, &Env::with_cpus(1)).unwrap();
        (spec, map)
    }

    /// Answers lie on the stack of whoever ran the burst, so nobody may find them behind it: not the next burst of the same
    /// environment, which may be of another program.
    #[test]
    fn answers_are_gone_behind_their_burst() {
        let routes = map(trie());
        routes.1.update(&[8, 0, 0, 0, 10, 0, 0, 0], &[7; 8], 0).unwrap();
        let text = "r1 = *(u32 *)(r1 +12)\n*(u32 *)(r10 -8) = 32\n*(u32 *)(r10 -4) = 10\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\n\
                    call 1\nif r0 == 0 goto out\nr0 = 2\nout: exit";
        let code = staged(text, &[routes], Options::default());
        assert_eq!(code.staged().count(), 1);
        let mut pool = Pool::new(PoolConfig::new(8)).unwrap();
        let mut frames: Vec<Frame> = (0..8).map(|_| pool.alloc().unwrap()).collect();
        let (guard, host, mut verdicts) = (Guard::pin(), FixedHost::new(1), [0; 8]);
        let mut env = RunEnv::new(&guard, &host, 0);
        code.run_burst(&mut frames, &mut env, &mut verdicts).unwrap();
        assert_eq!(verdicts, [2; 8]);
        assert!(env.answers.is_null());
        drop(env);
        frames.into_iter().for_each(|frame| pool.release(frame));
    }

    /// Each frame has so many turns in loops, whatever the one before it had; behind them stands the note of the key that the loop came
    /// to, and of a frame that would turn more often there is none. The program itself has as many turns as it wants.
    #[test]
    fn each_frame_has_its_own_turns() {
        // Looks for a byte of seven; the key is made of the one behind it and of all that were passed by.
        let text = "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr8 = 0\nr9 = 0\nr0 = 1\nnext: r2 = r6\nr2 += 2\nif r2 > r7 goto out\n\
                    r3 = *(u8 *)(r6 +0)\nif r3 == 7 goto here\nr8 += r3\nr6 += 1\nr9 += 1\nif r9 < 100 goto next\ngoto out\n\
                    here: r3 = *(u8 *)(r6 +1)\nr8 <<= 8\nr8 |= r3\n*(u64 *)(r10 -8) = r8\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\n\
                    call 1\nr0 = r9\nout: exit";
        let flows = map(MapSpec::new(MapType::Hash, 8, 8, 64));
        let MapLayout::Hash(table) = flows.1.layout() else { panic!("a hash table") };
        let maps = [flows];
        // So many bytes in front of the seven: many and few by turns.
        let front = |n: usize| n * 37 % FRAMES;
        let packet = |n: usize| [vec![n as u8 ^ 64; front(n)], vec![7, n as u8 + 1]].concat();
        let mut pool = Pool::new(PoolConfig::new(FRAMES as u32)).unwrap();
        let mut frames: Vec<Frame> = (0..FRAMES).map(|_| pool.alloc().unwrap()).collect();
        frames.iter_mut().enumerate().for_each(|(n, frame)| frame.fill(&packet(n)).unwrap());
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        for unroll in [false, true] {
            // A turn of a loop that is taken apart is several of the program's.
            let most = if unroll { FRAMES } else { TURNS_MAX as usize };
            let code = staged(text, &maps, Options { unroll, ..Options::default() });
            let [stage] = code.stages() else { panic!("one program") };
            let (mut env, mut noted) = (RunEnv::new(&guard, &host, 0), 0);
            code.each_notes(stage, &mut frames, &mut env, |_, _, notes, _| {
                for (n, note) in notes.iter().enumerate() {
                    let key = (front(n) * (n ^ 64)) << 8 | (n + 1);
                    let hash = native::hash(table.seed, &(key as u64).to_ne_bytes());
                    let want = if front(n) <= most { hash } else { 0 };
                    assert_eq!(*note, want, "frame {n}, {} turns, unroll: {unroll}", front(n));
                    noted += usize::from(*note != 0);
                }
            });
            assert_eq!(noted, FRAMES.min(most + 1));
            let mut verdicts = [0; FRAMES];
            code.run_burst(&mut frames, &mut env, &mut verdicts).unwrap();
            assert_eq!(verdicts, std::array::from_fn(|n| front(n) as u64));
        }
        frames.into_iter().for_each(|frame| pool.release(frame));
    }

    /// Where inner maps are looked in, the notes say in which, and are made with its secrets.
    #[test]
    fn notes_of_inner_maps_say_which() {
        // The slot is a byte of the packet, the key stands behind it.
        let text = "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 16\nr0 = 1\nif r2 > r7 goto out\n\
                    r1 = *(u64 *)(r6 +8)\n*(u64 *)(r10 -8) = r1\nr1 = *(u8 *)(r6 +0)\n*(u32 *)(r10 -12) = r1\nr2 = r10\nr2 += -12\n\
                    r1 = map[idx:0]\ncall 1\nif r0 == 0 goto out\nr2 = r10\nr2 += -8\nr1 = r0\ncall 1\nr0 = 2\nout: exit";
        for (outer, inner) in [
            (MapType::ArrayOfMaps, MapType::Hash),
            (MapType::HashOfMaps, MapType::LruHash),
            (MapType::ArrayOfMaps, MapType::PercpuHash),
            (MapType::HashOfMaps, MapType::LruPercpuHash),
        ] {
            let template = MapSpec::new(inner, 8, 8, 64);
            let tables = map(MapSpec { inner: Some(Box::new(template.clone())), ..MapSpec::new(outer, 4, 4, 8) });
            let inner: Vec<Arc<Map>> = (0..3).map(|_| map(template.clone()).1).collect();
            // The second slot has none.
            for (slot, map) in [0u32, 2, 3].iter().zip(&inner) {
                tables.1.set_inner(&slot.to_ne_bytes(), map.clone()).unwrap();
            }
            let in_slot = |slot: usize| [Some(&inner[0]), None, Some(&inner[1]), Some(&inner[2])][slot];
            let code = staged(text, std::slice::from_ref(&tables), Options::default());
            let [stage] = code.stages() else { panic!("one program") };
            assert_eq!(stage.targets.iter().map(|target| target.at).collect::<Vec<_>>(), [In::InnerOf(0)]);
            let mut pool = Pool::new(PoolConfig::new(FRAMES as u32)).unwrap();
            let mut frames: Vec<Frame> = (0..FRAMES).map(|_| pool.alloc().unwrap()).collect();
            let slot = |n: usize| n * 5 / 3 % 4;
            let key = |n: usize| [slot(n) as u8, 7, n as u8, 0, 0, 0, 9, 1];
            let packet = |n: usize| [[slot(n) as u8; 8], key(n)].concat();
            frames.iter_mut().enumerate().for_each(|(n, frame)| frame.fill(&packet(n)).unwrap());
            let (guard, host) = (Guard::pin(), FixedHost::new(1));
            let (mut env, mut noted) = (RunEnv::new(&guard, &host, 0), 0);
            code.each_notes(stage, &mut frames, &mut env, |_, _, notes, maps| {
                for (n, (note, at)) in notes.iter().zip(maps.expect("inner maps")).enumerate() {
                    let want = in_slot(slot(n)).map_or((0, 0), |map| {
                        let MapLayout::Hash(table) = map.layout() else { panic!("a hash table") };
                        (native::hash(table.seed, &key(n)), Arc::as_ptr(map) as u64)
                    });
                    assert_eq!((*note, *at), want, "frame {n}");
                    noted += usize::from(*at != 0);
                }
            });
            assert_eq!(noted, (0..FRAMES).filter(|n| slot(*n) != 1).count());
            let mut verdicts = [0; FRAMES];
            code.run_burst(&mut frames, &mut env, &mut verdicts).unwrap();
            assert_eq!(verdicts, std::array::from_fn(|n| if slot(n) == 1 { 0 } else { 2 }));
            frames.into_iter().for_each(|frame| pool.release(frame));
        }
    }

    /// Of two look-ups in one trie the first is answered; what is fetched for the other takes notes of the other kind.
    #[test]
    fn each_look_up_in_a_trie_has_the_notes_that_it_takes() {
        let ask = |offset: u32| {
            format!(
                "*(u32 *)(r10 -8) = 32\nr1 = *(u32 *)(r6 +{offset})\n*(u32 *)(r10 -4) = r1\nr2 = r10\nr2 += -8\n\
                 r1 = map[idx:0]\ncall 1\n"
            )
        };
        let (from, to) = (ask(0), ask(4));
        let text = format!(
            "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 8\nr0 = 1\nif r2 > r7 goto out\n{from}{to}r0 = 2\nout: exit"
        );
        let code = staged(&text, &[map(trie())], Options::default());
        let [stage] = code.stages() else { panic!("one program") };
        let mut pool = Pool::new(PoolConfig::new(4)).unwrap();
        let mut frames: Vec<Frame> = (0..4).map(|_| pool.alloc().unwrap()).collect();
        let packet = |n: usize| [10, n as u8, 1, 1, 10, 200, n as u8, 9];
        frames.iter_mut().enumerate().for_each(|(n, frame)| frame.fill(&packet(n)).unwrap());
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        let mut env = RunEnv::new(&guard, &host, 0);
        let mut targets = vec![];
        code.each_notes(stage, &mut frames, &mut env, |_, target, notes, _| {
            let answered = stage.answered == Some(target);
            targets.push(answered);
            for (n, note) in notes.iter().enumerate() {
                let packet = packet(n);
                let asked = |at: usize| {
                    let address: [u8; 4] = packet[at..at + 4].try_into().unwrap();
                    let word = u64::from_ne_bytes([[32, 0, 0, 0], address].concat().try_into().unwrap());
                    if answered { word } else { u64::from(u32::from_be_bytes(address)) << 32 | 1 }
                };
                assert_eq!(*note, asked(4 * target), "target {target}, frame {n}");
            }
        });
        assert_eq!(targets, [true, false]);
        frames.into_iter().for_each(|frame| pool.release(frame));
    }

    /// Notes are hints, so that mixing them up would change no result and only cost what staging gains: each stands at the place of
    /// its target and its frame, in bursts that run whole and in parts, and each answer is the one to its frame's question.
    #[test]
    fn notes_and_answers_stand_with_their_frames() {
        let text = "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 34\nr0 = 1\nif r2 > r7 goto out\n\
                    r1 = *(u64 *)(r6 +26)\n*(u64 *)(r10 -8) = r1\nr2 = r10\nr2 += -8\nr1 = map[idx:0]\ncall 1\n\
                    *(u32 *)(r10 -16) = 32\nr1 = *(u32 *)(r6 +30)\n*(u32 *)(r10 -12) = r1\nr2 = r10\nr2 += -16\n\
                    r1 = map[idx:1]\ncall 1\nr0 = 2\nout: exit";
        let (flows, routes) = (map(MapSpec::new(MapType::Hash, 8, 8, 64)), map(trie()));
        let MapLayout::Hash(table) = flows.1.layout() else { panic!("a hash table") };
        let packet = |n: usize| [[n as u8; 26].as_slice(), &[n as u8, 3, 1, 4, 10, n as u8, 5, 9]].concat();
        // Every second frame's address has a route of its own.
        for n in (0..FRAMES).step_by(2) {
            routes.1.update(&[&[32, 0, 0, 0], &packet(n)[30..]].concat(), &[n as u8; 8], 0).unwrap();
        }
        let maps = [flows, routes];
        let mut pool = Pool::new(PoolConfig::new(FRAMES as u32)).unwrap();
        let mut frames: Vec<Frame> = (0..FRAMES).map(|_| pool.alloc().unwrap()).collect();
        frames.iter_mut().enumerate().for_each(|(n, frame)| frame.fill(&packet(n)).unwrap());
        let (guard, host) = (Guard::pin(), FixedHost::new(1));
        for cold in [false, true] {
            let code = staged(text, &maps, Options { cold: Some(cold), ..Options::default() });
            let [stage] = code.stages() else { panic!("one program") };
            let mut targets: Vec<u32> = stage.targets.iter().map(|target| target.at.map()).collect();
            targets.sort_unstable();
            assert_eq!(targets, [0, 1]);
            let mut env = RunEnv::new(&guard, &host, 0);
            let mut asked = vec![];
            code.each_notes(stage, &mut frames, &mut env, |_, target, notes, _| {
                assert_eq!(notes.len(), FRAMES);
                for (n, note) in notes.iter().enumerate() {
                    let want = match stage.targets[target].at.map() {
                        0 => native::hash(table.seed, &packet(n)[26..]),
                        _ => u64::from_ne_bytes([&[32, 0, 0, 0], &packet(n)[30..]].concat().try_into().unwrap()),
                    };
                    assert_eq!(*note, want, "target {target}, frame {n}, cold: {cold}");
                }
                if stage.answered == Some(target) {
                    asked = notes.to_vec();
                }
            });
            let (mut answered, trie) = (0, stage.answered.expect("a trie with keys of eight bytes"));
            let count = stage.each_answer(trie, &asked, |n, answer| {
                let value = maps[1].1.value(0, &asked[n].to_ne_bytes(), &guard).map(|v| v.addr() as u64);
                assert_eq!(value.is_some(), n % 2 == 0, "frame {n}");
                assert_eq!((answer.key, answer.value), (asked[n], value.unwrap_or(0)), "frame {n}");
                answered += 1;
            });
            assert_eq!((answered, count.is_some()), (FRAMES, true), "nobody writes");
        }
        frames.into_iter().for_each(|frame| pool.release(frame));
    }
}

//! The comparison: same object, same map contents, same packets, on both sides.

use std::sync::Arc;

use xway_object::{LoadOptions, Object};
use xway_testkit::diff_bytes;
use xway_testkit::packets::{Named, mixed_set};

use crate::side::{Contents, Engine, InKernel, Ours, Side, contents};

/// What is put into maps before the first packet, on both sides.
#[derive(Clone)]
pub enum Fill {
    /// A value: map, key, value.
    Value(&'static str, Vec<u8>, Vec<u8>),
    /// The same 64-bit number for every CPU of a per-CPU map, or the one value of another map.
    Number(&'static str, Vec<u8>, u64),
    /// A program into a PROG_ARRAY: map, key, function.
    Program(&'static str, u32, &'static str),
}

/// An object under comparison.
pub struct Subject {
    /// For messages.
    pub name: String,
    pub object: Arc<Object>,
    pub fills: Vec<Fill>,
}

impl Subject {
    /// Reads an object file for the running kernel.
    pub fn read(name: &str, bytes: &[u8]) -> Subject {
        let options = LoadOptions { target_btf: xway_kernel::vmlinux(), ..LoadOptions::default() };
        let object = Object::parse(bytes, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        Subject { name: name.to_owned(), object: Arc::new(object), fills: Vec::new() }
    }

    pub fn fill(mut self, fills: impl IntoIterator<Item = Fill>) -> Subject {
        self.fills.extend(fills);
        self
    }

    /// Changes the object before it is loaded.
    pub fn patch(mut self, change: impl FnOnce(&mut Object)) -> Subject {
        change(Arc::make_mut(&mut self.object));
        self
    }
}

/// What a comparison did, for the summary, and what it found.
#[derive(Default)]
pub struct Report {
    /// Programs that ran on both sides.
    pub programs: Vec<String>,
    /// Programs that the kernel refused, with its reason.
    pub refused: Vec<(String, String)>,
    /// Runs that were compared.
    pub runs: usize,
    /// Maps whose contents were compared.
    pub maps: usize,
    /// Programs that an engine of ours does not take, with its reason.
    pub not_compiled: Vec<(String, String)>,
    /// Everything that differed.
    pub differences: Vec<String>,
}

/// Held against the kernel where whole sets of packets run; and where one packet runs at a time.
const IN_SETS: [Engine; 3] = [Engine::Interpreter, Engine::Single, Engine::Burst];
const ONE_BY_ONE: [Engine; 2] = [Engine::Interpreter, Engine::Single];

/// What a program of ours leaves in a map when the kernel answered `ENOMEM`. The kernel allocates without waiting inside of
/// programs (timers, elements), which fails now and then on a machine under load; then the same is asked again.
const NO_MEMORY: &str = "kernel f4ffffffffffffff";
/// How often it is asked at most.
const ATTEMPTS: u32 = 20;

impl Report {
    /// Runs every program of the subject over the mixed set, each with maps of its own, and adds what came of it.
    pub fn add(&mut self, subject: &Subject) {
        self.add_with(subject, &mixed_set());
    }

    /// As [`Report::add`], over other packets.
    pub fn add_with(&mut self, subject: &Subject, packets: &[Named]) {
        xway_testkit::stay_on_cpu_0();
        for (index, program) in subject.object.programs.iter().enumerate() {
            for engine in IN_SETS {
                self.add_program(subject, index, &program.name, engine, packets);
            }
        }
    }

    fn add_program(&mut self, subject: &Subject, index: usize, program: &str, engine: Engine, packets: &[Named]) {
        let name = format!("{}:{program}", subject.name);
        let mut kernel = match InKernel::load(&subject.object) {
            Ok(kernel) => kernel,
            Err(error) => {
                if engine == Engine::Interpreter {
                    self.refused.push((name, error.to_string()));
                }
                return;
            }
        };
        if let Err(error) = &kernel.loaded.programs[index] {
            if engine == Engine::Interpreter {
                self.refused.push((name, error.to_string()));
            }
            return;
        }
        let name = format!("{name} ({engine:?})");
        for attempt in 1.. {
            let mut ours = match Ours::load(&subject.object, index, engine) {
                Ok(ours) => ours,
                Err(why) => return self.not_compiled.push((name, why)),
            };
            fill(subject, &kernel);
            fill(subject, &ours);
            let before = self.differences.len();
            for packet in packets {
                self.run(&name, index, packet, &mut ours, &mut kernel);
            }
            for map in 0..subject.object.maps.len() {
                self.map(&name, &subject.object, map, &ours, &kernel);
            }
            let short = self.differences[before..].iter().any(|text| text.contains(NO_MEMORY));
            if !short || attempt == ATTEMPTS {
                break;
            }
            println!("asked again: {name}: the kernel had no memory for a moment");
            self.differences.truncate(before);
            std::thread::sleep(std::time::Duration::from_millis(200));
            kernel = InKernel::load(&subject.object).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        self.programs.push(name);
    }

    /// Runs one program of the subject, and compares maps after every packet instead of at the end.
    pub fn add_each(&mut self, subject: &Subject, program: &str, packets: &[Named]) {
        xway_testkit::stay_on_cpu_0();
        let index = subject.object.programs.iter().position(|p| p.name == program).expect("a program of this name");
        for engine in ONE_BY_ONE {
            self.add_each_with(subject, program, index, engine, packets);
        }
    }

    fn add_each_with(&mut self, subject: &Subject, program: &str, index: usize, engine: Engine, packets: &[Named]) {
        let name = format!("{}:{program} ({engine:?})", subject.name);
        let mut kernel = InKernel::load(&subject.object).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(error) = &kernel.loaded.programs[index] {
            panic!("{name}: {error}");
        }
        let mut ours = match Ours::load(&subject.object, index, engine) {
            Ok(ours) => ours,
            Err(why) => return self.not_compiled.push((name, why)),
        };
        for packet in packets {
            let before = self.differences.len();
            self.run(&name, index, packet, &mut ours, &mut kernel);
            for map in 0..subject.object.maps.len() {
                self.map(&name, &subject.object, map, &ours, &kernel);
            }
            if self.differences.len() > before {
                self.differences.push(format!("  the packet was {}", xway_testkit::hex(&packet.bytes)));
            }
        }
        self.programs.push(name);
    }

    fn run(&mut self, name: &str, program: usize, packet: &Named, ours: &mut dyn Side, kernel: &mut dyn Side) {
        let (a, b) = (ours.run(program, &packet.bytes), kernel.run(program, &packet.bytes));
        self.runs += 1;
        if a == b {
            return;
        }
        let mut text = format!("{name} over {:?}: ours {} kernel {}\n", packet.name, a.ret, b.ret);
        text.extend(a.fault.iter().map(|fault| format!("{fault}\n")));
        text.extend(diff_bytes("ours", &a.bytes, "kernel", &b.bytes));
        self.differences.push(text);
    }

    fn map(&mut self, name: &str, object: &Object, map: usize, ours: &dyn Side, kernel: &dyn Side) {
        let (Some(a), Some(b)) = (contents(ours, object, map), contents(kernel, object, map)) else { return };
        self.maps += 1;
        if a != b {
            let text = format!("{name}: map {} differs\n{}", object.maps[map].name, unlike(&a, &b));
            self.differences.push(text);
        }
    }

    /// Fails the test when something differed; otherwise prints what was compared.
    pub fn finish(self, what: &str) {
        let Report { programs, refused, runs, maps, not_compiled, differences } = self;
        println!("{what}: {} programs, {runs} runs and {maps} maps compared", programs.len());
        for (name, why) in &refused {
            println!("refused by the kernel: {name}: {}", why.lines().next().unwrap_or_default());
        }
        for (name, why) in &not_compiled {
            println!("not compiled: {name}: {why}");
        }
        let shown = differences.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(differences.is_empty(), "{what}: {} differences\n{shown}", differences.len());
        assert!(runs > 0, "{what}: nothing was compared: {refused:?}");
    }
}

fn fill(subject: &Subject, side: &dyn Side) {
    let object = &subject.object;
    let map = |name: &str| {
        object.maps.iter().position(|m| m.name == name).unwrap_or_else(|| panic!("{}: no map {name}", subject.name))
    };
    for fill in &subject.fills {
        match fill {
            Fill::Value(name, key, value) => put(side, name, map(name), key, value),
            Fill::Number(name, key, number) => {
                let value = number.to_ne_bytes().repeat(xway_kernel::possible_cpus() as usize);
                put(side, name, map(name), key, &value);
            }
            Fill::Program(name, key, function) => {
                let program = object.programs.iter().position(|p| p.name == *function).expect("a program of this name");
                side.put_program(map(name), *key, program);
            }
        }
    }
}

fn put(side: &dyn Side, name: &str, map: usize, key: &[u8], value: &[u8]) {
    side.update(map, key, value).unwrap_or_else(|errno| panic!("{name}: {errno}"));
}

fn unlike(a: &Contents, b: &Contents) -> String {
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let show = |value: Option<&Vec<u8>>| value.map_or("absent".to_owned(), |v| xway_testkit::hex(v));
    let differ = keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).take(16);
    let line =
        |key: &Vec<u8>| format!("  {}: ours {} kernel {}", xway_testkit::hex(key), show(a.get(key)), show(b.get(key)));
    differ.map(line).collect::<Vec<_>>().join("\n")
}

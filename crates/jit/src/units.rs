//! The programs that are compiled together: one or the links of a chain, and what their tail calls are known to reach.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use xway_abi::CPUS_MAX;
use xway_maps::native::MapLayout;
use xway_maps::{Guard, Map};
use xway_verifier::Verified;
use xway_vm::Program;

use crate::chain::Link;
use crate::compiled::{check_values, data_values, is_per_cpu, plan};
use crate::lower::{Jump, Unit};
use crate::native::Handle;
use crate::plan::targets;
use crate::plan::{FUNCTION_MAX, Plan};
use crate::{Options, Refusal, stage};

/// Targets of tail calls that stand in one burst function.
const TARGETS_MAX: usize = 40;

/// What a program among them stands on.
pub(crate) struct Parts {
    pub program: Arc<Program>,
    pub plan: Plan,
    pub handles: Box<[Handle]>,
    values: Vec<Option<u64>>,
    pub bases: Box<[u64]>,
    addresses: Vec<u64>,
    chain_on: u32,
    inline: bool,
    link: usize,
    jumps: Vec<Jump>,
}

impl Parts {
    fn new(program: &Arc<Program>, proof: &Verified, options: &Options) -> Result<Parts, Refusal> {
        let maps = program.maps();
        let mut plan = plan(program, proof, options)?;
        let values = data_values(maps);
        let base = |m: &Arc<Map>| if let MapLayout::Array(array) = m.layout() { array.base as u64 } else { 0 };
        let bases = maps.iter().map(base).collect();
        check_values(&plan, maps, &values)?;
        plan.promote(options.slots, maps);
        plan.zero_stack(options.zero_stack, maps);
        plan.scout = stage::scout(&plan, maps, options);
        if let Some(scout) = plan.scout.as_mut().filter(|_| options.keep_text) {
            scout.text = scout.listing(program);
        }
        let handle = |start| Handle { code: AtomicUsize::new(0), insn: start, program: Arc::downgrade(program) };
        let handles: Box<[Handle]> = plan.funcs.iter().map(|f| handle(f.start)).collect();
        let addresses = handles.iter().map(|h| std::ptr::from_ref(h) as u64).collect();
        let program = program.clone();
        Ok(Parts {
            program,
            plan,
            handles,
            values,
            bases,
            addresses,
            chain_on: 0,
            inline: true,
            link: 0,
            jumps: vec![],
        })
    }

    /// As lowering knows it.
    pub fn unit(&self) -> Unit<'_> {
        Unit {
            plan: &self.plan,
            maps: self.program.maps(),
            values: &self.values,
            bases: &self.bases,
            handles: &self.addresses,
            chain_on: self.chain_on,
            inline: self.inline,
            link: self.link,
            jumps: &self.jumps,
        }
    }

    /// CPUs that all its per-CPU maps have values for, and none beyond those that a proof knows.
    fn cpus(&self) -> u32 {
        self.program.maps().iter().filter(|m| is_per_cpu(m)).map(|m| m.cpus()).min().unwrap_or(u32::MAX).min(CPUS_MAX)
    }
}

/// All of them: links first, then targets.
pub(crate) struct Units {
    pub parts: Vec<Parts>,
    pub cpus: u32,
    /// Tail calls are counted in a variable of the burst function: no function below a main one makes any.
    pub count_in_variable: bool,
}

impl Units {
    /// Plans the links, and what their tail calls reach as far as there is room in one function.
    /// A burst function is made of them, or (`burst` is off) what tail calls enter, in which nothing but the program itself stands.
    pub fn gather(links: &[Link<'_>], burst: bool, options: &Options) -> Result<Units, Refusal> {
        let mut room = FUNCTION_MAX;
        let mut parts = vec![];
        for (n, link) in links.iter().enumerate() {
            let mut part = Parts::new(link.program, link.proof, options)?;
            (part.chain_on, part.link) = (link.chain_on, n);
            // What does not fit into one function is called.
            match room.checked_sub(part.plan.funcs[0].insns) {
                Some(rest) => room = rest,
                None => part.inline = false,
            }
            parts.push(part);
        }
        let cpus = parts.iter().map(Parts::cpus).min().unwrap_or(CPUS_MAX);
        let mut units = Units { parts, cpus, count_in_variable: false };
        let counts = |p: &Parts| p.plan.tail_calls;
        units.count_in_variable =
            units.parts.iter().any(counts) && !units.parts.iter().any(|p| p.plan.tail_calls_below());
        if burst && options.inline_tail_targets && options.inline_tail_calls && units.count_in_variable {
            units.follow(room, options);
        }
        Ok(units)
    }

    /// Adds what tail calls are known to reach. What cannot be added is reached through the slot, as ever.
    fn follow(&mut self, mut room: usize, options: &Options) {
        let links = self.parts.len();
        // What was planned in vain: there is never more room than there was.
        let mut left: Vec<Arc<Program>> = vec![];
        let mut next = 0;
        while next < self.parts.len() {
            let from = &self.parts[next];
            let (link, inline) = (from.link, from.inline);
            let known = match inline {
                true => targets::known(&from.plan.funcs[0], from.program.maps(), &Guard::pin()),
                false => vec![],
            };
            for call in known {
                let same = |p: &Parts| p.link == link && Arc::ptr_eq(&p.program, &call.program);
                let there = self.parts.iter().skip(links).position(same).map(|n| n + links);
                let unit = there.or_else(|| {
                    let many = self.parts.len() == links + TARGETS_MAX || left.len() == TARGETS_MAX;
                    if many || left.iter().any(|p| Arc::ptr_eq(p, &call.program)) {
                        return None;
                    }
                    let part = call.program.proof().and_then(|proof| Parts::new(&call.program, proof, options).ok());
                    let part = part.filter(|p| p.cpus() >= self.cpus && !p.plan.tail_calls_below());
                    let rest = part.as_ref().and_then(|p| room.checked_sub(p.plan.funcs[0].insns));
                    let (Some(mut part), Some(rest)) = (part, rest) else {
                        left.push(call.program.clone());
                        return None;
                    };
                    room = rest;
                    part.link = link;
                    // Nothing runs ahead for it: what called it may have changed the packet.
                    part.plan.scout = None;
                    self.parts.push(part);
                    Some(self.parts.len() - 1)
                });
                if let Some(unit) = unit {
                    let jump = Jump { insn: call.insn, index: call.index, unit, cell: call.cell };
                    self.parts[next].jumps.push(jump);
                }
            }
            next += 1;
        }
    }

    /// Instructions of all.
    pub fn insns(&self) -> usize {
        self.parts.iter().flat_map(|p| &p.plan.funcs).map(|f| f.insns).sum()
    }
}

//! What must be there again: written down after each change, and at the end.

use std::collections::HashSet;

use xway_abi::MapType;
use xway_hook::user::counted;
use xway_hook::{Hook, HookError, MapId, ObjectId, ProgId};

use super::{State, failed, volatile};
use crate::handover::{Keeps, Parcel};
use crate::journal::{Attachment, Contents, Pin, Saved, What};
use crate::message::{self, Bytes, Loss};
use crate::upgrade;

impl State {
    /// Writes down what must be there again.
    pub fn save(&mut self) -> Result<(), HookError> {
        let alive: HashSet<ProgId> = self.hook.programs()?.into_iter().map(|p| p.id).collect();
        self.origins.retain(|id, _| alive.contains(id));
        let maps: HashSet<MapId> = self.hook.maps()?.into_iter().map(|m| m.id).collect();
        self.specs.retain(|id, _| maps.contains(id));
        self.parts.retain(|id, _| maps.contains(id));
        let used: HashSet<&String> = self.origins.values().map(|o| &o.object).collect();
        self.images.retain(|name, _| used.contains(name));
        let mut saved = Saved { file: self.file.clone(), ..Saved::default() };
        if !self.half {
            self.whole = toml::to_string(&self.config).map_err(failed)?;
        }
        saved.config.clone_from(&self.whole);
        for (path, object) in &self.pins {
            let what = match object {
                ObjectId::Map(id) => self.specs.get(id).map(|(name, spec)| {
                    let of = self.parts.get(id).cloned();
                    What::Map { name: name.clone(), spec: spec.clone(), id: id.0, of }
                }),
                ObjectId::Program(id) => self.origins.get(id).cloned().map(What::Program),
            };
            saved.pins.extend(what.map(|what| Pin { path: path.clone(), what }));
        }
        for (id, request) in &self.attachments {
            let origin = self.origins.get(id).cloned();
            saved.attachments.extend(origin.map(|origin| Attachment { origin, request: request.clone() }));
        }
        let programs = saved.pins.iter().filter_map(|p| match &p.what {
            What::Program(origin) => Some(origin),
            What::Map { .. } => None,
        });
        for origin in programs.chain(saved.attachments.iter().map(|a| &a.origin)) {
            if let Some(bytes) = self.images.get(&origin.object) {
                self.journal.keep_object(bytes)?;
            }
        }
        Ok(self.journal.save(&saved)?)
    }

    /// Writes down what a request has left, also one that was refused: part of it may have been done. What is answered is what became of
    /// the request; that it could not be written down comes beside it.
    pub(super) fn written<T>(&mut self, answer: Result<T, HookError>) -> Result<T, HookError> {
        let Err(unwritten) = self.save() else { return answer };
        match answer {
            Ok(_) => Err(HookError {
                message: format!("it was done, but a restart will not know of it: {}", unwritten.message),
                ..unwritten
            }),
            Err(refused) => Err(HookError {
                message: format!("{}; what stands now cannot be written down: {}", refused.message, unwritten.message),
                ..refused
            }),
        }
    }

    /// What becomes of the ports when an executable goes on that takes these kinds of them.
    pub fn fates(&self, takes: &[String]) -> Vec<message::PortFate> {
        self.hook.ports().iter().map(|port| upgrade::fate(port, self.keeps.get(port), takes)).collect()
    }

    /// What an upgrade would keep and lose; `others` is how many connections there are besides the one that asks.
    pub fn outlook(&mut self, takes: &[String], others: usize) -> message::Handover {
        let fates = self.fates(takes);
        let maps = self.pins.values().filter_map(|o| if let ObjectId::Map(id) = o { Some(*id) } else { None });
        let pinned = maps.collect();
        let sockets = self.served().iter().map(|path| path.sockets.len()).sum();
        upgrade::outlook(&mut self.hook, fates, &pinned, sockets, others, self.journal.keeps())
    }

    /// From here on nothing goes past ports whose program stays while there are no sockets; one that cannot be shut is opened again, and
    /// that is said in its fate.
    pub fn shut(&self, fates: &mut [message::PortFate]) {
        for fate in fates.iter_mut().filter(|fate| fate.is_packed()) {
            let Some(Keeps::AfXdp(kept)) = self.keeps.get(&fate.port) else { continue };
            if let Err(e) = kept.shut() {
                let reason = format!("{e}: what comes between the two goes to the host's stack");
                *fate = message::PortFate::new(&fate.port, message::PortFate::OPENED_AGAIN, reason);
            }
        }
    }

    /// What finds no socket passes again.
    pub(super) fn unshut(&self) -> Result<(), HookError> {
        let all =
            self.keeps.values().filter_map(|keeps| if let Keeps::AfXdp(kept) = keeps { Some(kept) } else { None });
        all.map(|kept| kept.open().map_err(failed)).fold(Ok(()), Result::and)
    }

    /// The end of the service: ports are closed, and contents of pinned maps are kept when they are to be. Gives what was lost while ports
    /// were closed.
    pub fn finish(&mut self, upgrade: bool) -> Result<Vec<Loss>, HookError> {
        self.save()?;
        self.sockets.clear();
        let mut lost = Vec::new();
        // All of them before the first is closed: by that the others may lose what was meant for it.
        let ports: Vec<_> = self.hook.ports().into_iter().map(|port| (self.hook.statistics(&port), port)).collect();
        let cpus = self.hook.cpumap_statistics();
        for (before, port) in ports {
            if let Ok(reports) = self.hook.close_port(&port) {
                lost.extend(Loss::between(&port, &before.unwrap_or_default(), &counted(&reports)));
            }
        }
        lost.extend(Loss::between(Loss::CPUMAP, &cpus, &self.hook.end()));
        let mut all = Vec::new();
        if upgrade || self.config.service.keep_contents {
            // Each map once, by the first of its names.
            let mut seen = HashSet::new();
            for (path, object) in self.pins.clone() {
                let ObjectId::Map(id) = object else { continue };
                let info = self.hook.map_info(id)?;
                if volatile(info.map_type).is_none() && seen.insert(id) {
                    let entries = self.entries(id, info.map_type);
                    all.push(Contents { path, entries, frozen: info.frozen });
                }
            }
        }
        self.journal.save_contents(&all)?;
        Ok(lost)
    }

    /// What a map holds, so that it can be written again. Queues and stacks are empty then.
    fn entries(&mut self, id: MapId, kind: MapType) -> Vec<(Bytes, Bytes)> {
        let mut entries = Vec::new();
        if matches!(kind, MapType::Queue | MapType::Stack) {
            while let Ok(value) = self.hook.map_take(id, &[]) {
                entries.push((Bytes::default(), Bytes(value)));
            }
            // What comes out of a stack first went in last.
            if kind == MapType::Stack {
                entries.reverse();
            }
            return entries;
        }
        let mut key = self.hook.map_next_key(id, None).unwrap_or(None);
        while let Some(at) = key {
            if let Ok(value) = self.hook.map_lookup(id, &at, 0) {
                entries.push((Bytes(at.clone()), Bytes(value)));
            }
            key = self.hook.map_next_key(id, Some(&at)).unwrap_or(None);
        }
        entries
    }

    /// What was dropped while neither the process before nor this one received.
    pub fn lost_between(&mut self) -> Vec<Loss> {
        const GAP: &str = "port.other.upgrade-gap";
        let ports = self.hook.ports();
        let counted = ports.into_iter().map(|port| (self.hook.statistics(&port).unwrap_or_default().get(GAP), port));
        let lost = counted.filter(|(packets, _)| *packets > 0);
        lost.map(|(packets, port)| Loss { port, counter: GAP.into(), packets }).collect()
    }

    /// Puts what is kept of these ports into a parcel, when they are closed; one that finds no room there is opened again, and that is
    /// said in its fate.
    pub fn pack(&mut self, parcel: &mut Parcel, fates: &mut [message::PortFate]) {
        for fate in fates.iter_mut().filter(|fate| fate.is_packed()) {
            let packed = self.keeps.get(&fate.port).map(|keeps| parcel.port(&fate.port, keeps));
            if let Some(Err(e)) = packed {
                let reason = format!("its descriptors could not be handed over: {e}; what waits there is lost");
                *fate = message::PortFate::new(&fate.port, message::PortFate::OPENED_AGAIN, reason);
            }
        }
        self.keeps.clear();
    }
}

#[cfg(test)]
#[path = "../../../engine/tests/common/mod.rs"]
mod wire;

#[cfg(test)]
mod tests {
    use xway_engine::{PassTo, PortConfig};
    use xway_hook::{AttachRequest, Image, LoadRequest};
    use xway_object::LoadOptions;
    use xway_testkit::{Needs, clang};
    use xway_vm::Surroundings;

    use super::wire::{Wire, eventually};
    use super::*;
    use crate::config::Config;
    use crate::handover::Handed;

    fn state(workers: u32) -> State {
        let config = Config::parse(&format!("[service]\nworkers = {workers}\n")).unwrap();
        State::new(&config, "", LoadOptions::default(), Handed::default()).unwrap()
    }

    fn open(state: &mut State, wire: &Wire, pass: PassTo) {
        let config = PortConfig { queues: Some(vec![(0, 0)]), pass, ..PortConfig::default() };
        state.hook.open_port(wire.device(), config).unwrap();
    }

    /// Ports are closed one after the other, and what one passes to another that is gone is lost: to the last packet.
    #[test]
    fn what_ports_lose_while_others_are_closed_is_told() {
        let mut state = state(1);
        let (goes, stays) = (Wire::new(1, 1), Wire::new(2, 1));
        open(&mut state, &goes, PassTo::Stack);
        open(&mut state, &stays, PassTo::Port(1));
        stays.flood(true);
        eventually(|| goes.sent_count() > 1000);
        let lost = state.finish(true).unwrap();
        let missing = stays.offered() - goes.sent_count();
        assert!(missing > 0, "a burst at least comes between two changes");
        let loss = Loss { port: "wire2".into(), counter: "pass_lost.ENODEV".into(), packets: missing };
        assert_eq!(lost, [loss]);
    }

    /// A program behind a CPUMAP that sends what comes to its own worker again: the queue never runs empty.
    const ROUND: &str = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n
        struct { __uint(type, BPF_MAP_TYPE_CPUMAP); __uint(max_entries, 2); __uint(key_size, 4); __uint(value_size, 8); }
        cpus SEC(\".maps\");
        SEC(\"xdp\") int first(struct xdp_md *ctx) { return bpf_redirect_map(&cpus, 1, 0); }
        SEC(\"xdp/cpumap\") int round(struct xdp_md *ctx) { return bpf_redirect_map(&cpus, 1, 0); }
        char _license[] SEC(\"license\") = \"GPL\";";

    #[test]
    fn what_waits_for_another_worker_at_the_end_is_told() {
        if !Needs::of("control::what_waits_for_another_worker_at_the_end_is_told").clang().met() {
            return;
        }
        let mut state = state(2);
        let wire = Wire::new(1, 1);
        open(&mut state, &wire, PassTo::Stack);
        let bytes = clang::compile_text("round", ROUND, &[]).unwrap();
        let image = Image::parse(&bytes, &LoadOptions::default()).unwrap();
        let request = LoadRequest { programs: vec!["first".into(), "round".into()], ..LoadRequest::default() };
        let objects = state.hook.load(&image, &request).unwrap();
        let of = |name: &str| objects.programs.iter().find(|(known, _)| known == name).unwrap().1;
        let entry = [1024, Surroundings::FD_FIRST + of("round").0 as i32].map(i32::to_ne_bytes).concat();
        state.hook.map_update(objects.maps[0].1, &1u32.to_ne_bytes(), &entry, 0).unwrap();
        state.hook.attach(&AttachRequest::new("wire1", of("first"))).unwrap();
        wire.send(0, 200);
        eventually(|| state.hook.statistics("wire1").unwrap().get("redirected") == 200);
        let lost = state.finish(true).unwrap();
        assert_eq!(lost, [Loss { port: Loss::CPUMAP.into(), counter: "cpu_lost".into(), packets: 200 }]);
    }
}

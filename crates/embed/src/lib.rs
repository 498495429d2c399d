//! XDP programs inside another program: no thread, no port, no copy.
//!
//! [`Filter::load`] reads an object, verifies the program that is asked for and compiles it; [`Filter::run`] runs it over packets
//! that lie in the caller's own buffers. What a verdict leads to is the caller's business.
//!
//! ```
//! use xway_embed::{Filter, Packet, Verdict};
//!
//! # let source = xway_testkit::clang::repository().join("bpf/samples/count.bpf.c");
//! # let Ok(object) = xway_testkit::clang::compile_file(&source, &[]) else { return Ok(()) };
//! let mut filter = Filter::load(&object, None)?;
//! let mut buffers = [[0u8; 2048]; 3]; // wherever packets lie; here at offset 256, 60 bytes long
//! let mut packets: Vec<Packet<'_>> =
//!     buffers.iter_mut().map(|buffer| Packet::new(buffer, 256..316)).collect::<Result<_, _>>()?;
//! for (packet, verdict) in filter.run(&mut packets) {
//!     match verdict {
//!         Verdict::Pass | Verdict::Tx => println!("{} bytes go on", packet.packet().len()),
//!         _ => println!("dropped"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a packet needs
//!
//! Room in front ([`Packet::new`] says how much): programs that push headers get what is there and no more, as on a driver.
//! Redirects are not carried out: [`Packet::redirect`] says where the program wants the packet to go.
//!
//! # Cost
//!
//! Bursts of up to 64 packets are one call of generated code; more are run in bursts. Describing a packet costs some 20 loads and
//! stores beside the program itself.
#![forbid(unsafe_code)]

use std::sync::Arc;

use xway_abi::CPUS_MAX;
use xway_engine::{Executor, FaultError, Linked, LoadedProgram, Results};
use xway_maps::{Guard, Map};
use xway_object::{LoadOptions, Object, ObjectError, Select};
use xway_packet::{Guests, PoolError};
use xway_verifier::{Config, MapsView, Rejection, Verified};
use xway_vm::{Instance, InstanceError, LinkError, Owner, Surroundings};

pub use xway_abi::Verdict;
pub use xway_packet::{Guest as Packet, GuestError as PacketError, Redirect, RxMeta, Vlan};

/// A program that is ready to run, with its maps. One thread uses it at a time; [`Filter::another`] makes one for the next
/// thread, over the same maps.
pub struct Filter {
    executor: Box<dyn Executor>,
    linked: Arc<Linked>,
    /// Goes behind what runs the program, which holds maps as well: it frees what nobody has any more.
    instance: Arc<Owner>,
    guests: Guests,
    results: Results,
    verdicts: Vec<Verdict>,
    codes: Vec<u64>,
    faults: Vec<(usize, FaultError)>,
    cpus: u32,
}

/// Why a program cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The object cannot be read, or has no such program.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A map cannot be made, or a program that the maps hold from the start is refused.
    #[error(transparent)]
    Maps(#[from] InstanceError),
    /// The verifier refused the program, or something in it is not there.
    #[error(transparent)]
    Program(#[from] LinkError),
    /// The verifier refused the program, which [`verify`] was asked about.
    #[error("program {program} is refused: {rejection}")]
    Refused {
        /// Its name.
        program: String,
        /// Why, with source lines and hints.
        rejection: Box<Rejection>,
    },
    /// No memory for descriptors.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// More threads than the per-CPU maps were made for.
    #[error("per-CPU maps were made for {0} threads; ask for more with Filter::load_for")]
    Threads(u32),
    /// More threads than there can be processors, which programs may rely on.
    #[error("{0} threads: at most {CPUS_MAX}, as many as Linux knows processors")]
    Many(u32),
}

/// Proves the program with this name, or the only one that there is, without making its maps or code. What can be said of a
/// program beforehand is in the [proof's facts](Verified::facts).
///
/// # Errors
/// [`LoadError::Object`], [`LoadError::Refused`].
pub fn verify(object: &[u8], name: Option<&str>, options: &LoadOptions) -> Result<Verified, LoadError> {
    let object = Object::parse(object, options)?;
    let image = object.select(&select(name))?.as_xdp()?;
    let refused = |rejection| LoadError::Refused { program: image.name.clone(), rejection: Box::new(rejection) };
    xway_verifier::verify(&image, &MapsView::from(&object), &Config::default()).map_err(refused)
}

fn select(name: Option<&str>) -> Select {
    name.map_or(Select::Only, |name| Select::Name(name.to_owned()))
}

impl Filter {
    /// The program with this name in an object file's bytes; without a name the only one that there is. CO-RE relocations are
    /// resolved against the running kernel's types, where it tells them. For one thread.
    ///
    /// # Errors
    /// [`LoadError`]; a refusal by the verifier says the source line and what is missing.
    pub fn load(object: &[u8], name: Option<&str>) -> Result<Filter, LoadError> {
        Filter::load_for(object, name, 1, &LoadOptions::of_running_kernel())
    }

    /// The same for up to `threads` threads, each with values of its own in per-CPU maps, and for another machine's types.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_for(
        object: &[u8],
        name: Option<&str>,
        threads: u32,
        options: &LoadOptions,
    ) -> Result<Filter, LoadError> {
        if threads > CPUS_MAX {
            return Err(LoadError::Many(threads));
        }
        let object = Arc::new(Object::parse(object, options)?);
        let image = object.select(&select(name))?.as_xdp()?;
        let threads = threads.max(1);
        // Values of maps that can be mapped are to be had by others: `Map::memory_fd`.
        let gate = Some(Config::default());
        let around = Surroundings { gate, map_memory: true, ..Surroundings::new(threads) };
        let instance = Arc::new(Owner::new(Instance::within(object, around)?));
        let linked = Arc::new(Linked::new(instance.link(&image)?));
        Filter::assemble(linked, instance, 0, threads)
    }

    fn assemble(linked: Arc<Linked>, instance: Arc<Owner>, thread: u32, cpus: u32) -> Result<Filter, LoadError> {
        Ok(Filter {
            executor: linked.executor(thread),
            linked,
            instance,
            guests: Guests::new()?,
            results: Results::default(),
            verdicts: Vec::new(),
            codes: Vec::new(),
            faults: Vec::new(),
            cpus,
        })
    }

    /// The same program over the same maps for another thread: `thread` counts from 1 and is what
    /// `bpf_get_smp_processor_id` answers there. Each number must be in use once at a time, else per-CPU values mix.
    ///
    /// # Errors
    /// [`LoadError::Threads`].
    pub fn another(&self, thread: u32) -> Result<Filter, LoadError> {
        if thread >= self.cpus {
            return Err(LoadError::Threads(self.cpus));
        }
        Filter::assemble(self.linked.clone(), self.instance.clone(), thread, self.cpus)
    }

    /// Runs the program over each packet, in order, and gives each with its verdict. A code that is no verdict counts as
    /// [`Verdict::Aborted`], as in Linux; [`Filter::codes`] has it as it was returned.
    pub fn run<'p, 'b>(
        &mut self,
        packets: &'p mut [Packet<'b>],
    ) -> impl Iterator<Item = (&'p Packet<'b>, Verdict)> + use<'_, 'p, 'b> {
        self.codes.clear();
        self.faults.clear();
        let mut done = 0;
        while done < packets.len() {
            let (executor, results) = (&mut self.executor, &mut self.results);
            results.clear();
            let (count, ()) = self.guests.host(&mut packets[done..], |frames| {
                executor.run(frames, &Guard::pin(), results);
            });
            self.codes.extend_from_slice(self.results.rets());
            self.codes.resize(done + count, 0);
            self.faults.extend(self.results.take_faults().map(|(at, fault)| (done + at, fault)));
            done += count;
        }
        self.executor.tick();
        let verdict = |code: &u64| Verdict::from_ret(*code).unwrap_or(Verdict::Aborted);
        self.verdicts.clear();
        self.verdicts.extend(self.codes.iter().map(verdict));
        packets.iter().zip(self.verdicts.iter().copied())
    }

    /// What the program returned for each packet of the last run.
    pub fn codes(&self) -> &[u64] {
        &self.codes
    }

    /// Packets of the last run at which the program was stopped, and why. A verified program is never stopped; this is how a
    /// defect would show.
    pub fn faults(&self) -> &[(usize, FaultError)] {
        &self.faults
    }

    /// The map with this name in the object. Look-ups and updates are Linux's; programs see them at once.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.instance.map(name)
    }

    /// All maps, with their names.
    pub fn maps(&self) -> impl Iterator<Item = (&str, &Arc<Map>)> {
        let names = self.instance.object().maps.iter().map(|map| map.name.as_str());
        names.zip(self.instance.maps())
    }

    /// Name of the program.
    pub fn name(&self) -> &str {
        self.linked.name()
    }

    /// What runs it, `jit` or `interp`, and why it is not machine code where it is not.
    pub fn engine(&self) -> (&'static str, Option<&str>) {
        (self.linked.choice().name(), self.linked.choice().reason.as_deref())
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter").field("name", &self.name()).field("engine", &self.engine()).finish_non_exhaustive()
    }
}

//! Programs that stand in maps: of DEVMAP entries, run on the way out, and of CPUMAP entries, run on the other worker.

use std::sync::Arc;

use xway_jit::Compiled;
use xway_maps::{Guard, ProgramObject};
use xway_packet::Burst;
use xway_vm::Program;

use crate::exec::Executor;
use crate::lane::Hook;
use crate::outbox::Why;
use crate::program::MapProgram;
use crate::{Checked, Native};

/// What runs programs of maps on one worker. Made when a frame first needs it.
#[derive(Default)]
pub(crate) struct Extras {
    known: Vec<(u32, Arc<dyn ProgramObject>, Hook)>,
    /// Frames on their way out that a program looks at first.
    groups: Vec<Group>,
}

/// Frames that run through one program on their way out of one port.
pub(crate) struct Group {
    pub(crate) program: usize,
    pub(crate) number: usize,
    pub(crate) ifindex: u32,
    pub(crate) why: Why,
    pub(crate) burst: Burst,
}

/// Programs of maps that a worker keeps ready from burst to burst. A broadcast may need any number of them.
const KNOWN_MAX: usize = 80;

impl Extras {
    /// Position of what runs the program, until the burst has been sent; `None` for a program that this engine did not link.
    pub(crate) fn position(&mut self, program: &Arc<dyn ProgramObject>, worker: u32) -> Option<usize> {
        let id = program.id();
        if let Some(at) = self.known.iter().position(|(known, ..)| *known == id) {
            return Some(at);
        }
        let hook = Hook::new(executor(&**program, worker)?);
        self.known.push((id, program.clone(), hook));
        Some(self.known.len() - 1)
    }

    /// Between two bursts: forgets the oldest programs where they have become many. Control frees them.
    #[inline]
    pub(crate) fn trim(&mut self) {
        if self.known.len() > KNOWN_MAX {
            // Groups know programs by their positions.
            self.groups.clear();
            let old: Vec<_> = self.known.drain(..self.known.len() - KNOWN_MAX).collect();
            Guard::leave(Box::new(old));
        }
    }

    pub(crate) fn hook(&mut self, at: usize) -> Option<&mut Hook> {
        self.known.get_mut(at).map(|(.., hook)| hook)
    }

    /// The same, to be looked at.
    pub(crate) fn known(&self, at: usize) -> Option<&Hook> {
        self.known.get(at).map(|(.., hook)| hook)
    }

    /// The burst of frames that run through this program on their way out of this port.
    pub(crate) fn group(&mut self, program: usize, number: usize, ifindex: u32, why: Why) -> &mut Burst {
        let same = |g: &Group| (g.program, g.number, g.ifindex, g.why) == (program, number, ifindex, why);
        let at = self.groups.iter().position(same).unwrap_or_else(|| {
            self.groups.push(Group { program, number, ifindex, why, burst: Burst::new() });
            self.groups.len() - 1
        });
        &mut self.groups[at].burst
    }

    pub(crate) fn take_groups(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.groups)
    }

    /// Gives the groups back, empty, so that their memory is used again.
    pub(crate) fn keep_groups(&mut self, groups: Vec<Group>) {
        self.groups = groups;
    }

    /// Between two bursts: forgets programs, which may be gone, and groups, whose ports may have other numbers now. What is
    /// forgotten is given back.
    pub(crate) fn clear(&mut self) -> impl Send + use<> {
        let groups = std::mem::take(&mut self.groups).into_iter().map(|group| group.burst).collect::<Vec<_>>();
        (std::mem::take(&mut self.known), groups)
    }
}

fn executor(program: &dyn ProgramObject, worker: u32) -> Option<Box<dyn Executor>> {
    if let Some(program) = program.as_any().downcast_ref::<MapProgram>() {
        return Some(program.loaded().executor(worker));
    }
    let program = program.as_any().downcast_ref::<Program>()?.arc()?;
    let code = program.native().and_then(|code| code.clone().downcast::<Compiled>().ok());
    Some(match code {
        Some(code) => Box::new(Native::new(program, code, worker)),
        None => Box::new(Checked::new(program, worker)),
    })
}

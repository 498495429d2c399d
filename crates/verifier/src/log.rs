//! The state log of `-v`, in the format of Linux's verifier.

use xway_isa::Insn;

use crate::explore::{NOWHERE, Verifier};
use crate::show;
use crate::state::State;

impl Verifier<'_> {
    /// An instruction with the state before it.
    pub fn log_insn(&mut self, st: &State, insn: &Insn) {
        if self.log.len() >= self.config.log_max {
            return;
        }
        let i = self.program.line_info.partition_point(|l| l.insn <= st.pc);
        if let Some(l) = i.checked_sub(1).map(|i| &self.program.line_info[i])
            && l.insn == st.pc
        {
            self.log.push_str(&format!(
                "; {} @ {}:{}\n",
                l.text.trim(),
                l.file.rsplit('/').next().unwrap_or(""),
                l.line
            ));
        }
        let opcode = self.program.insns[st.pc].opcode;
        self.log.push_str(&format!("{}: ({opcode:02x}) {insn:<40} ;{}\n", st.pc, show::state(st)));
    }

    /// Another path is taken up.
    pub fn log_state_switch(&mut self, st: &State) {
        if st.path == NOWHERE || self.log.len() >= self.config.log_max {
            return;
        }
        let from = self.paths[st.path as usize].1;
        self.log.push_str(&format!("\nfrom {from} to {}:{}\n", st.pc, show::state(st)));
    }

    /// The path ended in a known state.
    pub fn log_pruned(&mut self, pc: usize) {
        if self.log.len() < self.config.log_max {
            self.log.push_str(&format!("{pc}: safe\n"));
        }
    }
}

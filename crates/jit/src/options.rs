//! What is compiled how: every pass has a name and a switch.

/// Switches of the compiler. The default is everything on.
///
/// A pass that is off costs speed and nothing else: results are the same, which the differential test checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `decided`: branches that the proof found to go one way only become jumps.
    pub decided: bool,
    /// `frozen`: loads from maps that nobody can change are constants.
    pub frozen: bool,
    /// `constant-keys`: the element of an array whose key the proof knows is a constant.
    pub constant_keys: bool,
    /// `detours`: a test that rarer ones come back to stands in front of them.
    pub detours: bool,
    /// `value-words`: bytes that are read one by one from a map's value are read as words.
    pub value_words: bool,
    /// `slots`: stack bytes that only plain loads and stores touch become values; helpers that look at them get them written
    /// out.
    pub slots: bool,
    /// `zero-stack`: only those stack slots are cleared at entry that may be read before they are written. Off: all of a
    /// function's stack is cleared.
    pub zero_stack: bool,
    /// `alias`: loads and stores carry the region that the proof found, so that a store to one kind of memory does not make
    /// loads of another kind be repeated.
    pub alias: bool,
    /// `inline-lookups`: look-ups in arrays and hash tables are part of the code.
    pub inline_lookups: bool,
    /// `thread-nulls`: the check for null behind such a look-up is part of it.
    pub thread_nulls: bool,
    /// `inline-tail-calls`: tail calls are jumps through the PROG_ARRAY's slot.
    pub inline_tail_calls: bool,
    /// `typed-calls`: frequent helpers are called with their own signature instead of through the general marshalling.
    pub typed_calls: bool,
    /// `keep-registers`: calls beside the way that nearly every packet takes leave all registers alone.
    pub keep_registers: bool,
    /// `headers`: the first line of a packet is fetched some frames before its turn, when packets are cold.
    pub headers: bool,
    /// Packets are taken for cold or for warm; `None`: it is measured once in a while.
    pub cold: Option<bool>,
    /// `stage`: in front of a burst, what it will need of maps that outgrow the cache is fetched for all its frames at once.
    pub stage: bool,
    /// Bytes of a map in use from which on that pays; `None`: what the processor's second-level cache holds. 0: always, even for
    /// a burst of one frame, which is for tests.
    pub stage_from: Option<usize>,
    /// `wide-numbers`: operations of 32 bits on numbers that have no more are operations of 64.
    pub wide_numbers: bool,
    /// `lanes`: narrow loads and stores of packet and stack side by side become wide ones, loads take what was just stored,
    /// sums of many words are added in vectors. Knows memory by the regions of `alias`.
    pub lanes: bool,
    /// `known-branches`: pointers into packets are not compared with null, nor indexes with what they cannot reach.
    pub known_branches: bool,
    /// `checks`: checks that lead out the same way become one.
    pub checks: bool,
    /// `unroll`: short loops of one block stand several times one behind the other, with a check each unless their turns are known.
    pub unroll: bool,
    /// `inline-functions`: small functions of a program stand in the place of their calls.
    pub inline_functions: bool,
    /// `dead-loads`: loads that nothing uses go.
    pub dead_loads: bool,
    /// `in-place`: numbers in memory are counted where they lie, and constants are part of their stores.
    pub in_place: bool,
    /// `interleave`: a long computation that waits for itself at the end of a program runs for several packets at once.
    pub interleave: bool,
    /// `inline-helpers`: checksums over constant lengths, the clock, and moves of the packet's start are part of the code.
    pub inline_helpers: bool,
    /// `packet-bounds`: behind moves of the packet's start or end that are part of the code, the new bounds are known.
    pub packet_bounds: bool,
    /// `inline-tail-targets`: the program that a PROG_ARRAY holds at a constant index stands in the burst function of the one that
    /// calls it, behind a look whether it is still there.
    pub inline_tail_targets: bool,
    /// `value-numbering`: our own mid-end stands in the place of Cranelift's, but for functions that divide and those with loops of several
    /// ways in. Not without `optimize`.
    pub value_numbering: bool,
    /// `optimize`: a mid-end at all (value numbering, constant folding, redundant loads).
    pub optimize: bool,
    /// `align-branches`: on processors that keep nothing decoded of 32 bytes at whose end a jump lies, none lies there.
    pub align_branches: bool,
    /// The processor is taken for one of those, which have Intel's JCC erratum, or not; `None`: as its signature says.
    pub jcc_erratum: Option<bool>,
    /// Make the burst function. Without it a burst runs packet by packet.
    pub burst: bool,
    /// Make the function for one packet, which is also where tail calls enter. Without it a packet runs as a burst of one, and
    /// tail calls to this program go to the interpreter. It takes as long to make as the burst function, so engines leave it out
    /// until the program comes into a PROG_ARRAY.
    pub single: bool,
    /// Check Cranelift's intermediate form before code is made from it: for tests.
    pub check: bool,
    /// Keep texts of the intermediate form and of the machine code's assembly (`prog dump ir`).
    pub keep_text: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            decided: true,
            frozen: true,
            constant_keys: true,
            detours: true,
            value_words: true,
            slots: true,
            zero_stack: true,
            alias: true,
            inline_lookups: true,
            thread_nulls: true,
            inline_tail_calls: true,
            typed_calls: true,
            keep_registers: true,
            headers: true,
            cold: None,
            stage: true,
            stage_from: None,
            wide_numbers: true,
            lanes: true,
            known_branches: true,
            checks: true,
            unroll: true,
            inline_functions: true,
            dead_loads: true,
            in_place: true,
            interleave: true,
            inline_helpers: true,
            packet_bounds: true,
            inline_tail_targets: true,
            value_numbering: true,
            optimize: true,
            align_branches: true,
            jcc_erratum: None,
            burst: true,
            single: true,
            check: cfg!(debug_assertions),
            keep_text: false,
        }
    }
}

impl Options {
    /// Everything off that can be off: one translation of each instruction.
    pub fn plain() -> Options {
        Options {
            decided: false,
            frozen: false,
            constant_keys: false,
            detours: false,
            value_words: false,
            slots: false,
            zero_stack: false,
            alias: false,
            inline_lookups: false,
            thread_nulls: false,
            inline_tail_calls: false,
            typed_calls: false,
            keep_registers: false,
            headers: false,
            stage: false,
            wide_numbers: false,
            lanes: false,
            known_branches: false,
            checks: false,
            unroll: false,
            inline_functions: false,
            dead_loads: false,
            in_place: false,
            interleave: false,
            inline_helpers: false,
            packet_bounds: false,
            inline_tail_targets: false,
            value_numbering: false,
            optimize: false,
            align_branches: false,
            ..Options::default()
        }
    }

    /// Sets the switch of a pass by its name; false when there is no such pass.
    pub fn set(&mut self, pass: &str, on: bool) -> bool {
        let slot = match pass {
            "decided" => &mut self.decided,
            "frozen" => &mut self.frozen,
            "constant-keys" => &mut self.constant_keys,
            "detours" => &mut self.detours,
            "value-words" => &mut self.value_words,
            "slots" => &mut self.slots,
            "zero-stack" => &mut self.zero_stack,
            "alias" => &mut self.alias,
            "inline-lookups" => &mut self.inline_lookups,
            "thread-nulls" => &mut self.thread_nulls,
            "inline-tail-calls" => &mut self.inline_tail_calls,
            "typed-calls" => &mut self.typed_calls,
            "keep-registers" => &mut self.keep_registers,
            "headers" => &mut self.headers,
            "stage" => &mut self.stage,
            "wide-numbers" => &mut self.wide_numbers,
            "lanes" => &mut self.lanes,
            "known-branches" => &mut self.known_branches,
            "checks" => &mut self.checks,
            "unroll" => &mut self.unroll,
            "inline-functions" => &mut self.inline_functions,
            "dead-loads" => &mut self.dead_loads,
            "in-place" => &mut self.in_place,
            "interleave" => &mut self.interleave,
            "inline-helpers" => &mut self.inline_helpers,
            "packet-bounds" => &mut self.packet_bounds,
            "inline-tail-targets" => &mut self.inline_tail_targets,
            "value-numbering" => &mut self.value_numbering,
            "optimize" => &mut self.optimize,
            "align-branches" => &mut self.align_branches,
            _ => return false,
        };
        *slot = on;
        true
    }

    /// Names of the passes, in the order in which they run.
    pub const PASSES: [&'static str; 30] = [
        "decided",
        "frozen",
        "constant-keys",
        "detours",
        "unroll",
        "inline-functions",
        "value-words",
        "inline-tail-targets",
        "slots",
        "zero-stack",
        "inline-lookups",
        "thread-nulls",
        "inline-tail-calls",
        "inline-helpers",
        "packet-bounds",
        "typed-calls",
        "keep-registers",
        "headers",
        "stage",
        "alias",
        "wide-numbers",
        "known-branches",
        "checks",
        "lanes",
        "dead-loads",
        "in-place",
        "interleave",
        "value-numbering",
        "optimize",
        "align-branches",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_has_a_switch() {
        let mut options = Options::default();
        for pass in Options::PASSES {
            assert!(options.set(pass, false), "{pass}");
        }
        assert_eq!(options, Options::plain());
        assert!(!options.set("nonsense", true));
    }
}

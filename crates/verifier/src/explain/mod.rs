//! What makes a refusal understandable, computed only when there is one: the shortest way, the places that belong to the
//! story, and a hint with the program's own lines and names.

mod advice;
mod arguments;
mod search;
mod story;
mod text;
mod values;

use crate::cfg::Cfg;
use crate::diag::{Diagnostic, Kind, PathStep, place};
use crate::explore::Verifier;
use search::{Goal, Way};
use story::Story;

/// Branches that are told, at most.
const PATH_MAX: usize = 12;

/// Completes an error. `func` is the function that was analysed on its own, `branches` the way that the analysis took.
pub(crate) fn complete(v: &Verifier<'_>, error: &mut Diagnostic, func: usize, branches: &[(u32, bool)]) {
    let budget = v.config.explain;
    if budget == 0 {
        return;
    }
    if matches!(error.kind, Kind::Budget | Kind::InfiniteLoop) {
        advice::about_loop(v, error, branches);
        return;
    }
    let goal = Goal { func, insn: error.insn, kind: error.kind };
    let config = crate::Config { log: false, ..v.config.clone() };
    let scout = || Verifier::new(v.program, v.view, &config, v.cfg.clone());
    let mut walker = scout();
    let mut found = search::shortest(&mut walker, goal, budget);
    if found.is_none() {
        walker = scout();
        found = search::follow(&mut walker, goal, branches);
    }
    let Some(way) = found else { return };
    error.path = path(v, &way, error.insn);
    error.trace = way.steps.iter().map(|s| s.pc as u32).collect();
    error.message.clone_from(&way.fail.message);
    error.hint.clone_from(&way.fail.hint);
    let last = &way.steps[way.steps.len() - 1].state;
    let describe =
        |r: &usize| (format!("r{r}"), crate::show::describe(&last.frame().regs[*r], &walker.graph, walker.view.maps));
    error.values = way.fail.regs.iter().map(describe).collect();
    let story = Story { program: v.program, btf: v.view.btf, cfg: &v.cfg, way: &way };
    values::tell(&story, error);
    advice::give(&story, &walker, error);
    error.notes.retain(|n| n.insn != error.insn);
    error.notes.dedup();
}

/// The branches of a way that matter: those whose other outcome does not lead to the refusal. Of a loop's turns the last.
fn path(v: &Verifier<'_>, way: &Way, goal: usize) -> Vec<PathStep> {
    let leads = search::reaches(&v.cfg, goal);
    let open: Vec<(usize, usize)> =
        (0..way.steps.len().saturating_sub(1)).filter(|k| way.steps[*k].open).map(|k| (k, way.steps[k].pc)).collect();
    let outcome = |k: usize| way.steps[k + 1].pc;
    let other = |k: usize, pc: usize| {
        let both = [true, false].map(|t| v.cfg.successor(pc, t));
        both.into_iter().find(|to| *to != outcome(k))
    };
    let decisive = |(k, pc): &(usize, usize)| other(*k, *pc).is_none_or(|to| !leads[to]);
    let mut kept: Vec<(usize, usize)> = open.iter().copied().filter(decisive).collect();
    if kept.is_empty() {
        kept = open;
    }
    let mut steps: Vec<PathStep> = Vec::new();
    for (k, pc) in kept {
        let step = step(v, pc, outcome(k));
        steps.retain(|s| (s.insn, s.taken) != (step.insn, step.taken));
        steps.push(step);
    }
    let from = steps.len().saturating_sub(PATH_MAX);
    steps.split_off(from)
}

fn step(v: &Verifier<'_>, pc: usize, to: usize) -> PathStep {
    let (_, line, source) = place(v.program, pc);
    PathStep { insn: pc, taken: to != next(&v.cfg, pc), line, source, to_line: place(v.program, to).1 }
}

fn next(cfg: &Cfg, pc: usize) -> usize {
    cfg.successor(pc, false)
}

#[cfg(test)]
mod tests {
    use xway_abi::{MapSpec, MapType};
    use xway_object::MapDef;

    use crate::testing::check;

    /// The first refusal of a program: message and hint.
    fn said(text: &str) -> (String, String) {
        let refusal = check(text, &[]).expect_err(text);
        let first = refusal.errors.into_iter().next().unwrap();
        (first.message, first.hint.unwrap_or_default())
    }

    #[test]
    fn without_source_lines_hints_name_registers_and_instructions() {
        let cases = [
            ("r2 = *(u32 *)(r1 +0)\nr0 = *(u8 *)(r2 +0)\nexit", "offset 0 of the packet", "data_end"),
            ("r0 = r6\nexit", "never written", ""),
            ("call bpf_get_prandom_u32\nr0 = *(u8 *)(r0 +0)\nexit", "number", ""),
            ("r0 = 0\n*(u64 *)(r10 -520) = r0\nexit", "512 bytes below it", "too large"),
        ];
        for (text, message, hint) in cases {
            let (found, mends) = said(text);
            assert!(found.contains(message), "{text}\n{found}");
            assert!(mends.contains(hint), "{text}\n{found}\n{mends}");
        }
    }

    #[test]
    fn a_key_that_is_too_small_is_told_its_size() {
        let map = MapDef::new("flows", MapSpec::new(MapType::Hash, 4, 8, 1));
        let text = "*(u16 *)(r10 -2) = 1\nr2 = r10\nr2 += -2\nr1 = map[idx:0]\ncall 1\nr0 = 2\nexit";
        let hint = check(text, &[map]).expect_err(text).errors.swap_remove(0).hint.unwrap_or_default();
        assert!(hint.contains("a key of map flows has 4 bytes, and behind r2 the stack has 2"), "{hint}");
    }

    #[test]
    fn the_way_is_the_shortest_and_names_its_branches() {
        let text =
            "r2 = *(u32 *)(r1 +16)\nr0 = 1\nif r2 > 5 goto +2\nif r2 > 3 goto +1\nexit\nr0 = *(u8 *)(r1 +200)\nexit";
        let refusal = check(text, &[]).expect_err(text);
        let path: Vec<(usize, bool)> = refusal.errors[0].path.iter().map(|step| (step.insn, step.taken)).collect();
        assert_eq!(path, [(2, true)], "one branch, not two");
    }
}

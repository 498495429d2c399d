//! `xway prog dump xlated WHICH visual`: the ways through a program as a graph in the language of `dot`.
//!
//! A cluster for each function, a node for each run of instructions that is entered at its first and left at its last one, an edge
//! for each way between two. Names of nodes and their order are those that bpftool gives, so that what reads its graphs reads these;
//! places count from the beginning of the function, as there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use xway_isa::{CallTarget, Imm64, Insn, Names, Slot};

use super::dump::in_words;

/// How a run of instructions ends: where else it goes than to the next one.
struct End {
    /// Target of a jump.
    to: Option<usize>,
    /// Whether the next instruction may follow.
    goes_on: bool,
    /// Whether the function ends here.
    returns: bool,
}

/// The graph of a whole program; `begins`: where its functions begin, with their names, as far as that is known.
pub fn draw(slots: &[Slot], begins: &BTreeMap<usize, String>, names: &dyn Names) -> String {
    let mut starts: BTreeSet<usize> = begins.keys().copied().chain([0]).chain(called(slots)).collect();
    starts.retain(|at| *at < slots.len());
    let mut out = "digraph \"DOT graph for eBPF program\" {\n".to_owned();
    let ends = starts.iter().copied().skip(1).chain([slots.len()]);
    for (number, (start, end)) in starts.iter().copied().zip(ends).enumerate() {
        let name = begins.get(&start).cloned().unwrap_or_else(|| format!("func_{number}"));
        function(&mut out, number, &name, &slots[start..end], names);
    }
    out + "}\n"
}

/// The instructions of a piece of code, each with its place; what has no name outside the kernel goes on behind itself.
fn instructions(slots: &[Slot]) -> impl Iterator<Item = (usize, Option<Insn>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = (at < slots.len()).then_some(at)?;
        let insn = xway_isa::decode_at(slots, here).ok();
        at += insn.map_or(1, |insn| insn.slots());
        Some((here, insn))
    })
}

/// Where functions begin that others call, or name as callbacks.
fn called(slots: &[Slot]) -> impl Iterator<Item = usize> {
    instructions(slots).filter_map(|(at, insn)| match insn? {
        Insn::Call(CallTarget::Local(off)) => target(at, off),
        // Counted from the slot after the first one.
        Insn::LoadImm64 { imm: Imm64::Func(off), .. } => target(at, off),
        _ => None,
    })
}

fn target(at: usize, off: i32) -> Option<usize> {
    usize::try_from(at as i64 + 1 + i64::from(off)).ok()
}

/// What an instruction ends, if it ends a run.
fn end(at: usize, insn: Insn) -> Option<End> {
    let jump = |off: i32, goes_on| Some(End { to: target(at, off), goes_on, returns: false });
    match insn {
        Insn::Jump { off, .. } => jump(off, false),
        Insn::Branch { off, .. } | Insn::MayGoto { off } => jump(off.into(), true),
        Insn::Exit => Some(End { to: None, goes_on: false, returns: true }),
        _ => None,
    }
}

fn function(out: &mut String, number: usize, name: &str, slots: &[Slot], names: &dyn Names) {
    let all: Vec<(usize, Option<Insn>)> = instructions(slots).collect();
    let ends: BTreeMap<usize, End> = all.iter().filter_map(|(at, insn)| Some((*at, end(*at, (*insn)?)?))).collect();
    // What is jumped to and what stands behind a jump begins a run.
    let mut begins = BTreeSet::from([0]);
    for (at, end) in &ends {
        begins.extend(end.to);
        begins.insert(at + 1);
    }
    let is_place: BTreeSet<usize> = all.iter().map(|(at, _)| *at).collect();
    begins.retain(|at| is_place.contains(at));
    // The way in is node 0 and the way out node 1.
    let nodes: BTreeMap<usize, usize> = begins.iter().enumerate().map(|(i, at)| (*at, i + 2)).collect();

    let node = |n: usize| format!("fn_{number}_bb_{n}");
    let terminal = |n, word| format!("\t{} [shape=Mdiamond,style=filled,label=\"{word}\"];\n\n", node(n));
    let edge = |from, to| {
        let style = "style=\"solid,bold\", color=black, weight=10, constraint=true";
        format!("\t{}:s -> {}:n [{style}];\n", node(from), node(to))
    };
    let name = escaped(name);
    let _ = write!(
        out,
        "subgraph \"cluster_{number}\" {{\n\tstyle=\"dashed\";\n\tcolor=\"black\";\n\tlabel=\"{name} ()\";\n"
    );
    out.push_str(&terminal(0, "ENTRY"));
    let mut edges = edge(0, 2);
    let mut rows = all.iter().map(|(at, _)| *at).peekable();
    for (begin, own) in &nodes {
        let _ = write!(out, "\t{} [shape=record,style=filled,label=\"{{", node(*own));
        let mut last = *begin;
        while let Some(at) = rows.next_if(|at| at == begin || !nodes.contains_key(at)) {
            let bar = if at == *begin { "" } else { " | " };
            let _ = writeln!(out, "{bar}{at:>4}: {}\\l\\", escaped(&in_words(slots, at, names).0));
            last = at;
        }
        out.push_str("}\"];\n\n");
        let ending = ends.get(&last);
        let next = rows.peek().filter(|_| ending.is_none_or(|end| end.goes_on));
        let jumped = ending.and_then(|end| end.to);
        for to in next.copied().into_iter().chain(jumped.filter(|to| next != Some(to))) {
            // What leads out of the function is no way that a program can go.
            edges.extend(nodes.get(&to).map(|to| edge(*own, *to)));
        }
        if ending.is_some_and(|end| end.returns) {
            edges.push_str(&edge(*own, 1));
        }
    }
    out.push_str(&terminal(1, "EXIT"));
    out.push_str(&edges);
    let _ = write!(out, "\t{}:s -> {}:n [style=\"invis\", constraint=true];\n}}\n", node(0), node(1));
}

/// Text in the label of a record.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '<' | '>' | '{' | '}' | '|' | '&' | '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(text: &str) -> String {
        let slots = xway_isa::assemble(text).unwrap();
        draw(&slots, &BTreeMap::from([(0, "first".to_owned())]), &xway_isa::NoNames)
    }

    fn edges(graph: &str) -> Vec<&str> {
        let ways = graph.lines().filter(|line| line.contains("solid"));
        ways.filter_map(|line| line.trim().split_once(" [").map(|(way, _)| way)).collect()
    }

    #[test]
    fn each_way_is_an_edge() {
        let drawn = graph("r0 = 1\nif r1 > 0x3 goto pc+2\nr0 = 0\ngoto pc+1\nr0 = 2\nexit\n");
        let ways = ["0:s -> 2", "2:s -> 3", "2:s -> 4", "3:s -> 5", "4:s -> 5", "5:s -> 1"];
        let ways = ways.map(|way| {
            let (from, to) = way.split_once(" -> ").unwrap();
            format!("fn_0_bb_{from} -> fn_0_bb_{to}:n")
        });
        assert_eq!(edges(&drawn), ways, "{drawn}");
        assert!(drawn.contains("label=\"first ()\"") && drawn.contains("if r1 \\> 0x3 goto pc+2\\l"), "{drawn}");
    }

    #[test]
    fn functions_that_are_called_stand_apart_and_jumps_to_nowhere_are_no_ways() {
        let drawn = graph("call pc+1\nexit\nr0 = 1\nexit\n");
        assert!(drawn.contains("subgraph \"cluster_1\"") && drawn.contains("label=\"func_1 ()\""), "{drawn}");
        assert_eq!(edges(&drawn).len(), 4, "{drawn}");
        let astray = graph("goto pc-5\nexit\n");
        assert_eq!(edges(&astray), ["fn_0_bb_0:s -> fn_0_bb_2:n", "fn_0_bb_3:s -> fn_0_bb_1:n"], "{astray}");
    }

    #[test]
    fn words_of_the_language_are_escaped() {
        assert_eq!(escaped("a <b> {c|d} & \"e\\"), "a \\<b\\> \\{c\\|d\\} \\& \\\"e\\\\");
    }
}

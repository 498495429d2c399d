//! Filter expressions by way of the command `tcpdump`: for a statically linked binary, which can load no library.

use std::process::{Command, Stdio};

use crate::classic::Classic;

/// Why there is no program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// The command cannot be run.
    Missing(String),
    /// What it says to the expression.
    Refused(String),
}

/// Compiles an expression for Ethernet with a match that returns `snaplen`. The command opens no device for that and needs no privilege.
pub(crate) fn compile(command: &str, expression: &str, snaplen: u32) -> Result<Vec<Classic>, Failed> {
    // Behind `--` nothing is an option.
    let mut tcpdump = Command::new(command);
    tcpdump.args(["-y", "EN10MB", "-s", &snaplen.to_string(), "-ddd", "--", expression]).stdin(Stdio::null());
    let done = tcpdump.output().map_err(|e| Failed::Missing(format!("{command}: {e}")))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said = said.lines().last().unwrap_or("it says nothing");
        return Err(Failed::Refused(said.trim_start_matches("tcpdump: ").to_owned()));
    }
    let text = String::from_utf8_lossy(&done.stdout);
    parse(&text).ok_or_else(|| Failed::Missing(format!("{command} -ddd: not the numbers that tcpdump writes")))
}

/// A count, then a line of four numbers for each instruction.
fn parse(text: &str) -> Option<Vec<Classic>> {
    let mut lines = text.lines();
    let count: usize = lines.next()?.trim().parse().ok()?;
    let program: Vec<Classic> = lines.map(instruction).collect::<Option<_>>()?;
    (program.len() == count).then_some(program)
}

fn instruction(line: &str) -> Option<Classic> {
    let mut numbers = line.split_whitespace();
    let mut next = || numbers.next()?.parse::<u32>().ok();
    let (code, jt, jf, k) = (next()?, next()?, next()?, next()?);
    let found = Classic { code: code.try_into().ok()?, jt: jt.try_into().ok()?, jf: jf.try_into().ok()?, k };
    numbers.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_others_are_not() {
        let one = Classic { code: 40, jt: 0, jf: 0, k: 12 };
        assert_eq!(parse("1\n40 0 0 12\n"), Some(vec![one]));
        for wrong in
            ["", "2\n40 0 0 12\n", "1\n40 0 0\n", "1\n40 0 0 12 9\n", "1\n40 256 0 12\n", "1\n65536 0 0 1\n", "x\n"]
        {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let Err(Failed::Missing(why)) = compile("no-such-tcpdump", "tcp", 96) else { panic!("it is there") };
        assert!(why.starts_with("no-such-tcpdump: "), "{why}");
        let Err(Failed::Missing(why)) = compile("echo", "tcp", 96) else { panic!("echo compiles filters") };
        assert!(why.contains("not the numbers"), "{why}");
    }
}

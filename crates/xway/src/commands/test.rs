//! `xway test`: runs test files and reports.

use crate::args;
use crate::failure::Failure;
use crate::output;
use crate::print::{self, Paint};
use crate::unit::{case, report};

/// Runs the command.
pub fn run(args: &args::Test, as_json: bool) -> Result<(), Failure> {
    let mut suites = Vec::new();
    for path in &args.files {
        suites.push(case::run_file(path, args)?);
    }
    let (passed, failed) = report::totals(&suites);
    if passed + failed == 0 {
        return Err(Failure::usage("no test has a name that contains the text of --filter"));
    }
    if let Some(path) = &args.junit {
        output::write(path, report::junit(&suites).as_bytes())?;
    }
    if as_json {
        print::json(&print::document("test", report::json(&suites)));
    } else if args.tap {
        print::text(&report::tap(&suites));
    } else {
        print::text(&report::text(&suites, Paint::stdout()));
    }
    if failed > 0 { Err(Failure::silent()) } else { Ok(()) }
}

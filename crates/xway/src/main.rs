//! `xway`: XDP programs in user space, from the command line.
//!
//! This crate parses arguments, calls the libraries and prints. What a program means is decided in `xway-vm`, what happens
//! to a packet in `xway-engine`, what an object holds in `xway-object`. One file per command, in `commands/`.
#![forbid(unsafe_code)]

mod args;
mod args_bench;
mod args_data;
#[cfg(test)]
mod args_examples;
mod args_filter;
mod args_kernel;
mod args_machine;
mod args_service;
mod args_tools;
mod args_watch;
mod capture;
mod commands;
mod conformance_jit;
mod contents;
mod ctx;
mod disasm;
mod events;
mod failure;
mod fault;
mod finding;
mod interrupt;
mod load;
mod losses;
mod machine_code;
mod needs;
mod output;
mod payload;
mod port_wraps;
mod ports;
mod print;
mod progress;
mod raw;
mod session;
mod single;
mod tools;
mod unit;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, Prog};
use args_bench::Bench;
use failure::{Exit, Failure};
use xway_bench::forward::Action;
use xway_bench::sockets::Work;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(done) = tools::by_name(&arguments) {
        return done;
    }
    let arguments = objects_pretty(arguments);
    let mut cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if cli.pretty {
        cli.json = true;
        print::pretty();
    }
    if let Some(mistake) = cli.json.then(|| two_forms(&arguments)).flatten() {
        print::failure(&verb(&arguments), &mistake, true);
        return ExitCode::from(mistake.exit as u8);
    }
    let (name, result) = match &cli.command {
        Command::Run(args) => ("run", commands::run::run(args, cli.json)),
        Command::Prog(Prog::Run(args)) => ("prog run", commands::prog_run::run(args, cli.json)),
        Command::Prog(Prog::Inspect(args)) => ("prog inspect", commands::inspect::run(args, cli.json)),
        Command::Prog(Prog::Dump(args)) => ("prog dump", commands::dump::run(args, cli.json)),
        Command::Verify(args) => ("verify", commands::verify::run(args, cli.json)),
        Command::Test(args) => ("test", commands::test::run(args, cli.json)),
        Command::Prog(Prog::Show(args)) => ("prog show", commands::kernel::prog::show(args, cli.json)),
        Command::Prog(Prog::Pin(args)) => ("prog pin", commands::kernel::prog::pin(args, cli.json)),
        Command::Prog(Prog::Unpin(args)) => ("prog unpin", commands::kernel::pinning::unpin("prog", args, cli.json)),
        Command::Prog(Prog::Profile(args)) => ("prog profile", commands::kernel::profile::run(args, cli.json)),
        Command::Prog(Prog::Tracelog(args)) => ("prog tracelog", commands::kernel::tracelog::run(args, cli.json)),
        Command::Up(args) => ("up", commands::service::up(args, cli.json)),
        Command::Down(args) => ("down", commands::service::down(args, cli.json)),
        Command::Upgrade(args) => ("upgrade", commands::service::upgrade(args, cli.json)),
        Command::Apply(args) => ("apply", commands::service::apply(args, cli.json)),
        Command::Diff(args) => ("diff", commands::service::diff(args, cli.json)),
        Command::Load(args) => ("load", commands::kernel::attach::load(args, cli.json)),
        Command::Unload(args) => ("unload", commands::kernel::attach::unload(args, cli.json)),
        Command::Status(args) => ("status", commands::kernel::attach::status(args, cli.json)),
        Command::Features(args) => ("features", commands::kernel::features::run(args, cli.json)),
        Command::Stats(args) => ("stats", commands::stats::run(args, cli.json)),
        Command::Sock(args) => ("sock", commands::sock::run(args, cli.json)),
        Command::Steer(args) => ("steer", commands::steer::run(args, cli.json)),
        Command::Dump(args) => ("dump", commands::watch::dump::run(args, cli.json)),
        Command::Monitor(args) => ("monitor", commands::watch::monitor::run(args, cli.json)),
        Command::Top(args) => ("top", commands::watch::top::run(args, cli.json)),
        Command::Clean(args) => ("clean", commands::kernel::attach::clean(args, cli.json)),
        Command::Map(args) => ("map", commands::kernel::map::run(args, cli.json)),
        Command::Link(args) => ("link", commands::kernel::link::run(args, cli.json)),
        Command::Btf(args) => ("btf", commands::kernel::btf::run(args, cli.json)),
        Command::Bench(Bench::Prog(args)) => ("bench prog", commands::bench_prog::run(args, cli.json)),
        Command::Bench(Bench::Map(args)) => ("bench map", commands::bench_map::run(args, cli.json)),
        Command::Bench(Bench::Path(args)) => ("bench path", commands::bench_path::run(args, cli.json)),
        Command::Bench(Bench::Drop(args)) => ("bench drop", commands::bench_forward::run(Action::Drop, args, cli.json)),
        Command::Bench(Bench::Pass(args)) => ("bench pass", commands::bench_forward::run(Action::Pass, args, cli.json)),
        Command::Bench(Bench::Tx(args)) => ("bench tx", commands::bench_forward::run(Action::Tx, args, cli.json)),
        Command::Bench(Bench::Redirect(args)) => {
            ("bench redirect", commands::bench_forward::run(Action::Redirect, args, cli.json))
        }
        Command::Bench(Bench::RedirectMap(args)) => {
            ("bench redirect-map", commands::bench_forward::run(Action::RedirectMap, args, cli.json))
        }
        Command::Bench(Bench::RedirectCpu(args)) => {
            ("bench redirect-cpu", commands::bench_forward::run(Action::RedirectCpu, args, cli.json))
        }
        Command::Bench(Bench::RedirectMulti(args)) => {
            ("bench redirect-multi", commands::bench_forward::run(Action::RedirectMulti, args, cli.json))
        }
        Command::Bench(Bench::XskDrop(args)) => {
            ("bench xsk-drop", commands::bench_sockets::run(Work::Drop, args, cli.json))
        }
        Command::Bench(Bench::XskPush(args)) => {
            ("bench xsk-push", commands::bench_sockets::run(Work::Push, args, cli.json))
        }
        Command::Bench(Bench::XskFwd(args)) => {
            ("bench xsk-fwd", commands::bench_sockets::run(Work::Forward, args, cli.json))
        }
        Command::Bench(Bench::Latency(args)) => ("bench latency", commands::bench_cores::latency(args, cli.json)),
        Command::Bench(Bench::Workers(args)) => ("bench workers", commands::bench_cores::workers(args, cli.json)),
        Command::Bench(Bench::Wire(args)) => ("bench wire", commands::bench_wire::run(args, cli.json)),
        Command::Bench(Bench::Dispatch(args)) => ("bench dispatch", commands::bench_dispatch::run(args, cli.json)),
        Command::Bench(Bench::Aborted(args)) => ("bench aborted", commands::bench_aborted::run(args, cli.json)),
        Command::Bench(Bench::Levels(args)) => ("bench levels", commands::bench_levels::run(args, cli.json)),
        Command::Bench(Bench::Pool(args)) => ("bench pool", commands::bench_memory::pool(args, cli.json)),
        Command::Bench(Bench::Ring(args)) => ("bench ring", commands::bench_memory::ring(args, cli.json)),
        Command::Bench(Bench::Verify(args)) => ("bench verify", commands::bench_verify::run(args, cli.json)),
        Command::Bench(Bench::Compile(args)) => ("bench compile", commands::bench_compile::run(args, cli.json)),
        Command::Bench(Bench::Machine(args)) => ("bench machine", commands::bench_machine::run(args, cli.json)),
        Command::Doctor(args) => ("doctor", commands::doctor::run(args, cli.json)),
        Command::Lab(args) => ("lab", commands::lab::run(args, cli.json)),
        Command::Forward(args) => ("forward", commands::forward::run(args, cli.json)),
        Command::Filter(args) => ("filter", commands::filter::run(args, cli.json)),
        Command::Trafficgen(args) => ("trafficgen", commands::trafficgen::run(args, cli.json)),
        Command::Completions(args) => ("completions", commands::manual::completions(args, cli.json)),
        Command::Man(args) => ("man", commands::manual::man(args, cli.json)),
        Command::Conformance(args) => ("conformance", commands::conformance::run(args, cli.json)),
    };
    xway_vm::told_of_lost_lines();
    match result {
        Ok(()) => {
            let listed = matches!(&cli.command, Command::Bench(Bench::Prog(args)) if args.list);
            if print::is_report(name) && !cli.json && !listed {
                print::text(&format!("\n{}\n", xway_bench::machine::short_line()));
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print::failure(&verb(&arguments), &failure, cli.json);
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// The words of the verb that was asked for, as documents have them: `map show`.
fn verb(arguments: &[std::ffi::OsString]) -> String {
    let mut words = Vec::new();
    asked(arguments, |word, _| words.push(word.to_owned()));
    words.join(" ")
}

/// Shows each word of the verb that was asked for, and the options behind it.
fn asked(arguments: &[std::ffi::OsString], mut show: impl FnMut(&str, &clap::ArgMatches)) {
    let parsed = Cli::command().try_get_matches_from(arguments).unwrap_or_default();
    let mut at = &parsed;
    while let Some((word, below)) = at.subcommand() {
        show(word, below);
        at = below;
    }
}

/// With `-j`: another form that standard output was to have. One of them would be dropped without a word.
fn two_forms(arguments: &[std::ffi::OsString]) -> Option<Failure> {
    let mut found = None;
    asked(arguments, |_, options| {
        let given = |form: &&str| matches!(options.try_get_one::<bool>(form), Ok(Some(true)));
        found = ["markdown", "tap"].into_iter().find(given).or(found);
    });
    let form = found?;
    Some(
        Failure::usage(format!("--{form} and JSON: standard output has one form"))
            .hint(format!("--{form}, or -j (-p)")),
    )
}

/// `-p` behind the words for objects is in front of them, where bpftool's users may put it too. Other verbs have their own `-p`.
fn objects_pretty(mut arguments: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let verb = arguments.iter().skip(1).find(|a| !a.to_string_lossy().starts_with('-'));
    if verb.is_some_and(|verb| ["prog", "map", "link", "btf"].iter().any(|object| verb == object)) {
        let before = arguments.len();
        arguments.retain(|a| a != "-p" && a != "--pretty");
        if arguments.len() < before {
            arguments.insert(1, "--pretty".into());
        }
        // bpftool has -f in front, too; here it belongs to the verbs that show objects.
        let front = arguments.iter().skip(1).take_while(|a| a.to_string_lossy().starts_with('-')).count() + 1;
        if let Some(at) = arguments[..front].iter().position(|a| a == "-f" || a == "--bpffs") {
            let flag = arguments.remove(at);
            arguments.push(flag);
        }
    }
    arguments
}

/// What the parser says in the form of a failure: its first paragraph is the message, its tips are what to try. How the verb is used
/// is for people.
fn mistake(said: &str) -> Failure {
    let mut parts = said.trim().trim_start_matches("error: ").split("\n\n");
    let message = parts.next().unwrap_or_default().lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let tips: Vec<&str> = parts.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
    let failure = Failure::usage(message.trim());
    if tips.is_empty() { failure } else { failure.hint(tips.join("; ")) }
}

/// `--help` and `--version` are answers; everything else that the parser stops at is a mistake on the command line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        print::text(&error.render().to_string());
        return ExitCode::SUCCESS;
    }
    let _ = error.print();
    // Any bytes may stand there: a word that is not text is one of the mistakes.
    if std::env::args_os().skip(1).any(|a| a == "-j" || a == "--json") {
        print::failure_document("xway", &mistake(&error.render().to_string()));
    }
    ExitCode::from(Exit::Usage as u8)
}

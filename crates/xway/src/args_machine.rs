//! The command line of the verbs about the machine itself.

use clap::{Args, Subcommand};
use clap_complete::Shell;

/// `xway doctor`
#[derive(Args, Debug)]
pub struct Doctor {
    /// Interfaces to look at; all but loopback when none is named
    #[arg(value_name = "IFACE")]
    pub interfaces: Vec<String>,
}

/// `xway lab`
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// Make a network to try programs on: hosts in namespaces, each on its own wire to this machine
    #[command(after_help = LAB_UP_HELP)]
    Up(LabUp),
    /// Remove a lab
    #[command(after_help = LAB_DOWN_HELP)]
    Down(LabName),
    /// List the labs
    #[command(after_help = LAB_SHOW_HELP)]
    Show,
}

/// `xway lab up`
#[derive(Args, Debug)]
pub struct LabUp {
    /// Its name
    #[command(flatten)]
    pub name: LabName,
    /// How many hosts
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2)]
    pub hosts: u8,
    /// Second number of the addresses, 10.NET.HOST.…; without it the first from 77 on that is free
    #[arg(long, value_name = "NET")]
    pub net: Option<u8>,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Which lab.
#[derive(Args, Debug)]
pub struct LabName {
    /// Name of the lab
    #[arg(value_name = "NAME", default_value = "lab")]
    pub name: String,
}

/// `xway completions`
#[derive(Args, Debug)]
pub struct Completions {
    /// For which shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// `xway man`
#[derive(Args, Debug)]
pub struct Man {
    /// A verb, whose page goes to standard output; or a directory for the pages of all verbs: one that is there, or a path with a
    /// slash. The main page goes to standard output without it
    #[arg(value_name = "VERB|DIR")]
    pub words: Vec<String>,
}

pub const DOCTOR_HELP: &str = "\
Examples:
  xway doctor  # the machine and all its interfaces
  xway doctor eth0 -j

Exit code: 0 nothing is wrong (notes may be there), 1 something will not work.";

const LAB_UP_HELP: &str = "\
Examples:
  xway lab up
  xway lab up edge --hosts 3
  xway lab up --dry-run  # the commands, none of them run

Then, with the names that it prints:
  xway load lab0 prog.o
  ip netns exec xway-lab-0 ping 10.77.0.1";

const LAB_DOWN_HELP: &str = "\
Examples:
  xway lab down
  xway lab down edge";

const LAB_SHOW_HELP: &str = "\
Examples:
  xway lab show
  xway lab show -j";

pub const COMPLETIONS_HELP: &str = "\
Examples:
  xway completions bash > ~/.local/share/bash-completion/completions/xway
  xway completions zsh > ~/.zfunc/_xway";

pub const MAN_HELP: &str = "\
Examples:
  xway man | man -l -
  xway man map show | man -l -
  xway man ~/.local/share/man/man1";

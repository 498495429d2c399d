//! The command line of the verbs about the data path.

use clap::Args;

/// `xway steer`
#[derive(Args, Debug)]
pub struct Steer {
    /// Where the service is asked.
    #[command(flatten)]
    pub socket: crate::args_service::Socket,
    /// Port of the service
    #[arg(value_name = "PORT")]
    pub port: String,
    /// What to change, in ethtool's words: flow-type …, delete LOC, equal N, weight W…, hkey KEY, off; nothing: only show
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

pub const STEER_HELP: &str = "\
Examples:
  xway steer tap:xw0
  xway steer tap:xw0 flow-type udp4 dst-port 53 action 1 loc 7
  xway steer tap:xw0 flow-type ip4 src-ip 192.0.2.0 m 0.0.0.255 action -1
  xway steer tap:xw0 delete 7
  xway steer tap:xw0 equal 4 hkey symmetric
  xway steer tap:xw0 weight 6 2
  xway steer tap:xw0 off

Rules are tried from the smallest place (loc) on; without loc the last free place is taken, and a rule for a place that is taken
takes it over. -1 drops. Bits of a mask (m) that are set do not count. What no rule is about goes where its hash says, or stays on
its queue. It happens before programs run, on ports without hardware that does it; of an interface's own rules say ethtool -N.";

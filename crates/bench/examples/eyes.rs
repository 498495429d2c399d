//! One line for `scripts/eyes`: nanoseconds a packet of DROP after reading, and of TX with the addresses exchanged, through the whole
//! engine.

use xway_bench::forward::{Action, ForwardOptions, Operation, forward};
use xway_port_sim::{Pattern, Traffic};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cpu = std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?;
    let traffic = Traffic::udp(1, 64, Pattern::Scan, 1)?;
    let ns = |action, operation| {
        let options = ForwardOptions { count: 2_000_000, rounds: 3, cpu, ..ForwardOptions::new(action, operation) };
        forward(&options, &traffic).map(|report| report.ours.ns.median)
    };
    println!("{:.3} {:.3}", ns(Action::Drop, Operation::ReadData)?, ns(Action::Tx, Operation::SwapMacs)?);
    Ok(())
}

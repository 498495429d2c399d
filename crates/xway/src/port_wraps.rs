//! What `--wrap` puts around the input port: `fault?loss=0.1&seed=3`, `rate?rx=1000`, `trace`, `tee:FILE`.

use std::path::PathBuf;

use xway_engine::Port;
use xway_port_wrap::{Fault, FaultConfig, Rate, RateConfig, Tee, Trace};
use xway_ports::Options;

use crate::capture;
use crate::failure::Failure;

/// One wrapper.
#[derive(Clone, PartialEq, Debug)]
pub enum Wrap {
    /// A bad wire.
    Fault(FaultConfig),
    /// So many packets a second.
    Rate(RateConfig),
    /// A line for each packet, on standard error.
    Trace,
    /// A capture of everything.
    Tee(PathBuf),
}

impl Wrap {
    /// Reads the value of `--wrap`.
    pub fn parse(text: &str) -> Result<Wrap, Failure> {
        if let Some(path) = text.strip_prefix("tee:").filter(|path| !path.is_empty()) {
            return Ok(Wrap::Tee(path.into()));
        }
        let (kind, mut options) = Options::split(text, text);
        let mut rate = |key| -> Result<Option<f64>, Failure> {
            let Some(value) = options.take(key) else { return Ok(None) };
            let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            number.map(Some).ok_or_else(|| Failure::usage(format!("{text}: {key}={value} is no number from 0 up")))
        };
        let wrap = match kind {
            "fault" => {
                let mut probability = |key| Ok::<_, Failure>(rate(key)?.unwrap_or(0.0));
                let config = FaultConfig {
                    loss: probability("loss")?,
                    duplicate: probability("duplicate")?,
                    corrupt: probability("corrupt")?,
                    reorder: probability("reorder")?,
                    no_frame: probability("no-frame")?,
                    seed: probability("seed")? as u64,
                };
                config.check().map_err(Failure::usage)?;
                Wrap::Fault(config)
            }
            "rate" => Wrap::Rate(RateConfig { rx_pps: rate("rx")?, tx_pps: rate("tx")? }),
            "trace" => Wrap::Trace,
            _ => {
                return Err(Failure::usage(format!("--wrap {text}: no such wrapper"))
                    .hint("fault?loss=0.1&duplicate=0.1&corrupt=0.1&reorder=0.1&no-frame=0.1&seed=1, rate?rx=1000&tx=1000, trace, tee:FILE"));
            }
        };
        options.end()?;
        Ok(wrap)
    }

    /// Puts it around a port.
    pub fn around(&self, port: Box<dyn Port>) -> Result<Box<dyn Port>, Failure> {
        Ok(match self {
            Wrap::Fault(config) => Box::new(Fault::new(port, *config).map_err(Failure::usage)?),
            Wrap::Rate(config) => Box::new(Rate::new(port, *config)),
            Wrap::Trace => Box::new(Trace::new(port, std::io::stderr())),
            Wrap::Tee(path) => Box::new(Tee::new(port, path).map_err(|e| capture::failure(&e))?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_and_mistakes() {
        let config = FaultConfig { loss: 0.1, seed: 3, ..FaultConfig::default() };
        assert_eq!(Wrap::parse("fault?loss=0.1&seed=3").unwrap(), Wrap::Fault(config));
        assert_eq!(Wrap::parse("rate?rx=1e6").unwrap(), Wrap::Rate(RateConfig { rx_pps: Some(1e6), tx_pps: None }));
        assert_eq!(Wrap::parse("trace").unwrap(), Wrap::Trace);
        assert_eq!(Wrap::parse("tee:x?y.pcap").unwrap(), Wrap::Tee("x?y.pcap".into()));
        for wrong in ["", "fault?loss=2", "fault?loss=x", "fault?colour=1", "rate?rx=-1", "tee:", "trace?x", "slow"] {
            assert_eq!(Wrap::parse(wrong).unwrap_err().exit, crate::failure::Exit::Usage, "{wrong}");
        }
    }
}

//! The devices behind the port names of the configuration.

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use xway_engine::steer::{Change, Steering};
use xway_engine::{Device, OneQueue, PortConfig, Profile, TxPolicy};
use xway_hook::{Blame, HookError};
use xway_port_afxdp::{AfXdpConfig, AfXdpDevice};
use xway_port_packet::PacketDevice;
use xway_port_pcap::{CaptureReader, PcapPort, Playback};
use xway_port_sim::SimDevice;
use xway_port_tap::TapDevice;
use xway_ports::{NameError, PortName};

use crate::config::Port;
use crate::handover::{Handed, Keeps};
use crate::message::PortFate;
use crate::reinject::Reinjecting;

/// Reads a name; what only a command can have is refused.
pub(crate) fn parse(text: &str) -> Result<PortName, String> {
    let name = parsed(text, PortName::parse)?;
    match captures(&name).iter().find(|path| !path.has_root()) {
        Some(path) => Err(format!("{}: a service opens captures by a path that begins with /", path.display())),
        None => Ok(name),
    }
}

/// The same by its words alone, for who may not learn which files there are: whether a comma is part of a path, they do not say.
pub(crate) fn parse_words(text: &str) -> Result<PortName, String> {
    parsed(text, PortName::parse_words)
}

fn parsed(text: &str, read: impl Fn(&str) -> Result<PortName, NameError>) -> Result<PortName, String> {
    let hint = |hint: Option<String>| hint.map(|h| format!(" ({h})")).unwrap_or_default();
    match read(text).map_err(|e| format!("{}{}", e.message, hint(e.hint.clone())))? {
        PortName::Capture(path) if path.as_os_str() == "-" => Err("a service has no standard input".into()),
        name => Ok(name),
    }
}

/// How many queues a name says that its port has; nothing where the device says it.
pub(crate) fn queues(name: &PortName) -> Option<u32> {
    match name {
        PortName::Capture(_) | PortName::Played(_) => Some(1),
        PortName::Sim(sim) => Some(sim.queues),
        PortName::Packet(config) => Some(config.queues),
        PortName::Tap(config) => Some(config.queues),
        PortName::AfXdp(_) => None,
    }
}

/// How many it would have, opened now: where its name does not say it the interface is asked. Nothing is changed.
pub(crate) fn queues_now(name: &PortName) -> Option<u32> {
    match name {
        // (A map that it names is not what this is about.)
        PortName::AfXdp(config) => {
            let config = AfXdpConfig { map: None, even_down: true, ..config.clone() };
            AfXdpDevice::open(&config).ok().map(|device| device.rx_queues())
        }
        other => queues(other),
    }
}

/// Whether its captures can be played. The service waits for nobody, so they are regular files.
pub(crate) fn look_at_captures(name: &PortName) -> Result<(), String> {
    captures(name).iter().try_for_each(|path| CaptureReader::open_file(path).map(drop).map_err(|e| e.to_string()))
}

/// The files that must be there before the port can be opened.
pub(crate) fn captures(name: &PortName) -> &[std::path::PathBuf] {
    match name {
        PortName::Capture(path) => std::slice::from_ref(path),
        PortName::Played(played) => &played.paths,
        PortName::Packet(_) | PortName::AfXdp(_) | PortName::Sim(_) | PortName::Tap(_) => &[],
    }
}

/// The interface that must be there before the port can be opened.
pub(crate) fn interface(name: &PortName) -> Option<&str> {
    match name {
        PortName::Packet(config) => Some(&config.interface),
        PortName::AfXdp(config) => Some(&config.interface),
        PortName::Capture(_) | PortName::Played(_) | PortName::Sim(_) | PortName::Tap(_) => None,
    }
}

/// Whether an interface of this name is there.
pub(crate) fn is_there(interface: &str) -> bool {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| name_to_index(socket, interface).is_ok())
}

/// A port that is open.
pub(crate) struct Opened {
    pub device: Box<dyn Device>,
    /// What another executable could go on with, while the port is open.
    pub keeps: Option<Keeps>,
    /// How it goes on with what was handed over, when it does: a fate.
    pub adopted: Option<&'static str>,
    /// Why it was opened anew where it was handed over.
    pub anew: Option<String>,
}

/// Opens a port, or goes on with what was handed over of it. One that is no interface of this machine gets `number` for an interface
/// index. `stack`: frames that pass are for the host.
pub(crate) fn open(name: &PortName, number: u32, stack: bool, handed: &mut Handed) -> Result<Opened, HookError> {
    let failed = |why: String| HookError::new(Blame::Machine, why);
    let (mut keeps, mut adopted, mut anew) = (None, None, None);
    let device: Box<dyn Device> = match name {
        PortName::Packet(config) => {
            let queues = handed.packet(&name.to_string());
            let device = match queues.map(|queues| PacketDevice::adopt(config, queues)) {
                Some(Ok(device)) => {
                    adopted = Some(PortFate::HANDED_OVER);
                    Ok(device)
                }
                Some(Err(why)) => {
                    anew = Some(why.to_string());
                    PacketDevice::open(config)
                }
                None => PacketDevice::open(config),
            };
            let device = device.map_err(|e| failed(e.into_port_error(&name.to_string()).to_string()))?;
            // Without a descriptor left it can still be used.
            keeps = device.keep().ok().flatten().map(Keeps::Packet);
            Box::new(device)
        }
        PortName::AfXdp(config) => {
            let device = AfXdpDevice::open(config);
            let mut device = device.map_err(|e| failed(e.into_port_error(&name.to_string()).to_string()))?;
            match handed.afxdp(&name.to_string()).map(|parts| device.adopt(parts)) {
                Some(Ok(())) => adopted = Some(PortFate::HELD),
                // The interface is free again: what was handed over is closed by now.
                Some(Err(why)) => anew = Some(why.to_string()),
                None => {}
            }
            keeps = device.keep().map(Keeps::AfXdp);
            if stack { Box::new(Reinjecting::new(device)) } else { Box::new(device) }
        }
        PortName::Tap(config) => {
            let device = match handed.tap(&name.to_string()).map(|queues| TapDevice::adopt(config, queues)) {
                Some(Ok(device)) => {
                    adopted = Some(PortFate::HANDED_OVER);
                    Ok(device)
                }
                // Descriptors that do not fit are closed by now, and not in the way of new ones.
                Some(Err(why)) => {
                    anew = Some(why.to_string());
                    TapDevice::open(config)
                }
                None => TapDevice::open(config),
            };
            let device = device.map_err(|e| failed(e.into_port_error(&name.to_string()).to_string()))?;
            // Without a descriptor left it can still be used.
            keeps = device.descriptors().ok().map(Keeps::Tap);
            Box::new(device)
        }
        PortName::Capture(path) => {
            let playback = Playback { files_only: true, ..Playback::default() };
            let port = PcapPort::play(std::slice::from_ref(path), playback, number);
            Box::new(OneQueue::new(Box::new(port.map_err(|e| failed(format!("{name}: {e}")))?)))
        }
        PortName::Played(played) => {
            let playback = Playback { files_only: true, ..played.playback() };
            let port = PcapPort::play(&played.paths, playback, number);
            Box::new(OneQueue::new(Box::new(port.map_err(|e| failed(format!("{name}: {e}")))?)))
        }
        PortName::Sim(sim) => {
            let traffic = sim.traffic().map_err(|e| HookError::new(Blame::Input, e.message))?;
            let device = SimDevice::generated(&sim.name, number, traffic, sim.count, sim.queues).0;
            Box::new(device.with_frags(sim.frags))
        }
    };
    Ok(Opened { device, keeps, adopted, anew })
}

/// The words that make a port's steering again, when something more was said: its rules as they are now, and of what was said about the
/// hash what still counts.
pub(crate) fn said(before: &[String], words: &str, now: Option<&Steering>) -> Vec<String> {
    let Some(now) = now else { return Vec::new() };
    let mut out: Vec<String> = now.rules().map(ToString::to_string).collect();
    let (mut queues, mut key, mut hash) = (false, false, Vec::new());
    for said in before.iter().map(String::as_str).chain([words.trim()]).rev() {
        let counts = match Change::parse(said) {
            Ok(Change::Off) => break,
            Ok(Change::Spread { queues: q, key: k }) => {
                let first = q.is_none() && k.is_none();
                let counts = first || q.is_some() && !queues || k.is_some() && !key;
                (queues, key) = (queues || q.is_some(), key || k.is_some());
                counts
            }
            _ => false,
        };
        hash.extend(counts.then(|| said.to_owned()));
    }
    out.extend(hash.into_iter().rev().filter(|_| now.rss().is_some()));
    out
}

/// How the engine opens a port of the configuration: it receives only when everything is in its place.
pub(crate) fn shape(port: &Port, profile: Profile) -> PortConfig {
    let tx = TxPolicy { batch_frames: port.tx_batch, bytes_max: port.tx_limit };
    let (queues, chunk_size) = (port.queues.clone(), port.chunk);
    PortConfig { queues, tx, read_only: port.read_only, profile, chunk_size, held: true, ..PortConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_about_steering_can_be_said_again() {
        let (mut words, mut now) = (Vec::new(), Steering::default());
        for text in [
            "equal 2",
            "flow-type ether action 0 loc 4",
            "hkey symmetric",
            "equal 3",
            "flow-type ether action 1 loc 9",
            "delete 4",
            "weight 1 3",
        ] {
            now = now.changed(Change::parse(text).unwrap(), 4).unwrap().0;
            words = said(&words, text, Some(&now));
            let again = words.iter().fold(Steering::default(), |steering, text| {
                steering.changed(Change::parse(text).unwrap(), 4).unwrap().0
            });
            assert_eq!(again.rules().collect::<Vec<_>>(), now.rules().collect::<Vec<_>>(), "{words:?}");
            let hash = |s: &Steering| s.rss().map(|r| (*r.key(), r.indirection().to_vec()));
            assert_eq!(hash(&again), hash(&now), "{words:?}");
        }
        assert_eq!(words.len(), 3, "{words:?}");
        now = now.changed(Change::Off, 4).unwrap().0;
        assert_eq!(said(&words, "off", Some(&now)).len(), 1);
        assert_eq!(said(&words, "off", None), [""; 0]);
    }
}

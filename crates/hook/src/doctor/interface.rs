//! Questions about one interface.

use xway_kernel::{Channels, Device, DriverFeatures, KernelError, channels, device_by_name, driver_features, offloads};

use super::Finding;
use crate::explain::{MTU_ONE_PAGE, MTU_VETH, NDO_XMIT};
use crate::{OtherEnd, at_other_end};

/// Bit of `enum netdev_xdp_act`: the driver runs programs.
const BASIC: u64 = 1;

/// What an interface says about itself. `None` where it does not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// What rtnetlink tells.
    pub device: Device,
    /// What the driver says it can do.
    pub features: Option<DriverFeatures>,
    /// Names of the offloads that are on.
    pub offloads: Option<Vec<String>>,
    /// Its queues.
    pub channels: Option<Channels>,
    /// Name of the driver of a real device.
    pub driver: Option<String>,
    /// The other end of a veth, where it is found.
    pub peer: Option<OtherEnd>,
}

impl Interface {
    /// Looks at an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// `ENODEV`, or netlink does not answer. What a driver does not know is not an error.
    pub fn here(name: &str) -> Result<Interface, KernelError> {
        let device = device_by_name(name)?;
        let driver = std::fs::read_link(format!("/sys/class/net/{name}/device/driver")).ok();
        Ok(Interface {
            features: driver_features(device.ifindex)?,
            offloads: offloads(device.ifindex)?,
            channels: channels(device.ifindex)?,
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            peer: OtherEnd::of(&device),
            device,
        })
    }

    fn is_on(&self, offload: &str) -> bool {
        self.offloads.iter().flatten().any(|name| name == offload)
    }
}

/// All findings about an interface.
pub fn interface(of: &Interface) -> Vec<Finding> {
    let mut out = vec![up(of), native(of), mtu(of)];
    out.extend([merging(of), vlan(of), queues(of), peer(of)].into_iter().flatten());
    out
}

fn up(of: &Interface) -> Finding {
    match of.device.up {
        true => Finding::good("up", "up"),
        false => Finding::bad("up", "down: no packet comes", format!("ip link set {} up", of.device.name)),
    }
}

fn native(of: &Interface) -> Finding {
    const TOPIC: &str = "native";
    let driver = of.driver.as_deref().or(Some(of.device.kind.as_str()).filter(|k| !k.is_empty()));
    let driver = driver.map(|d| format!(" ({d})")).unwrap_or_default();
    let command = format!("xway load {} OBJ -m generic", of.device.name);
    match of.features {
        Some(features) if features.xdp & BASIC != 0 => {
            Finding::good(TOPIC, format!("the driver{driver} runs programs"))
        }
        Some(_) => {
            Finding::note(TOPIC, format!("the driver{driver} has no native hook: only the slower generic one"), command)
        }
        None => Finding::note(TOPIC, format!("the kernel does not tell what the driver{driver} can do"), command),
    }
}

fn mtu(of: &Interface) -> Finding {
    let Device { mtu, name, kind, .. } = &of.device;
    if let ("veth", Some(peer)) = (kind.as_str(), &of.peer) {
        // A program there gets what the other end may send.
        let (end, far) = (&peer.device.name, peer.device.mtu);
        return match far > MTU_VETH {
            false => Finding::good("mtu", format!("{mtu}, and {far} at the other end")),
            true => Finding::note(
                "mtu",
                format!("{far} of {end}, the other end: a veth refuses programs without fragments above {MTU_VETH}"),
                peer.command(&format!("ip link set {end} mtu {MTU_VETH}")),
            ),
        };
    }
    match *mtu > MTU_ONE_PAGE {
        false => Finding::good("mtu", format!("{mtu}")),
        true => Finding::note(
            "mtu",
            format!("{mtu}: most drivers refuse programs without fragments (section xdp.frags) above {MTU_ONE_PAGE}"),
            format!("ip link set {name} mtu {MTU_ONE_PAGE}"),
        ),
    }
}

/// Drivers refuse native programs while the hardware merges packets.
fn merging(of: &Interface) -> Option<Finding> {
    let on: Vec<&str> = ["rx-lro", "rx-gro-hw"].into_iter().filter(|name| of.is_on(name)).collect();
    let off: String = on.iter().map(|name| format!(" {name} off")).collect();
    match on.is_empty() {
        true => of.offloads.as_ref().map(|_| Finding::good("merging", "no packets are merged in hardware")),
        false => Some(Finding::note(
            "merging",
            format!(
                "{} on: packets are merged before programs see them, most drivers refuse native programs",
                on.join(", ")
            ),
            format!("ethtool -K {}{off}", of.device.name),
        )),
    }
}

fn vlan(of: &Interface) -> Option<Finding> {
    // A veth carries the tag beside the packet only when its peer took it out.
    let on = of.is_on("rx-vlan-hw-parse");
    of.offloads.as_ref()?;
    Some(match on && of.device.kind != "veth" {
        false => Finding::good("vlan", "tags stay in the packet"),
        true => Finding::note(
            "vlan",
            "rx-vlan-hw-parse is on: the device takes VLAN tags out, programs see packets without them",
            format!("ethtool -K {} rxvlan off", of.device.name),
        ),
    })
}

/// Some drivers want a transmit queue per CPU beside those of the stack.
fn queues(of: &Interface) -> Option<Finding> {
    let channels = of.channels?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let wants = of.driver.as_deref() == Some("virtio_net");
    if !wants || channels.combined_max == 0 || channels.combined + cpus <= channels.combined_max {
        let (receive, transmit) = (of.device.rx_queues, of.device.tx_queues);
        return Some(Finding::good("queues", format!("{receive} receive, {transmit} transmit")));
    }
    let (used, most) = (channels.combined, channels.combined_max);
    let shared = format!("none is left for XDP_TX and redirects of {cpus} CPUs, they share with a lock");
    Some(match most.checked_sub(cpus).filter(|fits| (1..used).contains(fits)) {
        Some(fits) => Finding::note(
            "queues",
            format!("{used} of {most} channels in use: {shared}"),
            format!("ethtool -L {} combined {fits}", of.device.name),
        ),
        // Nothing that one could do about it.
        None => Finding::good("queues", format!("the device has {most} channels: {shared}")),
    })
}

fn peer(of: &Interface) -> Option<Finding> {
    const TOPIC: &str = "veth-peer";
    if of.device.kind != "veth" {
        return None;
    }
    let name = &of.device.name;
    let takes = of.features.as_ref().is_some_and(|f| f.xdp & NDO_XMIT != 0);
    let found = match &of.peer {
        Some(OtherEnd { device: Device { name: end, native: Some(id), .. }, .. }) => {
            return Some(Finding::good(TOPIC, format!("{end} has program {id}, so XDP_TX and redirects arrive")));
        }
        Some(end) if takes => {
            let end = &end.device.name;
            return Some(Finding::good(TOPIC, format!("{end} takes what XDP_TX and redirects send to it")));
        }
        None if takes => {
            return Some(Finding::good(TOPIC, "the other end takes what XDP_TX and redirects send to it"));
        }
        Some(OtherEnd { device: Device { name: end, .. }, space: None }) => {
            format!("{end} has no native program: {name} loses XDP_TX and redirects")
        }
        Some(OtherEnd { device: Device { name: end, .. }, space: Some(space) }) => {
            let space = space.display();
            format!("{end}, in the namespace {space}, has no native program: {name} loses XDP_TX and redirects")
        }
        None => format!(
            "the other end lies in another namespace: {name} loses XDP_TX and redirects unless it has a native program"
        ),
    };
    Some(Finding::note(TOPIC, found, at_other_end(name, of.peer.as_ref(), |end| format!("ethtool -K {end} gro on"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    fn good() -> Interface {
        let device = Device { name: "eth0".into(), mtu: 1500, up: true, ..Device::default() };
        let features = Some(DriverFeatures { xdp: BASIC, ..DriverFeatures::default() });
        Interface {
            device,
            features,
            offloads: Some(vec![]),
            driver: Some("virtio_net".into()),
            ..Interface::default()
        }
    }

    fn bad(of: &Interface) -> Vec<(&'static str, Grade)> {
        let all = interface(of).into_iter().filter(|f| f.grade != Grade::Good);
        all.inspect(|f| assert!(f.mend.is_some(), "{f:?}")).map(|f| (f.topic, f.grade)).collect()
    }

    #[test]
    fn a_good_interface_has_nothing_to_mend() {
        assert_eq!(bad(&good()), []);
    }

    fn end(name: &str, native: Option<u32>) -> OtherEnd {
        OtherEnd { device: Device { name: name.into(), native, ..Device::default() }, space: None }
    }

    #[test]
    fn the_command_reaches_the_other_end() {
        let mut interface = good();
        interface.device.kind = "veth".into();
        interface.features.as_mut().unwrap().xdp &= !NDO_XMIT;
        interface.peer = Some(end("h0", None));
        assert_eq!(peer(&interface).unwrap().mend.as_deref(), Some("ethtool -K h0 gro on"));
        interface.peer.as_mut().unwrap().space = Some("/run/netns/host".into());
        let told = peer(&interface).unwrap();
        assert_eq!(told.mend.as_deref(), Some("nsenter --net=/run/netns/host ethtool -K h0 gro on"));
        assert!(told.found.contains("/run/netns/host"), "{}", told.found);
        // What comes in is as long as the other end may send.
        interface.device.mtu = 9000;
        assert_eq!(mtu(&interface).grade, Grade::Good);
        interface.peer.as_mut().unwrap().device.mtu = 9000;
        let told = mtu(&interface);
        assert_eq!(told.mend.as_deref(), Some("nsenter --net=/run/netns/host ip link set h0 mtu 3506"));
        assert!(told.found.starts_with("9000 of h0, the other end:"), "{}", told.found);
    }

    #[test]
    fn each_lack_is_named_alone() {
        type Change = fn(&mut Interface);
        let veth = |i: &mut Interface| i.device.kind = "veth".into();
        let lacks: [(&str, Grade, Change); 9] = [
            ("up", Grade::Bad, |i| i.device.up = false),
            ("native", Grade::Note, |i| i.features = Some(DriverFeatures::default())),
            ("native", Grade::Note, |i| i.features = None),
            ("mtu", Grade::Note, |i| i.device.mtu = 9000),
            ("merging", Grade::Note, |i| i.offloads = Some(vec!["rx-lro".into(), "rx-gro".into()])),
            ("vlan", Grade::Note, |i| i.offloads = Some(vec!["rx-vlan-hw-parse".into()])),
            ("queues", Grade::Note, |i| {
                i.channels = Some(Channels { combined_max: 9999, combined: 9999, ..Channels::default() });
            }),
            ("veth-peer", Grade::Note, |i| i.device.kind = "veth".into()),
            ("veth-peer", Grade::Note, |i| {
                i.device.kind = "veth".into();
                i.peer = Some(end("eth1", None));
            }),
        ];
        for (topic, grade, change) in lacks {
            let mut interface = good();
            change(&mut interface);
            assert_eq!(bad(&interface), [(topic, grade)]);
        }
        let mut polled = good();
        veth(&mut polled);
        polled.peer = Some(end("eth1", Some(7)));
        assert_eq!(bad(&polled), []);
        // What the kernel itself says about the other end counts as well.
        polled.peer = None;
        polled.features.as_mut().unwrap().xdp |= NDO_XMIT;
        assert_eq!(bad(&polled), []);
    }

    #[test]
    fn a_device_that_has_no_more_queues_has_nothing_to_mend() {
        let mut interface = good();
        interface.channels = Some(Channels { combined_max: 1, combined: 1, ..Channels::default() });
        assert_eq!(bad(&interface), []);
        assert!(queues(&interface).unwrap().found.contains("they share with a lock"));
    }

    #[test]
    fn the_command_names_what_is_on() {
        let mut interface = good();
        interface.offloads = Some(vec!["rx-lro".into(), "rx-gro-hw".into()]);
        let found = merging(&interface).unwrap();
        assert_eq!(found.mend.as_deref(), Some("ethtool -K eth0 rx-lro off rx-gro-hw off"));
    }
}

//! Where a redirect helper wants a frame to go.

/// The target of `XDP_REDIRECT`, kept in the frame because a burst has many frames in flight.
///
/// Plain numbers: this crate knows neither maps nor programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)] // `None` is a first word of 0: generated code forgets targets with one store
pub enum Redirect {
    /// No helper chose a target.
    #[default]
    None,
    /// `bpf_redirect`: the port with this interface index.
    Ifindex(u32),
    /// `bpf_redirect_map` on a device map.
    Device {
        /// Id of the map.
        map_id: u32,
        /// Key that was looked up.
        key: u32,
        /// Interface index that the entry named.
        ifindex: u32,
    },
    /// `bpf_redirect_map` on a device map with `BPF_F_BROADCAST`: every port in the map.
    Broadcast {
        /// Id of the map.
        map_id: u32,
        /// `BPF_F_EXCLUDE_INGRESS`: not back to where the frame came from.
        exclude_ingress: bool,
    },
    /// `bpf_redirect_map` on a CPU map: another worker.
    Cpu {
        /// Id of the map.
        map_id: u32,
        /// Worker number.
        cpu: u32,
    },
    /// `bpf_redirect_map` on a socket map.
    Socket {
        /// Id of the map.
        map_id: u32,
        /// Key that was looked up.
        key: u32,
    },
}

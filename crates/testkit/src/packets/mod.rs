//! Frames for tests.
//!
//! ```
//! use xway_testkit::packets::Packet;
//! let frame = Packet::eth().vlan(10).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(4000, 53).payload(b"query").build();
//! assert_eq!(frame.len(), 14 + 4 + 20 + 8 + 5);
//! ```
//!
//! Layers are stacked from the outside in. [`Packet::build`] fills in EtherTypes, protocol numbers, lengths and checksums
//! that the layer was not told; what a test wants wrong it sets itself.

mod builder;
mod checksum;
mod set;

pub use builder::{Packet, tcp_flags};
pub use checksum::{fold, internet_checksum};
pub use set::{Named, mixed_set};

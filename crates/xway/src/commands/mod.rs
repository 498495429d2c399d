//! The commands, one file each.

pub mod bench_aborted;
pub mod bench_cores;
pub mod bench_forward;
pub mod bench_machine;
pub mod bench_map;
pub mod bench_memory;
pub mod bench_prog;
pub mod bench_sockets;
pub mod bench_verify;
pub mod conformance;
pub mod doctor;
pub mod dump;
pub mod inspect;
pub mod kernel;
pub mod lab;
pub mod manual;
pub mod prog_run;
pub mod run;
pub mod service;
pub mod sock;
pub mod stats;
pub mod steer;
pub mod test;
pub mod verify;
mod verify_raw;
pub mod watch;

//! One body for every implementor: what is written against the trait behaves the same wherever it runs.
//!
//! The body asks for values, errno and order, never for the words. `User` runs everywhere, `Kernel` where the privilege is.

mod body;
#[path = "../../engine/tests/common/mod.rs"]
mod common;

use std::net::UdpSocket;

use xway_engine::PortConfig;
use xway_hook::user::UserConfig;
use xway_hook::{Kernel, User};
use xway_testkit::{Lab, Needs};

#[test]
fn the_user_hook_conforms() {
    if !Needs::of("hook::the_user_hook_conforms").clang().met() {
        return;
    }
    let mut hook = User::new(UserConfig { cpus: 2, ..UserConfig::default() });
    body::run(&mut hook, std::path::Path::new("/conformance"));
    assert_eq!(hook.alive(), (0, 0), "maps and programs that nobody holds");
    let wire = common::Wire::new(21, 1);
    hook.open_port(wire.device(), PortConfig::default()).unwrap();
    body::attachments(&mut hook, "wire21", &mut || wire.send(0, 5));
    hook.close_port("wire21").unwrap();
    let mut interpreted = User::new(UserConfig { compiler: None, ..UserConfig::default() });
    body::run(&mut interpreted, std::path::Path::new("/conformance"));
    assert_eq!(interpreted.alive(), (0, 0));
}

#[test]
fn the_kernel_hook_conforms() {
    let needs = Needs::of("hook::the_kernel_hook_conforms").root().command("ip").clang();
    if !needs.met() {
        return;
    }
    if !xway_hook::pins::is_bpffs(std::path::Path::new("/sys/fs/bpf")) {
        return xway_testkit::skip("hook::the_kernel_hook_conforms", "a BPF file system at /sys/fs/bpf");
    }
    let dir = format!("/sys/fs/bpf/xway-conformance-{}", std::process::id());
    let dir = std::path::Path::new(&dir);
    let lab = Lab::new("hookbody").unwrap();
    let space = lab.namespace("a").unwrap();
    // A namespace of its own: what is attached here concerns nobody else.
    space.enter(|| body::run(&mut Kernel::new(), dir)).unwrap();
    assert_eq!(std::fs::read_dir(dir).map_or(0, Iterator::count), 0, "pins that stay");
    let _ = std::fs::remove_dir(dir);
}

#[test]
fn the_kernel_hook_conforms_on_an_interface() {
    const NAME: &str = "hook::the_kernel_hook_conforms_on_an_interface";
    let traced = std::path::Path::new("/sys/kernel/tracing/events/xdp/xdp_exception").exists();
    let needs = Needs::of(NAME).root().command("ip").clang();
    if !needs.that(traced, "tracefs at /sys/kernel/tracing").met() {
        return;
    }
    if !xway_hook::pins::is_bpffs(std::path::Path::new("/sys/fs/bpf")) {
        return xway_testkit::skip(NAME, "a BPF file system at /sys/fs/bpf");
    }
    let lab = Lab::new("hookport").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.4.1/24").unwrap();
    // To everybody: nobody needs to be asked for an address, which a program might drop.
    let socket = left.enter(|| UdpSocket::bind("10.9.4.1:0")).unwrap().unwrap();
    socket.set_broadcast(true).unwrap();
    let mut send = || {
        for _ in 0..5 {
            socket.send_to(&[7; 40], "10.9.4.255:9").unwrap();
        }
    };
    right.enter(|| body::attachments(&mut Kernel::new(), "r0", &mut send)).unwrap();
}

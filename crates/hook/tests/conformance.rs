//! One body for every implementor: what is written against the trait behaves the same wherever it runs.
//!
//! The body asks for values, errno and order, never for the words. `User` runs everywhere, `Kernel` where the privilege is.

mod body;

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

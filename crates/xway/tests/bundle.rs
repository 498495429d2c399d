//! The archive for other machines, and its way there.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::Dir;
use xway_testkit::Needs;
use xway_testkit::clang::repository;

#[test]
fn what_is_deployed_runs_there() {
    let needs = Needs::of("xway::bundle::what_is_deployed_runs_there").clang();
    if !needs.command("strip").command("tar").command("gzip").met() {
        return;
    }
    let dir = Dir::new();
    // A machine that is a folder here.
    let (there, ssh) = (dir.path("there"), dir.path("ssh"));
    std::fs::create_dir(&there).unwrap();
    std::fs::write(&ssh, "#!/bin/sh\n[ \"$1\" = somebody@there ] || exit 9\nexec sh -c \"$2\"\n").unwrap();
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let deploy = |host: &str| {
        let mut command = Command::new(repository().join("scripts/deploy"));
        command.arg(host).env("SSH", &ssh).env("ROOT", &there).env("OUT", dir.path("out")).env("PREFIX", "/opt/xway");
        // The command that is tested, instead of one that takes minutes to build.
        command.env("BUILT", Path::new(env!("CARGO_BIN_EXE_xway")).parent().unwrap());
        let done = command.output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    let (code, out, err) = deploy("somebody@there");
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.ends_with(&format!("xway {}\n", env!("CARGO_PKG_VERSION"))), "{out}");

    let at = |name: &str| there.join("opt/xway").join(name);
    let run = Command::new(at("bin/xway"))
        .args(["run", at("lib/xway/count.o").to_str().unwrap(), "-j", "-i"])
        .arg(repository().join("bpf/demo/mixed.pcapng"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let unit = std::fs::read_to_string(at("lib/systemd/system/xway.service")).unwrap();
    assert!(unit.contains("ExecStart=/opt/xway/bin/xway up "), "{unit}");
    let config = "/opt/xway/etc/xway/xway.toml";
    assert!(unit.contains(&format!(" -c {config} ")) && unit.contains(&format!(" apply {config}")), "{unit}");
    let (file, own) = (there.join("opt/xway/etc/xway/xway.toml"), "# The machine's own.\n");
    xway_control::Config::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for file in ["share/man/man1/xway-run.1", "share/bash-completion/completions/xway", "share/xway/grafana.json"] {
        assert!(at(file).exists(), "{file}");
    }

    // A file that is there stays.
    std::fs::write(&file, own).unwrap();
    let again = Command::new(repository().join("scripts/install"))
        .arg(Path::new(env!("CARGO_BIN_EXE_xway")).parent().unwrap())
        .env("DESTDIR", &there)
        .env("PREFIX", "/opt/xway")
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), own);
    assert!(String::from_utf8_lossy(&again.stderr).contains("xway.toml stays as it is"));

    // The same sources make the same archive.
    let archive = dir.path("out").read_dir().unwrap().next().unwrap().unwrap().path();
    let first = std::fs::read(&archive).unwrap();
    assert_eq!(deploy("somebody@there").0, Some(0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), own);
    assert!(std::fs::read(&archive).unwrap() == first);
    // Unpacked by hand it leaves the machine's own file alone: it has an example only.
    let list = Command::new("tar").arg("-tzf").arg(&archive).output().unwrap();
    let names = String::from_utf8(list.stdout).unwrap();
    let tomls: Vec<&str> = names.lines().filter(|name| name.contains("xway.toml")).collect();
    assert_eq!(tomls, ["opt/xway/share/xway/xway.toml.example"]);
    assert!(names.lines().all(|name| name.starts_with("opt/xway/")), "{names}");
    let example = std::fs::read_to_string(at("share/xway/xway.toml.example")).unwrap();
    xway_control::Config::parse(&example).unwrap();
    assert_eq!(deploy("nobody@there").0, Some(9));
}

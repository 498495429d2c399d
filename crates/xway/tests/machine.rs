//! `xway doctor`, `lab`, `completions`, `man`.

mod common;

use std::os::fd::AsFd;
use std::process::Command;

use common::{Dir, Ran, compiled, xway};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use xway_testkit::{Lab, Namespace, Needs, traffic};

/// Removes a lab that a failed test has left.
struct Leftover<'a>(&'a Namespace, String);

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        let _ = inside(self.0).args(["lab", "down", &self.1]).output();
    }
}

/// `xway` in a network namespace, with the mounts of everybody: names of namespaces are mounts.
fn inside(namespace: &Namespace) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", namespace.name())).arg(env!("CARGO_BIN_EXE_xway"));
    command
}

fn ran(command: &mut Command) -> Ran {
    let out = command.output().unwrap();
    Ran {
        code: out.status.code().unwrap(),
        out: String::from_utf8(out.stdout).unwrap(),
        err: String::from_utf8(out.stderr).unwrap(),
    }
}

/// Whether an address answers an echo request from inside a namespace.
fn answered(namespace: &str, address: &str) -> bool {
    let file = std::fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    let address = address.parse().unwrap();
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        traffic::ping(address, 1).unwrap() == 1
    });
    thread.join().unwrap()
}

/// A name that no other run has, in letters.
fn unique(first: char) -> String {
    let digits = std::process::id().to_string();
    first.to_string() + &digits.chars().map(|d| char::from(b'a' + (d as u8 - b'0'))).collect::<String>()
}

const ANSWERS: &str = r#"
#include <linux/if_ether.h>
#include <linux/ip.h>
struct icmphdr { __u8 type, code; __u16 checksum; __u32 rest; };
SEC("xdp") int answer(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    struct icmphdr *icmp = (void *)(ip + 1);
    if ((void *)(icmp + 1) > end || eth->h_proto != __builtin_bswap16(0x0800) || ip->protocol != 1 || icmp->type != 8)
        return XDP_PASS;
    unsigned char mac[6];
    __builtin_memcpy(mac, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, mac, 6);
    __u32 from = ip->saddr;
    ip->saddr = ip->daddr;
    ip->daddr = from;
    icmp->type = 0;
    __u32 sum = (__u16)~icmp->checksum + 0xfff7 /* less 8 in the first byte */;
    icmp->checksum = ~((sum & 0xffff) + (sum >> 16));
    return XDP_TX;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"#;

#[test]
fn a_lab_is_made_used_and_removed() {
    let needs = Needs::of("xway::machine::a_lab_is_made_used_and_removed").root().command("ip").command("nsenter");
    if !needs.clang().met() {
        return;
    }
    let outer = Lab::new("xwaylab").unwrap();
    let here = outer.namespace("here").unwrap();
    let run = |args: &[&str]| ran(inside(&here).args(args));
    let name = unique('t');
    let _leftover = Leftover(&here, name.clone());

    let dry = run(&["lab", "up", &name, "--dry-run"]).exits(0).out;
    assert!(dry.contains(&format!("ip netns add xway-{name}-1\n")), "{dry}");
    run(&["lab", "down", &name]).exits(1).says("there is no lab");

    let made = run(&["lab", "up", &name, "--hosts", "2", "-j"]).exits(0).json();
    let host = |n: usize, field: &str| made["hosts"][n][field].as_str().unwrap().to_owned();
    assert_eq!((host(0, "interface"), host(1, "address")), (format!("{name}0"), "10.77.1.1".into()));
    run(&["lab", "up", &name]).exits(1).says("exists already");
    assert!(answered(&host(0, "namespace"), &host(0, "address")));
    assert!(answered(&host(1, "namespace"), &host(1, "address")));

    // A program that answers by XDP_TX reaches the host, though the host's end has no program.
    let dir = Dir::new();
    let object = compiled(&dir, "answer", ANSWERS, &[]);
    run(&["load", &host(0, "interface"), &object, "-m", "native"]).exits(0);
    here.ip(&["addr", "del", &format!("{}/24", host(0, "address")), "dev", &host(0, "interface")]).unwrap();
    let namespace = host(0, "namespace");
    let mac = here.ip(&["-br", "link", "show", "dev", &host(0, "interface")]).unwrap();
    let mac = mac.split_whitespace().nth(2).unwrap();
    let neighbour = ["-n", &namespace, "neigh", "replace", &host(0, "address"), "lladdr", mac, "dev", "eth0"];
    ran(Command::new("ip").args(neighbour)).exits(0);
    assert!(answered(&namespace, &host(0, "address")));

    let doctor = run(&["doctor", &host(0, "interface")]);
    assert!(doctor.code <= 1 && doctor.out.contains("veth-peer"), "{}", doctor.out);
    // A lab like it in another namespace, whose interfaces have the same numbers.
    let (there, twin) = (outer.namespace("there").unwrap(), unique('u'));
    let _twin = Leftover(&there, twin.clone());
    ran(inside(&there).args(["lab", "up", &twin, "--hosts", "2"])).exits(0);
    the_other_end_is_named(&here, &host(0, "interface"), &namespace);

    let labs = run(&["lab", "show", "-j"]).exits(0).json();
    let found = labs["labs"].as_array().unwrap().iter().find(|lab| lab["name"] == name.as_str()).unwrap();
    assert_eq!(found["hosts"].as_array().unwrap().len(), 2);
    assert_eq!(found["hosts"][0]["here"], true);
    run(&["unload", &host(0, "interface"), "-a"]).exits(0);
    run(&["lab", "down", &name]).exits(0);
    assert!(!here.ip(&["-br", "link"]).unwrap().contains(&name), "a wire is left");
}

/// Where the other end takes nothing it is named with its namespace, and the command that is printed mends it.
fn the_other_end_is_named(here: &Namespace, interface: &str, namespace: &str) {
    let needs = Needs::of("xway::machine::a_lab_is_made_used_and_removed (the other end)").command("ethtool");
    // Before it the kernel does not say what an interface takes.
    if !needs.kernel(6, 3).met() {
        return;
    }
    let finding = || {
        let doc = ran(inside(here).args(["doctor", interface, "-j"])).json();
        let mut all = doc["chapters"].as_array().unwrap().iter().flat_map(|c| c["findings"].as_array().unwrap());
        all.find(|f| f["topic"] == "veth-peer").unwrap_or_else(|| panic!("{doc}")).clone()
    };
    assert_eq!(finding()["grade"], "ok");
    let end = format!("nsenter --net=/run/netns/{namespace}");
    // The lab has put a program there that lets everything pass.
    let unload = format!("{end} {} unload eth0 -a && {end} ethtool -K eth0 gro off", env!("CARGO_BIN_EXE_xway"));
    ran(Command::new("sh").args(["-c", &unload])).exits(0);
    let found = finding();
    assert_eq!((&found["grade"], &found["mend"]), (&json!("note"), &json!(format!("{end} ethtool -K eth0 gro on"))));
    assert!(found["found"].as_str().unwrap().starts_with("eth0, in the namespace /run/netns/"), "{found}");
    ran(Command::new("sh").args(["-c", found["mend"].as_str().unwrap()])).exits(0);
    assert_eq!(finding()["grade"], "ok");
}

#[test]
fn names_that_cannot_be_are_usage_errors() {
    for args in [&["lab", "up", "Lab!", "--net", "9"][..], &["lab", "up", "lab", "--hosts", "0", "--net", "9"]] {
        xway(args).exits(2);
    }
}

#[test]
fn the_doctor_says_what_to_run() {
    let doctor = xway(&["doctor", "-j"]);
    assert!(doctor.code <= 1);
    let document = doctor.json();
    let chapters = document["chapters"].as_array().unwrap();
    assert_eq!(chapters[0]["about"], "machine");
    let mut worst = "ok";
    for finding in chapters.iter().flat_map(|c| c["findings"].as_array().unwrap()) {
        let grade = finding["grade"].as_str().unwrap();
        assert_eq!(finding["mend"].is_null(), grade == "ok", "{finding}");
        worst = if grade == "problem" || worst == "problem" {
            "problem"
        } else if grade == "note" {
            grade
        } else {
            worst
        };
    }
    assert_eq!(document["result"], worst);
    xway(&["doctor", "nothere0"]).exits(4).says("nothere0");
}

#[test]
fn completions_and_pages_know_every_verb() {
    let shells = ["bash", "zsh", "fish", "elvish", "powershell"];
    for shell in shells {
        assert!(xway(&["completions", shell]).exits(0).out.contains("inspect"), "{shell}");
    }
    let dir = Dir::new();
    let target = dir.path("man1");
    let written = xway(&["man", target.to_str().unwrap(), "-j"]).exits(0).json();
    let pages: Vec<&str> = written["pages"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for verb in ["xway.1", "xway-run.1", "xway-prog-inspect.1", "xway-map-update.1", "xway-lab-up.1"] {
        let page = pages.iter().find(|page| page.ends_with(&format!("/{verb}"))).unwrap_or_else(|| panic!("{verb}"));
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.contains(".TH") && text.contains("DESCRIPTION"), "{verb}");
    }
    assert!(xway(&["man"]).exits(0).out.contains(".TH xway 1"));
    // The page of a verb, also of one that has verbs below it; a word that is none makes no directory.
    for (verb, title) in [
        (&["map", "show"][..], ".TH xway-map-show 1"),
        (&["map"], ".TH xway-map 1"),
        (&["upgrade"], ".TH xway-upgrade 1"),
    ] {
        let ran = common::ran_in(&dir, &[&["man"], verb].concat()).exits(0);
        assert!(ran.out.contains(title), "{verb:?}: {}", ran.out);
    }
    common::ran_in(&dir, &["man", "upgrad"]).exits(2).says("upgrad: neither a verb nor a directory that is there");
    common::ran_in(&dir, &["man", "map", "shwo"]).exits(2).says("map shwo: neither");
    assert_eq!(dir.names(), ["man1"], "nothing was made but what was asked for by its path");
    // One that is there is one.
    common::ran_in(&dir, &["man", "man1"]).exits(0);
}

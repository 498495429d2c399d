//! What is refused says so in the same words on each hook, and what to do about it.

mod common;

use common::service::{KINDS, Up};
use common::wire::{Bench, ready};
use common::{Dir, compiled};

#[test]
fn the_same_refusal_has_the_same_words_on_each_hook() {
    if !ready("hints::the_same_refusal_has_the_same_words_on_each_hook") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("hints", true));
    let up = Up::new(&dir, None, Some(&bench.right));
    // Before the first port is open any number may become one.
    up.connect().open_port("sim:hints?count=1").unwrap();
    let service = ["--hook", "user", "--socket", &up.socket];
    for (to, place) in [(&[][..], ""), (&service[..], " --hook user")] {
        let run = |words: &str| bench.xway(&[&words.split(' ').collect::<Vec<_>>()[..], to].concat());
        // Numbers and names that nobody has.
        for (words, message, list) in [
            ("prog show id 2147483000", "no program with id 2147483000", "prog show"),
            ("prog dump xlated id 2147483000", "no program with id 2147483000", "prog show"),
            ("prog run id 2147483000 --data-in hex:00", "no program with id 2147483000", "prog show"),
            ("prog pin id 2147483000 /sys/fs/bpf/none", "no program with id 2147483000", "prog show"),
            ("prog show name nosuch_of_mine", "no program with name nosuch_of_mine", "prog show"),
            ("prog dump xlated name nosuch_of_mine", "no program with name nosuch_of_mine", "prog show"),
            ("btf dump prog id 2147483000", "no program with id 2147483000", "prog show"),
            ("map show id 2147483000", "no map with id 2147483000", "map show"),
            ("map dump id 2147483000", "no map with id 2147483000", "map show"),
            ("map show name nosuch_of_mine", "no map with name nosuch_of_mine", "map show"),
            ("map lookup name nosuch_of_mine key 1", "no map with name nosuch_of_mine", "map show"),
            ("link show id 2147483000", "no link with id 2147483000", "link show"),
            ("link detach id 2147483000", "no link with id 2147483000", "link show"),
        ] {
            let said = run(words).exits(1).err;
            assert_eq!(said, format!("xway: {message}\n  try: xway {list}{place}\n"), "{words}{place}");
        }
        let create = |kind: &str, key: u32| {
            run(&format!("map create /sys/fs/bpf/{kind} type {kind} key {key} value 4 entries 4 name {kind}")).exits(0);
        };
        for (words, why) in [
            ("queue key 4 value 4 entries 4", "a queue has no keys: key 0"),
            ("array key 8 value 4 entries 4", "keys of an array are indices: key 4"),
            ("lpm_trie key 8 value 4 entries 4", "an lpm_trie is made with flags 1"),
            ("lpm_trie key 4 value 4 entries 4 flags 1", "key 8 for IPv4"),
            ("ringbuf key 0 value 8 entries 4096", "key 0 value 0"),
            ("ringbuf key 0 value 0 entries 100", "a power of two, 4096 or more"),
            ("hash key 0 value 4 entries 4", "key BYTES, more than 0"),
            ("hash key 4 value 0 entries 4", "value BYTES, more than 0"),
            ("hash key 4 value 4", "entries N, more than 0"),
            ("array_of_maps key 4 value 4 entries 4", "inner_map WHICH"),
            ("hash key 4 value 4 entries 4294967295", "fewer entries"),
            ("hash key 4 value 4 entries 4 flags 0x800000", "flags 0x800000: not all of these are for a hash"),
        ] {
            run(&format!("map create /sys/fs/bpf/wrong type {words} name wrong")).exits(1).says(why);
        }
        for verb in ["dump xlated", "run"] {
            let said = run(&format!("prog {verb} nosuch_of_mine")).exits(3).err;
            let hint = "a program that is loaded: name nosuch_of_mine, id N, tag TAG or pinned PATH";
            assert_eq!(said, format!("xway: nosuch_of_mine: no such file\n  try: {hint}\n"));
        }
        for (kind, words, entry, why) in [
            ("trie", "type lpm_trie key 8 value 4 entries 4 flags 1", "hex 21 0 0 0 1 2 3 4 value 1", "at most 32"),
            ("ports", "type devmap key 4 value 4 entries 4", "0 value 2147483000", "the number of an "),
            ("cpus", "type cpumap key 4 value 4 entries 1", "0 value 999999999", "a queue of at most 16384 packets"),
            ("fixed", "type array key 4 value 4 entries 1", "0 value 1 noexist", "always there: without noexist"),
        ] {
            run(&format!("map create /sys/fs/bpf/{kind} {words} name {kind}")).exits(0);
            run(&format!("map update pinned /sys/fs/bpf/{kind} key {entry}")).exits(1).says(why);
        }
        let longer = "type array key 4 value 4 entries 1 name a_name_of_19_letters";
        let said = run(&format!("map create /sys/fs/bpf/longer {longer}")).exits(0).err;
        assert_eq!(
            said,
            "xway: a_name_of_19_letters: asked for this name, got a_name_of_19_le: Linux keeps 15 bytes of it\n"
        );
        create("array", 4);
        create("percpu_array", 4);
        create("queue", 0);
        for kind in ["array", "percpu_array"] {
            let words =
                "the removal failed with EINVAL (invalid argument)\n  try: elements of an array are always there";
            run(&format!("map delete pinned /sys/fs/bpf/{kind} key 1")).exits(1).says(words);
        }
        // A pin of another kind.
        let said = run("prog show pinned /sys/fs/bpf/queue").exits(1).err;
        assert!(said.contains("queue: it is a map"), "{said}");
        let taken = run("map create /sys/fs/bpf/queue type array key 4 value 4 entries 1 name taken").exits(1).err;
        assert!(taken.contains(&format!("take that pin away: xway map unpin /sys/fs/bpf/queue{place}\n")), "{taken}");
        run("link detach").exits(2).says("which link?\n  try: id N or pinned PATH");
        run("prog pin").exits(2).says("which program?\n  try: id N, name NAME, tag TAG or pinned PATH");
        run("map show id 99999999999").exits(2).says("no number from 0 to 4294967295");
        if place.is_empty() {
            bench.run("mkdir", &["/sys/fs/bpf/d"]).exits(0);
            // Where a BPF file system is mounted nobody is told to mount one.
            let outside = run("map pin pinned /sys/fs/bpf/queue /tmp/x").exits(4).err;
            assert!(outside.ends_with("try: a path below /sys/fs/bpf\n"), "{outside}");
            let long = format!("map pin pinned /sys/fs/bpf/queue /sys/fs/bpf/{}", "a".repeat(300));
            run(&long)
                .exits(1)
                .says("aaaaaaaaaaaa…: a name of 300 bytes; a file system takes 255\n  try: a shorter one");
            let over = run("map pin pinned /sys/fs/bpf/queue /sys/fs/bpf/d").exits(1).err;
            assert!(over.contains("try: a name in that directory: /sys/fs/bpf/d/NAME"), "{over}");
        }
        run("map freeze pinned /sys/fs/bpf/array").exits(0);
        let said = run("map freeze pinned /sys/fs/bpf/array").exits(1).err;
        assert!(said.ends_with("): it is frozen already (EPERM)\n") && said.lines().count() == 1, "{said}");
        for verb in ["lookup", "delete"] {
            run(&format!("map {verb} pinned /sys/fs/bpf/queue key 1"))
                .exits(2)
                .says("it has no keys\n  try: xway map push");
        }
    }
}

/// Who named no hook is told of both.
#[test]
fn packets_can_be_watched_without_a_service() {
    let dir = Dir::new();
    let socket = dir.arg("none.sock");
    let said = common::xway(&["dump", "lo", "-c", "1", "--socket", &socket]).exits(4).err;
    assert!(said.contains("try: xway dump lo --hook native for packets of Linux's hook; xway up -c"), "{said}");
    let said = common::xway(&["dump", "lo", "-c", "1", "--hook", "user", "--socket", &socket]).exits(4).err;
    assert!(!said.contains("--hook native"), "{said}");
}

#[test]
fn links_of_other_namespaces_are_left_alone() {
    if !ready("hints::links_of_other_namespaces_are_left_alone") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("elsewhere", true));
    let object = compiled(&dir, "sort", KINDS, &[]);
    let link = bench.json(&["load", "r0", &object])["attachment"]["link_id"].to_string();
    // The number is the machine's: from the other host it is that of somebody else's.
    let elsewhere = |words: &[&str]| {
        let done = bench.left.command(env!("CARGO_BIN_EXE_xway")).args(words).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    };
    let right = format!("/run/netns/{}", bench.right.name());
    let (code, out, err) = elsewhere(&["link", "detach", "id", &link]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let place =
        format!("link {link}: its interface is in another network namespace (r0 of {right}), where it holds program ");
    assert!(err.contains(&place), "{err}");
    let mend = format!("try: nsenter --net={right} xway link detach id {link}, or --force detaches it from here");
    assert!(err.contains(&mend), "{err}");
    let there = || bench.json(&["status", "r0"])["attachments"].as_array().unwrap().len();
    assert_eq!(there(), 1);
    let (code, out, err) = elsewhere(&["link", "detach", "id", &link, "--force"]);
    assert_eq!((code, out), (0, format!("link {link} is detached from r0 of {right}\n")), "{err}");
    assert_eq!(there(), 0);
    // In its own it needs no force.
    bench.xway(&["unload", "r0", "-a"]);
    let link = bench.json(&["load", "r0", &object])["attachment"]["link_id"].to_string();
    let doc = bench.json(&["link", "detach", "id", &link]);
    assert!(doc["namespace"].is_null() && doc["link"]["devname"] == "r0", "{doc}");
}

#[test]
fn a_program_in_the_other_mode_is_replaced_by_force() {
    if !ready("hints::a_program_in_the_other_mode_is_replaced_by_force") {
        return;
    }
    let (dir, bench) = (Dir::new(), Bench::new("othermode", true));
    let object = compiled(&dir, "sort", KINDS, &[]);
    bench.xway(&["load", "r0", &object, "-m", "native"]).exits(0);
    let said = bench.xway(&["load", "r0", &object, "-m", "generic"]).exits(1).err;
    assert!(said.contains("replace it in whichever mode: --force"), "{said}");
    bench.xway(&["load", "r0", &object, "-m", "generic", "--force"]).exits(0);
    assert_eq!(bench.json(&["status", "r0"])["attachments"][0]["mode"], "generic");
}

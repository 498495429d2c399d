//! The translation against an interpreter of classic BPF: through the verifier, and in each engine.

mod common;

use xway_filter::{CheckError, Classic, FilterError, compile, translate};
use xway_isa::Slot;
use xway_object::Program as Image;
use xway_testkit::packets::mixed_set;
use xway_testkit::{Rng, hex};
use xway_trial::{ENGINES, Trial};
use xway_vm::{FixedHost, TestRun};

fn image(slots: Vec<Slot>) -> Image {
    Image { name: "filter".into(), section: "xdp".into(), insns: slots, ..Image::default() }
}

/// What the translated program returns, once the verifier has accepted it.
struct Translated([Trial; ENGINES.len()]);

impl Translated {
    fn new(classic: &[Classic]) -> Translated {
        let image = image(translate(classic).unwrap());
        Translated(ENGINES.map(|engine| {
            Trial::link(&image, &[], engine).unwrap_or_else(|refusal| {
                panic!("{refusal}\n{}\n{classic:?}", xway_isa::listing(&image.insns, &xway_isa::NoNames).unwrap())
            })
        }))
    }

    fn run(&self, packet: &[u8]) -> u32 {
        let [interpreted, compiled] = self.0.each_ref().map(|trial| {
            let ran = trial.test_run(&TestRun::new(packet), &FixedHost::new(1)).unwrap();
            assert_eq!(ran.data_out, packet, "a filter changes nothing");
            ran.retval
        });
        assert_eq!(interpreted, compiled, "over {}", hex(packet));
        compiled
    }
}

/// It walks a chain of headers, so libpcap jumps back.
#[test]
fn protochain_is_refused_by_name() {
    if !have_libpcap("filter::protochain_is_refused_by_name") {
        return;
    }
    for expression in ["ip6 protochain 6", "tcp or ip protochain 51"] {
        let refused = translate(&compile(expression).unwrap()).unwrap_err();
        assert!(matches!(refused, CheckError::Back { .. }), "{refused}");
        assert!(refused.to_string().contains("protochain"), "{refused}");
    }
}

/// Expressions of every kind that the language has.
const EXPRESSIONS: &[&str] = &[
    "",
    "tcp port 80 and net 10.0.0.0/8",
    "vlan",
    "vlan 100 and tcp",
    "vlan and vlan",
    "ip6 proto 17",
    "ip6 and tcp dst port 443",
    "ether host 02:00:00:00:00:01",
    "ether multicast",
    "ether broadcast or arp",
    "portrange 1000-40000",
    "len > 100 and len <= 1514",
    "greater 1000",
    "less 60",
    "tcp[13] & 2 != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "ip[6:2] & 0x1fff = 0 and udp[8:4] > 7",
    "ip[2:2] - ((ip[0] & 0xf) << 2) - ((tcp[12] & 0xf0) >> 2) != 0",
    "icmp and icmp[0] = 8",
    "icmp6",
    "host 10.1.0.2 or ip6 host 2001:db8::1",
    "not (arp or icmp) and not port 53",
    "ip proto 47",
    "ether[len / 2] * 3 % 7 = 2",
    "ether[0] ^ 1 = 1 | 2",
    "pppoes",
    "src net 10.1.0.0 mask 255.255.0.0",
    "ether proto 0x88cc",
];

fn have_libpcap(name: &str) -> bool {
    match compile("tcp") {
        Err(FilterError::Missing { .. }) => {
            xway_testkit::skip(name, "libpcap");
            false
        }
        _ => true,
    }
}

#[test]
fn expressions_decide_as_classic_bpf_says() {
    if !have_libpcap("filter::translate::expressions_decide_as_classic_bpf_says") {
        return;
    }
    let packets = mixed_set();
    let mut matched = 0;
    for expression in EXPRESSIONS {
        let classic = compile(expression).unwrap();
        let translated = Translated::new(&classic);
        for packet in &packets {
            let want = common::interpret(&classic, &packet.bytes);
            assert_eq!(translated.run(&packet.bytes), want, "`{expression}` over {}", packet.name);
            matched += usize::from(want != 0);
        }
    }
    // The set is made to have something for most of them.
    assert!(matched > 200, "{matched} matches");
}

#[test]
fn what_libpcap_says_is_passed_on() {
    if !have_libpcap("filter::translate::what_libpcap_says_is_passed_on") {
        return;
    }
    let wrong = xway_filter::program("tcp prot 80").unwrap_err();
    assert!(wrong.to_string().starts_with("filter `tcp prot 80`: "), "{wrong}");
    let beside = xway_filter::program("inbound").unwrap_err();
    assert!(matches!(beside, FilterError::Untranslated { .. }), "{beside}");
    assert!(beside.to_string().contains("packet type"), "{beside}");
}

#[test]
fn random_programs_decide_as_classic_bpf_says_and_are_always_proved() {
    let mut rng = Rng::new(29);
    let packets = mixed_set();
    let (mut zero, mut other) = (0, 0);
    for round in 0..400 {
        let classic = common::random(&mut rng);
        xway_filter::check(&classic).unwrap();
        let translated = Translated::new(&classic);
        for _ in 0..6 {
            let packet = &rng.pick(&packets).bytes;
            let want = common::interpret(&classic, packet);
            assert_eq!(translated.run(packet), want, "round {round}: {classic:?} over {}", hex(packet));
            if want == 0 { zero += 1 } else { other += 1 }
        }
    }
    assert!(zero > 100 && other > 100, "{zero} packets without a match, {other} with one");
}

#[test]
fn the_longest_jumps_arrive() {
    // Loads between a jump and its end, as many as a jump can skip, and as many as a program can have.
    let load = Classic { code: 0x48, k: 2, ..Classic::default() };
    let end = |k| Classic { code: 0x06, k, ..Classic::default() };
    let mut skip = vec![Classic { code: 0x15, jt: 255, jf: 0, k: 0 }];
    skip.extend(std::iter::repeat_n(load, 255));
    skip.push(end(7));
    assert_eq!(Translated::new(&skip).run(&[0; 64]), 7);
    let mut far =
        vec![Classic { code: 0x15, jt: 1, jf: 0, k: 1 }, Classic { code: 0x05, k: 4092, ..Classic::default() }];
    far.extend(std::iter::repeat_n(load, 4092));
    far.extend([end(1), end(9)]);
    assert_eq!(far.len(), xway_filter::PROGRAM_MAX);
    assert_eq!(Translated::new(&far).run(&[0; 64]), 1);
}

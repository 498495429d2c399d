//! `bpf_fib_lookup` and `bpf_check_mtu`, in each engine, against the running kernel, in a network name space of the test's own.

use std::net::IpAddr;
use std::sync::Arc;

use xway_kernel::{KernelObject, TestInput, possible_cpus};
use xway_object::{Object, Program};
use xway_testkit::{Lab, Namespace, Needs, hex};
use xway_trial::{ENGINES, Trial};
use xway_verifier::Config;
use xway_vm::{Instance, SystemHost, TestRun};

const DIRECT: u32 = 1;
const OUTPUT: u32 = 2;
const SKIP_NEIGH: u32 = 4;
const TBID: u32 = 8;
const SRC: u32 = 16;
const MARK: u32 = 32;

/// Copies `struct bpf_fib_lookup` from the packet, calls the helper with flags from the packet, copies it back.
const LOOKUP: &str = "r6 = r1\nr2 = 14\nr3 = r10\nr3 += -64\nr4 = 64\ncall 189\n\
    r1 = r6\nr2 = 78\nr3 = r10\nr3 += -72\nr4 = 4\n*(u64 *)(r10 -72) = 0\ncall 189\n\
    r1 = r6\nr2 = r10\nr2 += -64\nr3 = 64\nr4 = *(u32 *)(r10 -72)\ncall 69\nr7 = r0\n\
    r1 = r6\nr2 = 14\nr3 = r10\nr3 += -64\nr4 = 64\ncall 190\nr0 = r7\nexit";

/// A question to the helper.
#[derive(Clone, Copy, Debug)]
struct Question {
    ifindex: u32,
    src: IpAddr,
    dst: IpAddr,
    tot_len: u16,
    tos: u8,
    table: u32,
    mark: u32,
    flags: u32,
}

impl Question {
    fn packet(&self) -> Vec<u8> {
        let mut p = vec![0u8; 100];
        let put = |p: &mut [u8], at: usize, bytes: &[u8]| p[14 + at..14 + at + bytes.len()].copy_from_slice(bytes);
        p[14] = if self.dst.is_ipv6() { 10 } else { 2 };
        p[15] = 6;
        put(&mut p, 6, &self.tot_len.to_ne_bytes());
        put(&mut p, 8, &self.ifindex.to_ne_bytes());
        p[14 + 12] = self.tos;
        for (at, addr) in [(16, self.src), (32, self.dst)] {
            match addr {
                IpAddr::V4(a) => put(&mut p, at, &a.octets()),
                IpAddr::V6(a) => put(&mut p, at, &a.octets()),
            }
        }
        if self.table != 0 {
            put(&mut p, 48, &self.table.to_ne_bytes());
        }
        put(&mut p, 52, &self.mark.to_ne_bytes());
        p[78..82].copy_from_slice(&self.flags.to_ne_bytes());
        p
    }
}

/// Sets up routes of every kind. Interfaces: `in0` (where packets come from) and `out0`, `out1`.
fn set_up(lab: &Lab, ns: &Namespace, others: &Namespace) {
    let ip = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        ns.ip(&args).unwrap_or_else(|e| panic!("ip {args:?}: {e}"))
    };
    for (name, peer) in [("in0", "in0p"), ("out0", "out0p"), ("out1", "out1p")] {
        lab.veth(ns, name, others, peer).unwrap();
    }
    ip("link set out1 mtu 1400");
    ip("addr add 10.1.0.1/24 dev in0");
    ip("addr add 10.2.0.1/24 dev out0");
    ip("addr add 10.3.0.1/24 dev out1");
    ip("-6 addr add fd01::1/64 dev in0 nodad");
    ip("-6 addr add fd02::1/64 dev out0 nodad");
    ip("-6 addr add fd03::1/64 dev out1 nodad");
    ip("neigh add 10.2.0.2 lladdr 02:00:00:00:02:02 dev out0 nud permanent");
    ip("neigh add 10.3.0.2 lladdr 02:00:00:00:03:02 dev out1 nud permanent");
    ip("neigh add fd02::2 lladdr 02:00:00:00:02:06 dev out0 nud permanent");
    ip("neigh add fd03::2 lladdr 02:00:00:00:03:06 dev out1 nud permanent");
    ip("route add 192.0.2.0/24 via 10.2.0.2 dev out0 metric 7");
    ip("route add 192.0.2.128/25 via 10.3.0.2 dev out1 metric 5");
    ip("route add 192.0.2.200/32 via 10.2.0.2 dev out0 mtu 1000");
    ip("route add 192.0.2.201/32 via 10.2.0.2 dev out0 mtu lock 1000");
    ip("-6 route add 2001:db8:1::7/128 via fd02::2 dev out0 mtu 1300");
    ip("-6 route add 2001:db8:1::8/128 via fd02::2 dev out0 mtu lock 1300");
    ip("route add 198.51.100.0/24 via 10.2.0.99 dev out0");
    ip("route add 203.0.113.0/26 via inet6 fd02::2 dev out0");
    ip("route add blackhole 203.0.113.64/26");
    ip("route add unreachable 203.0.113.128/26");
    ip("route add prohibit 203.0.113.192/26");
    ip("route add 192.0.2.0/24 via 10.3.0.2 dev out1 table 100");
    ip("route add 100.64.0.0/10 via 10.3.0.2 dev out1 src 10.1.0.1");
    ip("rule add fwmark 0x10 lookup 100");
    ip("-6 route add 2001:db8:1::/48 via fd02::2 dev out0 metric 7");
    ip("-6 route add 2001:db8:1:8000::/49 via fd03::2 dev out1");
    ip("-6 route add 2001:db8:2::/48 via fd02::99 dev out0");
    ip("-6 route add blackhole 2001:db8:3::/48");
    ip("-6 route add unreachable 2001:db8:4::/48");
    ip("-6 route add prohibit 2001:db8:5::/48");
    ip("-6 route add 2001:db8:1::/48 via fd03::2 dev out1 table 100");
}

fn forwarding(ns: &Namespace, interface: &str, on: bool) {
    for family in ["ipv4", "ipv6"] {
        let line = format!("echo {} > /proc/sys/net/{family}/conf/{interface}/forwarding", u8::from(on));
        assert!(ns.command("sh").arg("-c").arg(line).status().unwrap().success());
    }
}

fn questions(input: u32, out: u32) -> Vec<Question> {
    let destinations = [
        "192.0.2.5",
        "192.0.2.129",
        "192.0.2.200",
        "192.0.2.201",
        "2001:db8:1::7",
        "2001:db8:1::8",
        "198.51.100.1",
        "203.0.113.1",
        "203.0.113.70",
        "203.0.113.130",
        "203.0.113.200",
        "8.8.8.8",
        "10.1.0.1",
        "10.2.0.2",
        "10.2.0.3",
        "10.2.0.255",
        "100.64.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "127.0.0.1",
        "2001:db8:1::1",
        "2001:db8:1:8000::1",
        "2001:db8:2::1",
        "2001:db8:3::1",
        "2001:db8:4::1",
        "2001:db8:5::1",
        "2001:db8:9::1",
        "fd01::1",
        "fd02::2",
        "fd02::3",
        "ff02::1",
    ];
    let flags = [
        0,
        SKIP_NEIGH,
        DIRECT,
        OUTPUT,
        DIRECT | TBID,
        SRC,
        SRC | SKIP_NEIGH,
        MARK,
        DIRECT | OUTPUT,
        TBID,
        64,
        MARK | SKIP_NEIGH | SRC,
    ];
    let mut all = vec![];
    for dst in destinations {
        let dst: IpAddr = dst.parse().unwrap();
        let src: IpAddr = if dst.is_ipv6() { "fd01::2" } else { "10.1.0.2" }.parse().unwrap();
        for flags in flags {
            for tot_len in [0, 500, 1200, 1450, 1501] {
                for ifindex in [input, out] {
                    let table = if flags & TBID != 0 { 100 } else { 0 };
                    all.push(Question { ifindex, src, dst, tot_len, tos: 0, table, mark: 0x10, flags });
                }
            }
        }
        all.push(Question { ifindex: 9999, src, dst, tot_len: 0, tos: 0, table: 0, mark: 0, flags: 0 });
        all.push(Question { ifindex: 0, src, dst, tot_len: 0, tos: 0, table: 0, mark: 0, flags: 0 });
        let unknown_table =
            Question { ifindex: input, src, dst, tot_len: 0, tos: 0, table: 77, mark: 0, flags: DIRECT | TBID };
        all.push(unknown_table);
    }
    all
}

#[test]
fn routes_are_found_as_the_kernel_finds_them() {
    if !Needs::of("testkit::vm_fib::routes_are_found_as_the_kernel_finds_them").root().kernel(6, 10).command("ip").met()
    {
        return;
    }
    let lab = Lab::new("fib").unwrap();
    let ns = lab.namespace("router").unwrap();
    ns.ipv6(true).unwrap();
    let others = lab.namespace("others").unwrap();
    set_up(&lab, &ns, &others);
    let (input, out) = (ns.ifindex("in0").unwrap(), ns.ifindex("out0").unwrap());
    let program = Program {
        name: "fib".into(),
        section: "xdp".into(),
        insns: xway_isa::assemble(LOOKUP).unwrap(),
        ..Program::default()
    };
    let object = Arc::new(Object { programs: vec![program], license: Some("GPL".into()), ..Object::default() });
    let kernel = KernelObject::load(&object).unwrap();
    let theirs = kernel.programs[0].as_ref().unwrap();
    let instance = Instance::verified(object.clone(), possible_cpus(), Config::default()).unwrap();
    let ours = ENGINES.map(|engine| Trial::of(&instance, 0, engine));
    // Forwarding off, then on: the copy of the tables must notice.
    forwarding(&ns, "all", false);
    let wrong = ns
        .enter(|| {
            let host = SystemHost::new();
            let mut wrong = vec![];
            let mut compare = |what: &str| {
                for q in questions(input, out) {
                    let packet = q.packet();
                    let kernel = theirs.test_run(&TestInput::packet(&packet)).unwrap();
                    for (trial, engine) in ours.iter().zip(ENGINES) {
                        let mine = trial.test_run(&TestRun::new(&packet), &host).unwrap();
                        if (kernel.ret, &kernel.data) != (mine.retval, &mine.data_out) {
                            wrong.push(format!(
                                "{what}, {engine:?}: {} from {} flags {} len {} mark {}: kernel {:#x} {}, ours {:#x} {}",
                                q.dst,
                                q.ifindex,
                                q.flags,
                                q.tot_len,
                                q.mark,
                                kernel.ret,
                                hex(&kernel.data[14..78]),
                                mine.retval,
                                hex(&mine.data_out[14..78])
                            ));
                        }
                    }
                }
            };
            compare("forwarding off");
            forwarding(&ns, "all", true);
            compare("forwarding on");
            // Changes while the host lives.
            ns.ip(&["neigh", "add", "10.2.0.99", "lladdr", "02:00:00:00:02:99", "dev", "out0", "nud", "permanent"])
                .unwrap();
            ns.ip(&["route", "del", "192.0.2.128/25"]).unwrap();
            ns.ip(&["link", "set", "out1", "mtu", "1300"]).unwrap();
            compare("after changes");
            wrong
        })
        .unwrap();
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.iter().take(40).cloned().collect::<Vec<_>>().join("\n")
    );
}

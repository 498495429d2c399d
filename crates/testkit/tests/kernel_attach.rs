//! The kernel's own hook on a veth: what a link does to real packets.

use xway_isa::{Insn, MovExt, Operand, Reg, Slot, Width, encode};
use xway_kernel::{KernelProg, KernelTally, KernelTrace, ProgSpec, TraceError, XdpLink, XdpMode};
use xway_testkit::{Lab, Needs, traffic};

fn verdict(value: i32) -> Vec<Slot> {
    let mut slots = Vec::new();
    let set = Insn::Mov { width: Width::W64, dst: Reg::R0, src: Operand::Imm(value), ext: MovExt::None };
    [set, Insn::Exit].iter().for_each(|insn| encode(insn, &mut slots));
    slots
}

#[test]
fn a_link_decides_replaces_and_lets_go() {
    if !Needs::of("testkit::kernel_attach::a_link_decides_replaces_and_lets_go").root().command("ip").met() {
        return;
    }
    let lab = Lab::new("link").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.0.1/24").unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();
    let ping = || left.enter(|| traffic::ping([10, 9, 0, 2].into(), 1)).unwrap().unwrap();
    let (pass, drop_all) = (verdict(2), verdict(1));
    let load = |slots: &[Slot]| KernelProg::load(&ProgSpec::xdp("verdict", slots)).unwrap();

    assert_eq!(ping(), 1, "before");
    let ifindex = right.ifindex("r0").unwrap();
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let link = right.enter(|| XdpLink::attach(&load(&drop_all), ifindex, mode)).unwrap().unwrap();
        assert_eq!(ping(), 0, "{mode:?} drop");
        link.replace(&load(&pass)).unwrap();
        assert_eq!(ping(), 1, "{mode:?} pass");
        let busy = right.enter(|| XdpLink::attach(&load(&pass), ifindex, mode)).unwrap().unwrap_err();
        assert_eq!(busy.errno(), Some(xway_abi::Errno::EBUSY));
        drop(link);
    }
    assert_eq!(ping(), 1, "after");
}

/// The kernel's tracepoint says which program aborted a packet, and how often it did.
#[test]
fn an_aborted_packet_is_an_event() {
    let name = "testkit::kernel_attach::an_aborted_packet_is_an_event";
    let traced = std::path::Path::new("/sys/kernel/tracing/events/xdp/xdp_exception").exists();
    if !Needs::of(name).root().command("ip").that(traced, "tracefs at /sys/kernel/tracing").met() {
        return;
    }
    let lab = Lab::new("trace").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.1.1/24").unwrap();
    right.address("r0", "10.9.1.2/24").unwrap();
    let program = KernelProg::load(&ProgSpec::xdp("aborts", &verdict(0))).unwrap();
    let id = i64::from(program.info().unwrap().id);
    let mut trace = KernelTrace::open("xdp", &["xdp_exception", "xdp_redirect_err"]).unwrap();
    let tally = KernelTally::open("xdp", "xdp_exception").unwrap();
    assert!(matches!(KernelTrace::open("xdp", &["no_such"]), Err(TraceError::Unknown(_))));
    let ifindex = right.ifindex("r0").unwrap();
    let _link = right.enter(|| XdpLink::attach(&program, ifindex, XdpMode::Native)).unwrap().unwrap();
    assert_eq!(left.enter(|| traffic::ping([10, 9, 1, 2].into(), 1)).unwrap().unwrap(), 0);
    // Others may abort packets on this machine too: only this program's count.
    let mut ours = Vec::new();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while ours.is_empty() && std::time::Instant::now() < until {
        trace.wait(std::time::Duration::from_millis(200)).unwrap();
        trace.drain(&mut |event| ours.extend((event.get("prog_id") == Some(id)).then_some(event)));
    }
    let event = ours.first().expect("the ping was aborted");
    assert_eq!(&*event.name, "xdp_exception");
    assert_eq!((event.get("ifindex"), event.get("act")), (Some(i64::from(ifindex)), Some(0)));
    assert!(tally.count() >= ours.len() as u64);
}

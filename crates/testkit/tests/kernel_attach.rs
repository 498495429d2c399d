//! The kernel's own hook on a veth: what a link does to real packets.

use xway_isa::{Insn, MovExt, Operand, Reg, Slot, Width, encode};
use xway_kernel::{KernelProg, ProgSpec, XdpLink, XdpMode};
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

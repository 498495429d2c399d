//! The lab itself: two namespaces and a cable.

use xway_testkit::{Lab, Needs, traffic};

#[test]
fn clients_and_servers_meet() {
    if !Needs::of("testkit::lab::clients_and_servers_meet").root().command("ip").met() {
        return;
    }
    let lab = Lab::new("meet").unwrap();
    let (left, right) = (lab.namespace("left").unwrap(), lab.namespace("right").unwrap());
    lab.veth(&left, "l0", &right, "r0").unwrap();
    left.address("l0", "10.9.0.1/24").unwrap();
    right.address("r0", "10.9.0.2/24").unwrap();

    assert_eq!(left.enter(|| traffic::ping([10, 9, 0, 2].into(), 3)).unwrap().unwrap(), 3);

    let to = "10.9.0.2:7".parse().unwrap();
    let tcp = right.enter(|| traffic::tcp_echo_server(to, 2)).unwrap().unwrap();
    let udp = right.enter(|| traffic::udp_echo_server(to, 4)).unwrap().unwrap();
    for _ in 0..2 {
        left.enter(|| traffic::tcp_echo_client(to, 10_000)).unwrap().unwrap();
    }
    assert_eq!(left.enter(|| traffic::udp_echo_client(to, 4)).unwrap().unwrap(), 4);
    assert_eq!(tcp.join().unwrap().unwrap(), 2);
    assert_eq!(udp.join().unwrap().unwrap(), 4);

    let (received, sent) = left.packets("l0").unwrap();
    assert!(received >= 7 && sent >= 7, "{received} {sent}");
    assert!(left.ifindex("l0").unwrap() > 1);
}

#[test]
fn a_dropped_lab_leaves_nothing() {
    if !Needs::of("testkit::lab::a_dropped_lab_leaves_nothing").root().command("ip").met() {
        return;
    }
    let lab = Lab::new("gone").unwrap();
    let name = lab.namespace("a").unwrap().name().to_owned();
    let path = std::path::Path::new("/run/netns").join(&name);
    assert!(path.exists());
    drop(lab);
    assert!(!path.exists());
}

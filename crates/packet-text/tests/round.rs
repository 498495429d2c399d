//! Descriptions against an independent parser, and the dissector against descriptions.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use xway_packet_text::{Description, diff, dissect, summary};

fn build(json: &str) -> Vec<u8> {
    serde_json::from_str::<Description>(json).unwrap().build().unwrap()
}

fn error(json: &str) -> String {
    match serde_json::from_str::<Description>(json) {
        Ok(d) => d.build().unwrap_err().to_string(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn checksums_and_lengths_are_what_etherparse_computes() {
    for json in [
        r#"{"ipv4":{"src":"10.0.0.1","dst":"10.0.0.2","ttl":9,"id":7,"df":true},"udp":{"sport":1,"dport":2},"payload":"odd"}"#,
        r#"{"ipv4":{"options":"01 02"},"tcp":{"flags":"SA","seq":5,"options":"hex:020405b4"},"payload":33}"#,
        r#"{"ipv6":{"flow":77,"traffic_class":3},"udp":{},"payload":"x"}"#,
        r#"{"ipv6":{},"tcp":{"flags":"PA"},"payload":1000}"#,
        r#"{"vlan":[5,{"id":6,"pcp":3}],"ipv4":{},"icmp":{"id":1,"seq":2},"payload":"ping"}"#,
        r#"{"ipv6":{},"icmpv6":{"id":1,"seq":2},"payload":"ping"}"#,
    ] {
        let bytes = build(json);
        let parsed = SlicedPacket::from_ethernet(&bytes).unwrap();
        assert!(parsed.net.is_some(), "{json}");
        let net = parsed.net.as_ref().unwrap();
        if let NetSlice::Ipv4(ip) = net {
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum(), "{json}");
        }
        match (net, parsed.transport.as_ref().unwrap()) {
            (NetSlice::Ipv4(ip), TransportSlice::Udp(u)) => {
                let sum = u.to_header().calc_checksum_ipv4(&ip.header().to_header(), u.payload()).unwrap();
                assert_eq!(u.checksum(), sum);
            }
            (NetSlice::Ipv6(ip), TransportSlice::Udp(u)) => {
                let sum = u.to_header().calc_checksum_ipv6(&ip.header().to_header(), u.payload()).unwrap();
                assert_eq!(u.checksum(), sum);
            }
            (NetSlice::Ipv4(ip), TransportSlice::Tcp(t)) => {
                let h = ip.header().to_header();
                assert_eq!(t.checksum(), t.to_header().calc_checksum_ipv4(&h, t.payload()).unwrap());
            }
            (NetSlice::Ipv6(ip), TransportSlice::Tcp(t)) => {
                let h = ip.header().to_header();
                assert_eq!(t.checksum(), t.to_header().calc_checksum_ipv6(&h, t.payload()).unwrap());
            }
            (NetSlice::Ipv4(_), TransportSlice::Icmpv4(i)) => {
                assert_eq!(i.checksum(), i.header().icmp_type.calc_checksum(i.payload()));
            }
            (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(i)) => {
                assert!(i.is_checksum_valid(ip.header().source(), ip.header().destination()));
            }
            other => panic!("{json}: {other:?}"),
        }
        let wrong: Vec<_> =
            dissect(&bytes).into_iter().flat_map(|l| l.fields).filter(|f| f.value.contains("wrong")).collect();
        assert_eq!(wrong, [], "{json}");
    }
}

#[test]
fn what_is_said_is_what_is_found() {
    let bytes = build(
        r#"{"eth":{"src":"02:00:00:00:00:aa"},"vlan":100,"ipv4":{"ttl":3},
            "inner":{"ipv6":{"dst":"2001:db8::7"},"udp":{"dport":53},"payload":"abc"}}"#,
    );
    assert_eq!(
        summary(&bytes),
        "eth / vlan 100 / ipv4 192.0.2.1 > 192.0.2.2 / ipv6 2001:db8::1 > 2001:db8::7 / udp 40000 > 53 / payload 3"
    );
    let layers = dissect(&bytes);
    let field = |layer: &str, name: &str| {
        let l = layers.iter().find(|l| l.name == layer).unwrap();
        l.fields.iter().find(|f| f.name == name).unwrap().value.clone()
    };
    assert_eq!(field("eth", "src"), "02:00:00:00:00:aa");
    assert_eq!(field("ipv4", "proto"), "41");
    assert_eq!(field("ipv4", "ttl"), "3");
    assert_eq!(layers.iter().map(|l| l.range.len()).sum::<usize>(), bytes.len());
}

#[test]
fn explicit_fields_are_kept_even_when_wrong() {
    let bytes = build(
        r#"{"ipv4":{"checksum":1,"len":9999,"ihl":5,"version":7},"udp":{"checksum":0,"len":3},"pad":60,"truncate":50}"#,
    );
    assert_eq!(bytes.len(), 50);
    assert_eq!(bytes[14], 0x75);
    assert_eq!(&bytes[16..18], &9999u16.to_be_bytes());
    assert_eq!(&bytes[24..26], &[0, 1]);
    assert_eq!(&bytes[38..42], &[0, 3, 0, 0]);
    assert_eq!(build(r#"{"eth":"none","payload":"hex:0102"}"#), [1, 2]);
    assert_eq!(build(r#"{"payload":2}"#)[12..], [0x88, 0xb5, 0, 1]);
    assert_eq!(build(r#"{"arp":{"tpa":"10.0.0.9"}}"#).len(), 42);
}

#[test]
fn wrong_descriptions_say_what_is_wrong() {
    for (json, words) in [
        (r#"{"udp":{}}"#, "udp needs an ipv4 or ipv6 header"),
        (r#"{"ipv4":{},"ipv6":{}}"#, "both ipv4 and ipv6"),
        (r#"{"ipv4":{},"udp":{},"tcp":{}}"#, "both udp and tcp"),
        (r#"{"vlan":5000}"#, "VLAN id from 0 to 4095"),
        (r#"{"vlan":{"id":5000},"ipv4":{}}"#, "vlan.id is 5000"),
        (r#"{"ipv5":{}}"#, "unknown field `ipv5`"),
        (r#"{"ipv4":{"src":"1.2.3"}}"#, "IPv4"),
        (r#"{"ipv4":{"options":"zz"}}"#, "ipv4.options"),
        (r#"{"ipv4":{},"tcp":{"flags":"SX"}}"#, "'X'"),
        (r#"{"ipv4":{},"payload":70000}"#, "65535"),
        (r#"{"ipv4":{},"payload":65535}"#, "65555"),
        (r#"{"pad":4000000000}"#, "4000000000"),
        (r#"{"eth":"no"}"#, "none"),
    ] {
        let message = error(json);
        assert!(message.contains(words), "{json}: {message}");
    }
}

#[test]
fn a_difference_names_fields_and_bytes() {
    let a = build(r#"{"ipv4":{"ttl":64},"udp":{},"payload":20}"#);
    let b = build(r#"{"ipv4":{"ttl":63},"udp":{},"payload":20}"#);
    let text = diff(&a, &b).unwrap().to_string();
    assert!(text.contains("ipv4.ttl"), "{text}");
    assert!(text.contains("ipv4.checksum"), "{text}");
    assert!(text.contains("3 bytes differ") || text.contains("2 bytes differ"), "{text}");
    assert!(text.contains("^^"), "{text}");
    assert_eq!(diff(&a, &a), None);
    let longer = [a.clone(), vec![1]].concat();
    assert_eq!(diff(&a, &longer).unwrap().offsets, [a.len()]);
    assert!(!diff(&[], &vec![0xff; 70000]).unwrap().to_string().is_empty());
}

proptest! {
    #[test]
    fn any_bytes_can_be_shown(a in proptest::collection::vec(any::<u8>(), 0..200), b in proptest::collection::vec(any::<u8>(), 0..200)) {
        let covered: usize = dissect(&a).iter().map(|l| l.range.len()).sum();
        prop_assert_eq!(covered, a.len());
        let _ = summary(&b);
        if let Some(d) = diff(&a, &b) {
            prop_assert!(!d.to_string().is_empty());
        }
    }

    #[test]
    fn mutated_real_packets_can_be_shown(at in 0usize..120, value: u8, cut in 0usize..150) {
        let mut bytes = build(
            r#"{"vlan":[1,2],"ipv4":{"options":"01010101"},"inner":{"ipv6":{},"tcp":{"options":"02040506"},"payload":20}}"#,
        );
        let original = bytes.clone();
        if let Some(b) = bytes.get_mut(at) { *b = value; }
        bytes.truncate(cut);
        let covered: usize = dissect(&bytes).iter().map(|l| l.range.len()).sum();
        prop_assert_eq!(covered, bytes.len());
        if let Some(d) = diff(&original, &bytes) { let _ = d.to_string(); }
    }
}

//! What C may get wrong, as far as it can be noticed.
#![allow(unsafe_code)] // the C side of the interface

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};

use xway::{
    Packet, xway_error, xway_filter_free, xway_filter_load, xway_filter_map, xway_filter_run, xway_map_lookup,
    xway_verify,
};
use xway_testkit::{Needs, clang};

fn said() -> String {
    // SAFETY: a string of this thread.
    unsafe { CStr::from_ptr(xway_error()) }.to_string_lossy().into_owned()
}

#[test]
fn null_pointers_and_wrong_packets_are_errors_in_words() {
    // SAFETY: null pointers are allowed everywhere; the buffers below are as long as they say.
    unsafe {
        assert!(xway_filter_load(null(), 10, null(), 1).is_null());
        assert_eq!(said(), "a null pointer");
        xway_filter_free(null_mut());
        assert_eq!(xway_filter_run(null_mut(), null_mut(), 1), -14);
        assert!(xway_filter_map(null(), null()).is_null());
        assert_eq!(xway_map_lookup(null(), null(), null_mut()), -14);
        assert!(xway_filter_load(c"no object".as_ptr().cast(), 9, null(), 1).is_null());
        assert!(!said().is_empty());
        assert_eq!(xway_verify(null(), 10, null()), -14);
        assert_eq!(xway_verify(c"no object".as_ptr().cast(), 9, null()), -22);
    }
    if !Needs::of("xway-capi::refusals::null_pointers_and_wrong_packets_are_errors_in_words").clang().met() {
        return;
    }
    let source = clang::repository().join("bpf/samples/count.bpf.c");
    let object = clang::compile_file(&source, &[]).unwrap();
    let mut buffer = [0u8; 512];
    let good = Packet {
        buffer: buffer.as_mut_ptr(),
        size: 512,
        data: 256,
        data_end: 316,
        ingress_ifindex: 1,
        rx_queue: 0,
        data_meta: 0,
        verdict: 9,
        code: 9,
        redirect_kind: 9,
        redirect_target: 9,
        redirect_map: 9,
    };
    // SAFETY: as above.
    unsafe {
        let filter = xway_filter_load(object.as_ptr().cast(), object.len(), null(), 1);
        assert!(!filter.is_null(), "{}", said());
        assert_eq!(xway_verify(object.as_ptr().cast(), object.len(), null()), 0);
        assert_eq!(xway_verify(object.as_ptr().cast(), object.len(), c"nothing".as_ptr()), -22);
        let run = |packet: Packet| -> (c_int, Packet) {
            let mut packets = [packet];
            (xway_filter_run(filter, packets.as_mut_ptr(), 1), packets[0])
        };
        for (bad, words) in [
            (Packet { data: 39, ..good }, "packet 0: 39 bytes in front"),
            (Packet { data_end: 513, ..good }, "packet 0: packet at 256..513"),
            (Packet { data_end: 255, ..good }, "packet 0: packet at 256..255"),
            (Packet { buffer: null_mut(), ..good }, "a null pointer"),
        ] {
            let (number, after) = run(bad);
            assert!(number < 0 && said().starts_with(words), "{}", said());
            assert_eq!(after.verdict, 9, "nothing was touched");
        }
        let (number, after) = run(good);
        assert_eq!((number, after.verdict, after.code, after.redirect_kind), (0, 2, 2, 0));
        assert_eq!((after.data, after.data_end, after.data_meta), (256, 316, 256));
        assert!(xway_filter_map(filter, c"nothing".as_ptr()).is_null());
        assert_eq!(said(), "no map \"nothing\"");
        let map = xway_filter_map(filter, c"counters".as_ptr());
        assert_eq!(xway_map_lookup(map, 999u32.to_ne_bytes().as_ptr().cast(), [0u8; 4096].as_mut_ptr().cast()), -2);
        xway_filter_free(filter);
    }
}

//! Frames over the caller's own buffers.

use std::panic::{AssertUnwindSafe, catch_unwind};

use xway_packet::{Burst, Guest, GuestError, Guests};

#[test]
fn what_is_done_to_a_frame_is_done_to_the_buffer() {
    let mut guests = Guests::new().unwrap();
    let mut buffer = [0u8; 512];
    buffer[300..364].fill(7);
    let guest = Guest::new(&mut buffer, 300..364).unwrap().with_ingress(3, 1);
    let mut all = [guest];
    let (count, seen) = guests.host(&mut all, |frames| {
        let frame = &mut frames[0];
        assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (64, 260, 148));
        assert_eq!((frame.ingress_ifindex(), frame.rx_queue()), (3, 1));
        frame.adjust_head(-20).unwrap();
        frame.adjust_meta(-8).unwrap();
        frame.meta_mut().fill(9);
        frame.packet_mut()[..20].fill(5);
        frame.adjust_tail(100).unwrap();
        assert!(frame.adjust_tail(49).is_err(), "beyond the buffer");
        assert!(frame.adjust_head(-400).is_err(), "before the buffer");
        frame.chunk().len()
    });
    assert_eq!((count, seen), (1, 512));
    assert_eq!((all[0].range(), all[0].meta()), (280..464, &[9u8; 8][..]));
    assert_eq!(all[0].packet()[..21], [[5u8; 20].as_slice(), &[7]].concat());
    let [guest] = all;
    assert_eq!(guest.packet().len(), 184);
    assert_eq!((buffer[272], buffer[280], buffer[300], buffer[464]), (9, 5, 7, 0));
}

#[test]
fn positions_are_checked_before_anything_is_done() {
    let mut buffer = [0u8; 128];
    #[expect(clippy::reversed_empty_ranges)]
    for (range, error) in [
        (64..129, GuestError::Outside { start: 64, end: 129, len: 128 }),
        (65..64, GuestError::Outside { start: 65, end: 64, len: 128 }),
        (39..64, GuestError::Headroom(39)),
    ] {
        assert_eq!(Guest::new(&mut buffer, range).unwrap_err(), error);
    }
    assert!(Guest::new(&mut buffer, 40..128).is_ok());
    // No packet is longer than proofs say that it can be, nor grows to be.
    let most = xway_packet::layout::CHUNK_MAX as usize;
    let mut buffer = vec![0u8; 4 * most];
    assert_eq!(Guest::new(&mut buffer, 64..most + 1).unwrap_err(), GuestError::Far(most + 1));
    let mut all = [Guest::new(&mut buffer, 64..most).unwrap()];
    let grown = |frames: &mut [xway_packet::Frame]| frames[0].adjust_tail(1).is_ok();
    assert_eq!(Guests::new().unwrap().host(&mut all, grown), (1, false));
}

#[test]
fn more_guests_than_a_burst_are_left_to_the_next_call() {
    let mut guests = Guests::new().unwrap();
    let mut buffers = vec![[0u8; 256]; Burst::MAX + 3];
    let mut all: Vec<Guest<'_>> = buffers.iter_mut().map(|b| Guest::new(b, 100..160).unwrap()).collect();
    let touch = |frames: &mut [xway_packet::Frame]| frames.iter_mut().for_each(|f| f.packet_mut()[0] += 1);
    let (first, ()) = guests.host(&mut all, touch);
    assert_eq!(first, Burst::MAX);
    let (second, ()) = guests.host(&mut all[first..], touch);
    assert_eq!(second, 3);
    assert!(all.iter().all(|guest| guest.packet()[0] == 1));
}

#[test]
fn a_panic_gives_the_memory_back() {
    let mut guests = Guests::new().unwrap();
    let mut buffer = [1u8; 256];
    let mut all = [Guest::new(&mut buffer, 100..160).unwrap()];
    let panicked = catch_unwind(AssertUnwindSafe(|| guests.host(&mut all, |_| panic!("in the middle"))));
    assert!(panicked.is_err());
    // The descriptor is as new.
    let mut other = [2u8; 300];
    let mut all = [Guest::new(&mut other, 100..160).unwrap()];
    guests.host(&mut all, |frames| assert_eq!((frames[0].chunk().len(), frames[0].packet()[0]), (300, 2)));
}

#[test]
fn a_frame_that_is_kept_ends_the_process() {
    const CHILD: &str = "XWAY_GUEST_KEEPS";
    if std::env::var_os(CHILD).is_some() {
        let (mut guests, mut others) = (Guests::new().unwrap(), Guests::new().unwrap());
        let (mut one, mut two) = ([0u8; 256], [0u8; 256]);
        let mut first = [Guest::new(&mut one, 100..160).unwrap()];
        let mut second = [Guest::new(&mut two, 100..160).unwrap()];
        guests.host(&mut first, |mine| others.host(&mut second, |theirs| std::mem::swap(&mut mine[0], &mut theirs[0])));
        unreachable!("the frames were exchanged");
    }
    let name = "a_frame_that_is_kept_ends_the_process";
    let me = std::env::current_exe().unwrap();
    let child = std::process::Command::new(me).args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert!(!child.status.success());
    assert!(String::from_utf8_lossy(&child.stderr).contains("was kept"), "{child:?}");
}

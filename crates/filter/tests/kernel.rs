//! The translation against the kernel's own: the same filter on a socket, the same packets through it and
//! through each engine.
//!
//! A datagram socket of the local family takes classic filters from anybody and runs them over the bytes that were sent, so
//! no privilege and no network is needed.
#![allow(unsafe_code)] // SO_ATTACH_FILTER takes an address.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use xway_filter::{CheckError, Classic, translate};
use xway_object::Program as Image;
use xway_testkit::packets::mixed_set;
use xway_testkit::{Rng, hex};
use xway_trial::{ENGINES, Trial};
use xway_vm::{FixedHost, TestRun};

/// Puts a filter on a socket in place of the one that is there.
fn attach(socket: &UnixDatagram, program: &[Classic]) -> std::io::Result<()> {
    let mut insns: Vec<libc::sock_filter> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let fprog = libc::sock_fprog { len: insns.len() as u16, filter: insns.as_mut_ptr() };
    // SAFETY: the structure and the instructions that it points to live during the call, which copies both.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const fprog).cast(),
            size_of::<libc::sock_fprog>() as u32,
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// How many bytes of a packet the kernel's filter lets through.
fn kernel(near: &UnixDatagram, far: &UnixDatagram, packet: &[u8]) -> u32 {
    near.send(packet).unwrap();
    let mut buffer = [0; 2048];
    match far.recv(&mut buffer) {
        Ok(len) => len as u32,
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(e) => panic!("{e}"),
    }
}

fn ours(trial: &Trial, packet: &[u8]) -> u32 {
    trial.test_run(&TestRun::new(packet), &FixedHost::new(1)).unwrap().retval
}

#[test]
fn random_programs_decide_as_the_kernel_does() {
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let (mut rng, packets) = (Rng::new(31), mixed_set());
    let (mut let_through, mut dropped) = (0, 0);
    for round in 0..600 {
        let classic = common::random(&mut rng);
        attach(&far, &classic).unwrap_or_else(|e| panic!("round {round}: the kernel refuses {classic:?}: {e}"));
        let slots = translate(&classic).unwrap();
        let image = Image { insns: slots, ..Image::default() };
        let programs = ENGINES.map(|engine| Trial::link(&image, &[], engine).unwrap());
        for _ in 0..8 {
            let packet = &rng.pick(&packets).bytes;
            // The kernel cuts a packet to what the filter returns.
            let want = kernel(&near, &far, packet);
            for (program, engine) in programs.iter().zip(ENGINES) {
                let have = ours(program, packet).min(packet.len() as u32);
                assert_eq!(have, want, "round {round}, {engine:?}: {classic:?} over {}", hex(packet));
            }
            if want == 0 { dropped += 1 } else { let_through += 1 }
        }
    }
    assert!(let_through > 100 && dropped > 100, "{let_through} let through, {dropped} dropped");
}

#[test]
fn what_the_kernel_refuses_we_refuse() {
    let (_near, far) = UnixDatagram::pair().unwrap();
    let (mut rng, mut refused) = (Rng::new(37), 0);
    for round in 0..2000 {
        // A sensible program with one instruction spoilt.
        let mut classic = common::random(&mut rng);
        let at = rng.index(classic.len());
        match rng.below(3) {
            0 => classic[at].code = rng.below(256) as u16,
            1 => classic[at].k = rng.below(40) as u32,
            _ => (classic[at].jt, classic[at].jf) = (rng.below(60) as u8, rng.below(60) as u8),
        }
        // Reading what was never written is refused there, and zero here.
        let unwritten =
            classic.iter().take(18).zip(0u32..).any(|(i, n)| n > 0 && n < 17 && (i.code, i.k) != (0x02, n - 1));
        if unwritten {
            continue;
        }
        let (theirs, ours) = (attach(&far, &classic), xway_filter::check(&classic));
        refused += usize::from(theirs.is_err());
        if matches!(ours, Err(CheckError::Beside { .. })) {
            // Only behind the stack does this mean something.
            continue;
        }
        assert_eq!(theirs.is_err(), ours.is_err(), "round {round}: {theirs:?}, {ours:?}: {classic:?}");
    }
    assert!(refused > 100, "{refused} refused");
}

//! Calls, tail calls, maps, helpers and kernel functions, in each engine.

mod common;

use std::sync::Arc;

use common::{checked, fault, link, map, ret, run_on, run_with, try_link};
use xway_abi::{MapSpec, MapType, SpecialField, SpecialKind, map_flags};
use xway_maps::Map;
use xway_object::{KfuncRef, ProgramKind};
use xway_packet::{Redirect, RxMeta, Vlan};
use xway_trial::{Engine, Trial, in_each_engine};
use xway_vm::{FaultKind, FixedHost, LinkError, Timers};

in_each_engine![
    the_context_gives_pointers_and_numbers,
    tail_calls_stop_after_33,
    tail_calls_from_the_eighth_function_go_on_33_times,
    values_keep_their_address_and_are_shared,
    helpers_write_where_the_program_may_not_read,
    many_values_and_records_in_one_run,
    maps_in_maps,
    ring_records_are_granted_and_taken_back,
    redirect_targets_are_left_in_the_frame,
    metadata_of_the_port,
    programs_see_how_close_the_pool_is_to_its_limit,
    timers_run_their_callbacks_when_due,
    many_timers_run_in_the_order_in_which_they_are_due,
    timers_that_are_due_together_end_and_put_off_each_other,
    a_timer_in_an_element_that_is_gone_belongs_to_nobody,
];

fn the_context_gives_pointers_and_numbers(engine: Engine) {
    let text = "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = *(u32 *)(r1 +12)\nr5 = *(u32 *)(r1 +16)\n\
                r0 = r2\nr0 += 6\nif r0 > r3 goto pc+8\nr3 -= r2\nr0 = *(u8 *)(r2 +5)\nr0 <<= 8\nr0 += r3\nr0 <<= 8\nr0 += r4\nr0 <<= 8\nr0 += r5\nexit";
    let ran = run_on(&link(engine, text, &[]), &[9; 60], |frame| frame.set_ingress(3, 2));
    assert_eq!(ran.outcome.ret, 0x09_3c_03_02, "{:?}", ran.outcome.fault);
    assert_eq!(ran.outcome.insns, if engine == Engine::Interpreter { 16 } else { 0 });
}

fn tail_calls_stop_after_33(engine: Engine) {
    let array = map(MapType::ProgArray, 4, 4, 2);
    // Counts the bytes that it drops from the packet's first byte on: one a call.
    let text = "r6 = r1\nr2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 1\nif r4 > r3 goto out\nr5 = *(u8 *)(r2 +0)\n\
                r5 += 1\n*(u8 *)(r2 +0) = r5\nr1 = r6\nr2 = map[idx:0]\nr3 = 0\ncall 12\nr0 = 2\nexit\nout:\nr0 = 1\nexit";
    let program = link(engine, text, std::slice::from_ref(&array));
    array.set_program(0, Some(program.program().clone())).unwrap();
    let ran = run_on(&program, &[0; 64], |_| ());
    assert_eq!((ran.outcome.ret, ran.packet[0]), (2, 34), "{:?}", ran.outcome.fault);
    // An empty slot and an index behind the end fall through; the upper half of the index does not count.
    for (index, expected) in [("1", 2), ("7", 2), ("0x100000001", 2)] {
        let text = format!("r2 = map[idx:0]\nr3 = {index}\ncall 12\nr0 = 2\nexit");
        assert_eq!(ret(engine, &text, std::slice::from_ref(&array)), expected);
    }
    // From a function, the target returns to that function's caller.
    let other = link(engine, "r0 = 40\nexit", &[]);
    array.set_program(1, Some(other.program().clone())).unwrap();
    let text = "call sub\nr0 += 2\nexit\nsub:\nr2 = map[idx:0]\nr3 = 1\ncall 12\nr0 = 0\nexit";
    let text = text.replace("call sub", "r6 = 0\ncall sub");
    assert_eq!(ret(engine, &text, std::slice::from_ref(&array)), 42);
    array.clear_programs();
}

/// Each program may be eight functions deep, however many wait for it.
fn tail_calls_from_the_eighth_function_go_on_33_times(engine: Engine) {
    let array = map(MapType::ProgArray, 4, 4, 1);
    let mut text = String::from("call f1\nexit\n");
    (1..7).for_each(|n| text += &format!("f{n}: call f{}\nr0 += 1\nexit\n", n + 1));
    // The last one writes its own stack, which every activation finds empty.
    text += "f7: r6 = *(u64 *)(r10 -512)\n*(u64 *)(r10 -512) = 9\nr2 = map[idx:0]\nr3 = 0\ncall 12\nr0 = r6\nexit";
    let program = link(engine, &text, std::slice::from_ref(&array));
    array.set_program(0, Some(program.program().clone())).unwrap();
    let ran = run_on(&program, &[0; 64], |_| ());
    // 34 programs, in each of which six functions add one.
    assert_eq!((ran.outcome.ret, ran.outcome.fault.is_none()), (34 * 6, true), "{:?}", ran.outcome.fault);
    array.clear_programs();
    // One function more is too deep, as ever.
    let deeper = text.replace("call f1\nexit", "call f0\nexit\nf0: call f1\nexit");
    assert!(matches!(fault(&deeper, std::slice::from_ref(&array)).kind, FaultKind::Depth));
}

fn values_keep_their_address_and_are_shared(engine: Engine) {
    let hash = map(MapType::Hash, 4, 16, 8);
    let look_up = "r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\n";
    let text = format!(
        "*(u32 *)(r10 -4) = 5\n*(u64 *)(r10 -16) = 1\n*(u64 *)(r10 -24) = 2\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\nr3 = r10\n\
         r3 += -24\nr4 = 0\ncall 2\n{look_up}if r0 == 0 goto bad\nr6 = r0\n{look_up}if r0 != r6 goto bad\n\
         r1 = *(u64 *)(r6 +8)\nr1 += 40\n*(u64 *)(r6 +8) = r1\nr0 = *(u64 *)(r0 +8)\nexit\nbad:\nr0 = 99\nexit"
    );
    assert_eq!(ret(engine, &text, std::slice::from_ref(&hash)), 41);
    let mut value = [0; 16];
    hash.lookup(&5u32.to_ne_bytes(), &mut value, 0).unwrap();
    assert_eq!((value[0], value[8]), (2, 41));
}

fn helpers_write_where_the_program_may_not_read(engine: Engine) {
    let spec = MapSpec::new(MapType::Array, 4, 8, 1).with_flags(map_flags::WRONLY_PROG);
    let values = xway_maps::Map::create(&spec, &xway_maps::Env::with_cpus(1)).unwrap();
    let load = |offset: u32| format!("r1 = r6\nr2 = {offset}\nr3 = r7\nr4 = 8\ncall 189\n");
    let text = format!(
        "r6 = r1\n*(u32 *)(r10 -4) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nr7 = r0\n{}if r0 != 0 goto out\n{}out:\nexit",
        load(2),
        load(60)
    );
    let packet: Vec<u8> = (0..64).collect();
    let ran = run_on(&link(engine, &text, std::slice::from_ref(&values)), &packet, |_| ());
    assert!(ran.outcome.fault.is_none(), "{}", ran.outcome.fault.unwrap());
    // The second call fails: eight bytes at 60 are not in the packet. What was there stays.
    assert!((ran.outcome.ret as i64) < 0, "{}", ran.outcome.ret);
    let mut value = [0; 8];
    values.lookup(&0u32.to_ne_bytes(), &mut value, 0).unwrap();
    assert_eq!(value, packet[2..10]);
}

fn many_values_and_records_in_one_run(engine: Engine) {
    // 40 values, looked up twice each: the second time at the same address.
    let maps = [map(MapType::Array, 4, 8, 40), map(MapType::Ringbuf, 0, 0, 4096)];
    let text = "r6 = 0\nloop:\n*(u32 *)(r10 -4) = r6\nr2 = r10\nr2 += -4\nr1 = map[idx:0]\ncall 1\nif r0 == 0 goto bad\nr7 = r0\n\
                r1 = *(u64 *)(r7 +0)\nr1 += 1\n*(u64 *)(r7 +0) = r1\n\
                r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 != r7 goto bad\nr6 += 1\nif r6 != 40 goto loop\nr0 = 2\nexit\n\
                bad:\nr0 = 1\nexit";
    assert_eq!(ret(engine, text, &maps), 2);
    let mut value = [0; 8];
    maps[0].lookup(&39u32.to_ne_bytes(), &mut value, 0).unwrap();
    assert_eq!(value[0], 1);
    // More records in one run than there are slots before old ones are used again.
    let text = "r1 = 70000\nr2 = subprog[f]\nr3 = 0\nr4 = 0\ncall 181\nexit\n\
                f:\nr1 = map[idx:1]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto full\nr1 = r0\nr2 = 0\ncall 133\nfull:\nr0 = 0\nexit";
    assert_eq!(ret(engine, text, &maps), 70000);
}

fn maps_in_maps(engine: Engine) {
    let inner = map(MapType::Array, 4, 8, 4);
    let mut spec = xway_abi::MapSpec::new(MapType::ArrayOfMaps, 4, 4, 2);
    spec.inner = Some(Box::new(inner.spec().clone()));
    let outer = xway_maps::Map::create(&spec, &xway_maps::Env::with_cpus(2)).unwrap();
    outer.set_inner(&0u32.to_ne_bytes(), inner.clone()).unwrap();
    inner.update(&3u32.to_ne_bytes(), &77u64.to_ne_bytes(), 0).unwrap();
    let text = |slot: u32| {
        format!(
            "*(u32 *)(r10 -4) = {slot}\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\n\
             *(u32 *)(r10 -4) = 3\nr1 = r0\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\nr0 = *(u64 *)(r0 +0)\nexit\n\
             none:\nr0 = 1\nexit"
        )
    };
    assert_eq!(ret(engine, &text(0), std::slice::from_ref(&outer)), 77);
    assert_eq!(ret(engine, &text(1), std::slice::from_ref(&outer)), 1);
}

fn ring_records_are_granted_and_taken_back(engine: Engine) {
    let ring = map(MapType::Ringbuf, 0, 0, 4096);
    let maps = std::slice::from_ref(&ring);
    let reserve =
        "r1 = map[idx:0]\nr2 = 8\nr3 = 0\ncall 131\nif r0 != 0 goto have\nexit\nhave:\nr6 = r0\n*(u64 *)(r6 +0) = 55\n";
    assert_eq!(ret(engine, &format!("{reserve}r1 = r6\nr2 = 0\ncall 132\nr0 = 0\nexit"), maps), 0);
    let mut seen = vec![];
    ring.ringbuf().unwrap().consume(10, &mut |r| seen.push(r.to_vec())).unwrap();
    assert_eq!(seen, [55u64.to_ne_bytes().to_vec()]);
    let used = fault(&format!("{reserve}r1 = r6\nr2 = 0\ncall 132\nr0 = *(u64 *)(r6 +0)\nexit"), maps);
    assert!(used.to_string().contains("submitted or discarded"), "{used}");
    let twice = fault(&format!("{reserve}r1 = r6\nr2 = 0\ncall 133\nr1 = r6\nr2 = 0\ncall 133\nr0 = 0\nexit"), maps);
    assert!(matches!(twice.kind, FaultKind::Argument { arg: 1, .. }), "{twice}");
    // A record that a fault leaves behind is discarded, so that the ring goes on.
    fault(&format!("{reserve}r0 = *(u64 *)(r6 +1)\nexit"), maps);
    assert_eq!(ret(engine, &format!("{reserve}r1 = r6\nr2 = 0\ncall 132\nr0 = 0\nexit"), maps), 0);
    seen.clear();
    ring.ringbuf().unwrap().consume(10, &mut |r| seen.push(r.to_vec())).unwrap();
    assert!(!seen.is_empty());
}

fn redirect_targets_are_left_in_the_frame(engine: Engine) {
    let ran = run_on(&link(engine, "r1 = 7\nr2 = 0\ncall 23\nexit", &[]), &[0; 64], |_| ());
    assert_eq!((ran.outcome.ret, ran.redirect), (4, Redirect::Ifindex(7)));
    let devices = map(MapType::Devmap, 4, 4, 4);
    devices.update(&2u32.to_ne_bytes(), &9u32.to_ne_bytes(), 0).unwrap();
    let text = |key: u32, flags: u32| format!("r1 = map[idx:0]\nr2 = {key}\nr3 = {flags}\ncall 51\nexit");
    let go = |key, flags| {
        let ran = run_on(&link(engine, &text(key, flags), std::slice::from_ref(&devices)), &[0; 64], |_| ());
        (ran.outcome.ret, ran.redirect)
    };
    let map_id = devices.id();
    assert_eq!(go(2, 0), (4, Redirect::Device { map_id, key: 2, ifindex: 9 }));
    assert_eq!(go(3, 2), (2, Redirect::None));
    assert_eq!(go(3, 24), (4, Redirect::Broadcast { map_id, exclude_ingress: true }));
    assert_eq!(go(2, 32), (0, Redirect::None));
}

/// Machine code would read behind any number that a format calls a pointer, so it takes formats that nobody can change.
#[test]
fn trace_output_and_text() {
    let engine = Engine::Interpreter;
    let text = b"%d %5u|%-4x|%03d %lld %s%% %c %pI4\n\0";
    let mut code = String::new();
    for (i, b) in text.iter().enumerate() {
        code += &format!("*(u8 *)(r10 {}) = {b}\n", i as i32 - 64);
    }
    // Three values are what bpf_trace_printk takes; a fourth conversion is refused.
    let program = link(
        engine,
        &format!("{code}r1 = r10\nr1 += -64\nr2 = {}\nr3 = 1\nr4 = 2\nr5 = 3\ncall 6\nexit", text.len()),
        &[],
    );
    program.is_not_compiled("with a format that is not a constant");
    let host = FixedHost::new(1);
    assert_eq!(run_with(&program, &[0; 64], &host, |_| ()).outcome.ret as i64, -22);
    let values = [-5i64 as u32 as i64, 42, 0xab, 7, i64::MIN];
    let mut code = code.replace("%s%% %c %pI4", "");
    for (i, v) in values.iter().enumerate() {
        code += &format!("r1 = {v} ll\n*(u64 *)(r10 {}) = r1\n", -128 + 8 * i as i32);
    }
    let short = b"%d %5u|%-4x|%03d %lld\n\0";
    for (i, b) in short.iter().enumerate() {
        code += &format!("*(u8 *)(r10 {}) = {b}\n", i as i32 - 64);
    }
    let text =
        format!("{code}r1 = r10\nr1 += -64\nr2 = {}\nr3 = r10\nr3 += -128\nr4 = 40\ncall 177\nexit", short.len());
    let ran = run_with(&link(engine, &text, &[]), &[0; 64], &host, |_| ());
    assert_eq!(host.take_trace(), ["-5    42|ab  |007 -9223372036854775808\n"], "{:?}", ran.outcome.fault);
    assert_eq!(ran.outcome.ret, 39);
}

fn metadata_of_the_port(engine: Engine) {
    let program = |name: &str, stores: &str| {
        let insns = xway_isa::assemble(&format!("r2 = r10\nr2 += -8\nr3 = r10\nr3 += -16\n*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\ncall kfunc#0\n{stores}exit"))
            .unwrap();
        let kfuncs = vec![KfuncRef { name: name.into(), func_id: 0, weak: false }];
        let image = xway_object::Program { name: "meta".into(), insns, kfuncs, ..Default::default() };
        Trial::link(&image, &[], engine).unwrap()
    };
    let stores = "if r0 != 0 goto pc+4\nr0 = *(u64 *)(r10 -8)\nr1 = *(u64 *)(r10 -16)\nr1 <<= 32\nr0 += r1\n";
    let rx = RxMeta { hash: Some((0xabcd, 5)), timestamp: Some(123), vlan: Some(Vlan { proto: 0x8100, tci: 7 }) };
    for (name, expected) in [
        ("bpf_xdp_metadata_rx_hash", 0x5_0000_abcd),
        ("bpf_xdp_metadata_rx_timestamp", 123),
        ("bpf_xdp_metadata_rx_vlan_tag", 0x7_0000_0000 + u64::from(0x8100u16.to_be())),
    ] {
        let program = program(name, stores);
        let with = run_on(&program, &[0; 64], |f| f.set_rx_meta(rx));
        assert_eq!(with.outcome.ret, expected, "{name}: {:?}", with.outcome.fault);
        let without = run_on(&program, &[0; 64], |_| ());
        assert_eq!(without.outcome.ret, u64::from(-61i32 as u32), "{name}: an int");
    }
}

fn programs_see_how_close_the_pool_is_to_its_limit(engine: Engine) {
    let insns = xway_isa::assemble("call kfunc#0\nexit").unwrap();
    let kfuncs = vec![KfuncRef { name: "xway_pool_pressure".into(), func_id: 0, weak: true }];
    let image = xway_object::Program { name: "pressure".into(), insns, kfuncs, ..Default::default() };
    let program = Trial::link(&image, &[], engine).unwrap();
    let host = FixedHost::new(1);
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(20)).unwrap();
    let mut frames: Vec<_> = (0..20).map(|_| pool.alloc().unwrap()).collect();
    // 75 and 90 percent of 20 frames.
    for (away, level) in [(20, 2), (18, 2), (17, 1), (15, 1), (14, 0), (1, 0)] {
        while frames.len() > away {
            pool.release(frames.pop().unwrap());
        }
        frames[0].fill(&[0; 64]).unwrap();
        let outcome = program.run(&mut frames[0], &host, 0);
        assert_eq!((outcome.ret, outcome.fault.is_some()), (level, false), "{away} frames are away");
    }
}

/// A map whose values begin with a timer.
fn with_timer(map_type: MapType, value: u32, entries: u32) -> Arc<Map> {
    let special = vec![SpecialField { kind: SpecialKind::Timer, offset: 0 }];
    let spec = MapSpec { special, ..MapSpec::new(map_type, 4, value, entries) };
    Map::create(&spec, &xway_maps::Env::with_cpus(2)).unwrap()
}

fn timers_run_their_callbacks_when_due(engine: Engine) {
    let values = with_timer(MapType::Array, 32, 1);
    let value = "*(u32 *)(r10 -4) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 != 0 goto have\nexit\nhave:\nr6 = r0\n";
    let text = format!(
        "{value}r1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 169\nr7 = r0\nr1 = r6\nr2 = subprog[fire]\ncall 170\nr7 |= r0\n\
         r1 = r6\nr2 = 5000 ll\nr3 = 0\ncall 171\nr0 |= r7\nexit\n\
         fire:\nr1 = *(u64 *)(r3 +16)\nr1 += 1\n*(u64 *)(r3 +16) = r1\nr1 = *(u32 *)(r2 +0)\nr1 += 100\n*(u64 *)(r3 +24) = r1\nr0 = 0\nexit"
    );
    let program = link(engine, &text, std::slice::from_ref(&values));
    let timers = Timers::default();
    let host = FixedHost::new(1).with_clock(1_000_000, 0);
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&[0; 64]).unwrap();
    let outcome = program.run_with(&mut frame, &host, 0, &timers);
    assert_eq!(outcome.ret, 0, "{:?}", outcome.fault);
    let count = || {
        let mut value = [0; 32];
        values.lookup(&[0; 4], &mut value, 0).unwrap();
        (value[16], value[24])
    };
    assert_eq!(timers.next_due(&host), Some(5000));
    assert_eq!(timers.run_due(&host, 0).0, 0);
    host.advance(5000);
    assert_eq!(timers.run_due(&host, 0).0, 1);
    assert_eq!((count(), timers.next_due(&host)), ((1, 100), None));
    // A second initialisation is refused; a start arms it again.
    let outcome = program.run_with(&mut frame, &host, 0, &timers);
    assert_eq!(outcome.ret as i64 as i32, -16);
    assert_eq!(timers.next_due(&host), Some(5000));
    // An element that is overwritten loses its timer.
    values.update(&[0; 4], &[0; 32], 0).unwrap();
    host.advance(5000);
    assert_eq!((timers.run_due(&host, 0).0, timers.len()), (0, 0));
    pool.release(frame);
}

/// One for each flow: what each costs does not grow with their number (this took more than a minute when it did).
fn many_timers_run_in_the_order_in_which_they_are_due(engine: Engine) {
    const FLOWS: u32 = 20_000;
    let (values, fired) = (with_timer(MapType::Hash, 24, FLOWS), map(MapType::Queue, 0, 4, FLOWS));
    (0..FLOWS).for_each(|n| values.update(&n.to_ne_bytes(), &[0; 24], 0).unwrap());
    // The packet's first word is the flow, the second one the time, or nothing for its timer's end.
    let text = "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 8\nr0 = 1\nif r2 > r7 goto out\n\
                r8 = *(u32 *)(r6 +0)\nr9 = *(u32 *)(r6 +4)\n*(u32 *)(r10 -4) = r8\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\n\
                call 1\nif r0 != 0 goto have\nr0 = 1\nexit\n\
                have: r6 = r0\nif r9 == 0 goto end\nr1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 169\nr1 = r6\n\
                r2 = subprog[fire]\ncall 170\nr1 = r6\nr2 = r9\nr3 = 0\ncall 171\nexit\n\
                end: r1 = r6\ncall 172\nout: exit\n\
                fire: r1 = map[idx:1]\nr3 = 0\ncall 87\nr0 = 0\nexit";
    let program = link(engine, text, &[values, fired.clone()]);
    let (timers, host) = (Timers::default(), FixedHost::new(1).with_clock(1_000_000, 0));
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    let mut run = |flow: u32, due: u32| {
        frame.fill(&[flow.to_ne_bytes(), due.to_ne_bytes()].concat()).unwrap();
        program.run_with(&mut frame, &host, 0, &timers).ret
    };
    let due = |flow: u32| 1000 + 10 * (flow * 7919 % FLOWS);
    assert!((0..FLOWS).all(|flow| run(flow, due(flow)) == 0));
    assert_eq!(timers.next_due(&host), Some(1000));
    // Every fifth is ended, and one that is due next is put off.
    assert!((0..FLOWS).step_by(5).all(|flow| run(flow, 0) == 1 && run(flow, 0) == 0));
    let mut expected: Vec<u32> = (0..FLOWS).filter(|flow| !flow.is_multiple_of(5)).collect();
    expected.sort_by_key(|flow| due(*flow));
    run(expected[0], due(0) + 10 * FLOWS);
    expected.rotate_left(1);
    assert_eq!(timers.next_due(&host), Some(u64::from(due(expected[0]))));
    let mut ran = 0;
    while let Some(ns) = timers.next_due(&host) {
        host.advance(ns);
        ran += timers.run_due(&host, 0).0;
    }
    assert_eq!((ran, timers.len()), (expected.len(), FLOWS as usize));
    let pop = || {
        let mut flow = [0; 4];
        fired.pop(&mut flow).ok().map(|()| u32::from_ne_bytes(flow))
    };
    assert_eq!(std::iter::from_fn(pop).collect::<Vec<_>>(), expected);
    pool.release(frame);
}

/// As in Linux, where each leaves the queue when its turn comes: what a callback ends does not run any more, what it puts off runs later.
fn timers_that_are_due_together_end_and_put_off_each_other(engine: Engine) {
    let (values, fired) = (with_timer(MapType::Array, 24, 4), map(MapType::Queue, 0, 4, 16));
    // The packet's first word is the element, the second one the time. The callback of element 0 ends the timer of 1, and says whether it
    // was armed, and starts that of 2 anew.
    let look_up =
        |n: &str| format!("*(u32 *)(r10 -4) = {n}\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n");
    let push = "r1 = map[idx:1]\nr2 = r10\nr2 += -4\nr3 = 0\ncall 87\n";
    let text = format!(
        "r6 = *(u32 *)(r1 +0)\nr7 = *(u32 *)(r1 +4)\nr2 = r6\nr2 += 8\nr0 = 1\nif r2 > r7 goto end\n\
         r8 = *(u32 *)(r6 +0)\nr9 = *(u32 *)(r6 +4)\n*(u32 *)(r10 -4) = r8\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\n\
         if r0 == 0 goto end\nr6 = r0\nr1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 169\nr1 = r6\nr2 = subprog[fire]\ncall 170\n\
         r1 = r6\nr2 = r9\nr3 = 0\ncall 171\nend: exit\n\
         fire: r6 = *(u32 *)(r2 +0)\n*(u32 *)(r10 -4) = r6\n{push}if r6 != 0 goto out\n\
         {first}r1 = r0\ncall 172\n*(u32 *)(r10 -4) = r0\n{push}\
         {second}r1 = r0\nr2 = 5000\nr3 = 0\ncall 171\nout: r0 = 0\nexit",
        first = look_up("1"),
        second = look_up("2"),
    );
    let program = link(engine, &text, &[values, fired.clone()]);
    let (timers, host) = (Timers::default(), FixedHost::new(1).with_clock(1_000_000, 0));
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    for (element, due) in [(0u32, 100u32), (1, 200), (2, 300), (3, 400)] {
        frame.fill(&[element.to_ne_bytes(), due.to_ne_bytes()].concat()).unwrap();
        let outcome = program.run_with(&mut frame, &host, 0, &timers);
        assert_eq!(outcome.ret, 0, "{:?}", outcome.fault);
    }
    let fired = || -> Vec<u32> {
        let mut word = [0; 4];
        std::iter::from_fn(|| fired.pop(&mut word).ok().map(|()| u32::from_ne_bytes(word))).collect()
    };
    host.advance(1000);
    let (ran, faults) = timers.run_due(&host, 0);
    assert_eq!((ran, faults.len(), fired()), (2, 0, vec![0, 1, 3]));
    assert_eq!(timers.next_due(&host), Some(5000));
    host.advance(5000);
    assert_eq!((timers.run_due(&host, 0).0, fired(), timers.next_due(&host)), (1, vec![2], None));
    pool.release(frame);
}

fn a_timer_in_an_element_that_is_gone_belongs_to_nobody(engine: Engine) {
    let values = with_timer(MapType::Hash, 16, 4);
    values.update(&[0; 4], &[0; 16], 0).unwrap();
    // Looked up, deleted, initialised: a verified program may do that, and so may two programs at once.
    let program = link(
        engine,
        "*(u32 *)(r10 -4) = 0\nr1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 != 0 goto have\nexit\nhave:\nr6 = r0\n\
         r1 = map[idx:0]\nr2 = r10\nr2 += -4\ncall 3\nr1 = r6\nr2 = map[idx:0]\nr3 = 1\ncall 169\nr0 += 7\nexit",
        std::slice::from_ref(&values),
    );
    let (timers, host) = (Timers::default(), FixedHost::new(1));
    let mut pool = xway_packet::Pool::new(xway_packet::PoolConfig::new(1)).unwrap();
    let mut frame = pool.alloc().unwrap();
    frame.fill(&[0; 64]).unwrap();
    for _ in 0..5000 {
        let outcome = program.run_with(&mut frame, &host, 0, &timers);
        assert_eq!(outcome.ret, 7, "{:?}", outcome.fault.map(|f| f.to_string()));
        values.update(&[0; 4], &[0; 16], 0).unwrap();
    }
    assert!(timers.len() <= 1024, "{} timers of nobody are kept", timers.len());
    pool.release(frame);
}

/// As Linux, which was asked: the first program says for which kind an array is, by being loaded or by being put in.
#[test]
fn arrays_of_programs_are_of_one_kind() {
    let text = "r2 = map[idx:0]\nr3 = 0\ncall 12\nr0 = 2\nexit";
    let kinds =
        |frags| [ProgramKind::Xdp { frags }, ProgramKind::XdpDevmap { frags }, ProgramKind::XdpCpumap { frags }];
    let kinds = [kinds(false), kinds(true)].concat();
    for (n, first) in kinds.iter().enumerate() {
        for (m, second) in kinds.iter().enumerate() {
            let jumps = [map(MapType::ProgArray, 4, 4, 2)];
            let target = try_link("r0 = 1\nexit", &[], *first).unwrap();
            match n % 2 {
                0 => drop(try_link(text, &jumps, *first).unwrap()),
                _ => jumps[0].set_program(0, Some(target)).unwrap(),
            }
            let linked = try_link(text, &jumps, *second);
            match n == m {
                true => drop(linked.unwrap()),
                false => assert!(matches!(linked, Err(LinkError::OtherPrograms { at: 0, .. })), "{first:?} {second:?}"),
            }
            jumps[0].clear_programs();
        }
    }
}

#[test]
fn linking_says_what_is_wrong() {
    let xdp = ProgramKind::Xdp { frags: false };
    let error = |text: &str| try_link(text, &[], xdp).expect_err("no error");
    assert!(matches!(error("r0 = 0\nr1 = map[idx:0]\nexit"), LinkError::NoMap { at: 1, index: 0, .. }));
    assert!(matches!(error("r0 = 0\nr1 = map[fd:3]\nexit"), LinkError::Unsupported { at: 1, .. }));
    assert!(matches!(error("r0 = 0"), LinkError::OpenEnd { at: 0, .. }));
    assert!(matches!(error("goto pc+5\nexit"), LinkError::Target { at: 0, target: 6, .. }));
    assert!(matches!(error("goto pc+1\nr0 = 5 ll\nexit"), LinkError::Target { target: 2, .. }));
    // What cannot be called is an error only when it is reached.
    let unreached = try_link("r0 = 1\nif r0 == 1 goto out\ncall 9\nout:\nexit", &[], xdp).unwrap();
    assert_eq!(checked(&unreached).ret, 1);
    assert!(fault("call 9\nexit", &[]).to_string().contains("does not let XDP programs call"));
    assert!(fault("call 999\nexit", &[]).to_string().contains("does not exist"));
}

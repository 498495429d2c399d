//! The body.

mod attachments;
mod inner;
mod shared;

pub use attachments::attachments;

use std::path::Path;

use xway_abi::{Errno, MapSpec, MapType, map_flags};
use xway_hook::{AttachRequest, Blame, Hook, HookError, Image, LoadRequest, MapId, ObjectId, ProgId, TestRequest};
use xway_object::LoadOptions;

/// Counts packets by their length's class, calls a program behind an index, and can be refused on demand.
const SOURCE: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8); __type(key, __u32); __type(value, __u64); }
    lengths SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); }
    jumps SEC(".maps");
SEC("xdp") int count(struct xdp_md *ctx)
{
    __u32 len = ctx->data_end - ctx->data;
    __u64 one = 1, *seen = bpf_map_lookup_elem(&lengths, &len);
    if (seen)
        __sync_fetch_and_add(seen, 1);
    else
        bpf_map_update_elem(&lengths, &len, &one, BPF_ANY);
    bpf_tail_call(ctx, &jumps, 1);
    return XDP_PASS;
}
SEC("xdp") int shout(struct xdp_md *ctx)
{
    char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + 14 > end)
        return XDP_ABORTED;
    data[0] = 0x55;
    return XDP_TX;
}
char _license[] SEC("license") = "GPL";
"#;

/// Adds up lengths, and drops above a limit that others set.
const GLOBALS: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
__u64 seen;
volatile __u64 limit = 100;
const volatile __u32 otherwise = 2;
SEC("xdp") int weigh(struct xdp_md *ctx)
{
    __u64 len = ctx->data_end - ctx->data;
    __sync_fetch_and_add(&seen, len);
    return len < limit ? otherwise : XDP_DROP;
}
char _license[] SEC("license") = "GPL";
"#;

const REFUSED: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int peek(struct xdp_md *ctx) { return *(char *)(long)ctx->data; }
char _license[] SEC("license") = "GPL";
"#;

fn image(text: &str) -> Image {
    let bytes = xway_testkit::clang::compile_text("conformance", text, &[]).unwrap();
    Image::parse(&bytes, &LoadOptions::default()).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, HookError>, errno: Errno) {
    let error = answer.unwrap_err();
    assert_eq!(error.errno, Some(errno), "{error}");
    assert!(!error.message.is_empty());
}

/// Runs everything. `dir` is a place for pins, which does not exist yet; nothing is left there.
pub fn run(hook: &mut dyn Hook, dir: &Path) {
    maps(hook);
    batches(hook);
    pins(hook, dir);
    programs(hook, dir);
    mapped(hook);
    shared::another_authors_maps(hook, dir);
    inner::special_fields(hook);
    unknown(hook);
}

fn u32s(n: u32) -> Vec<u8> {
    n.to_ne_bytes().to_vec()
}

fn maps(hook: &mut dyn Hook) {
    let id = hook.map_create("pairs", &MapSpec::new(MapType::Hash, 4, 8, 2)).unwrap();
    let info = hook.map_info(id).unwrap();
    assert_eq!((info.name.as_str(), info.map_type, info.key_size), ("pairs", MapType::Hash, 4));
    assert_eq!((info.value_size, info.user_value_size, info.max_entries, info.frozen), (8, 8, 2, false));
    assert!(info.memory.is_some_and(|bytes| bytes > 0));
    assert!(hook.maps().unwrap().iter().any(|m| m.id == id));

    refused(hook.map_lookup(id, &u32s(1), 0), Errno::ENOENT);
    hook.map_update(id, &u32s(1), &[7; 8], map_flags::NOEXIST).unwrap();
    refused(hook.map_update(id, &u32s(1), &[8; 8], map_flags::NOEXIST), Errno::EEXIST);
    refused(hook.map_update(id, &u32s(2), &[8; 8], map_flags::EXIST), Errno::ENOENT);
    assert_eq!(hook.map_lookup(id, &u32s(1), 0).unwrap(), [7; 8]);
    assert_eq!(hook.map_next_key(id, None).unwrap(), Some(u32s(1)));
    assert_eq!(hook.map_next_key(id, Some(&u32s(1))).unwrap(), None);
    hook.map_update(id, &u32s(2), &[2; 8], 0).unwrap();
    refused(hook.map_update(id, &u32s(3), &[3; 8], 0), Errno::E2BIG);
    assert_eq!(hook.map_take(id, &u32s(2)).unwrap(), [2; 8]);
    hook.map_delete(id, &u32s(1)).unwrap();
    refused(hook.map_delete(id, &u32s(1)), Errno::ENOENT);
    assert_eq!(hook.map_types(id).unwrap(), None);
    hook.map_freeze(id).unwrap();
    refused(hook.map_update(id, &u32s(1), &[7; 8], 0), Errno::EPERM);
    // Linux 6.1 says that somebody has done it, later ones that it may not be written.
    let again = hook.map_freeze(id).unwrap_err();
    assert!(matches!(again.errno, Some(Errno::EPERM | Errno::EBUSY)), "{again}");
    assert!(hook.map_info(id).unwrap().frozen);
    hook.release(ObjectId::Map(id)).unwrap();
    refused(hook.release(ObjectId::Map(id)), Errno::ENOENT);

    let queue = hook.map_create("queue", &MapSpec::new(MapType::Queue, 0, 4, 2)).unwrap();
    for n in [5, 6] {
        hook.map_update(queue, &[], &u32s(n), 0).unwrap();
    }
    refused(hook.map_update(queue, &[], &u32s(7), 0), Errno::E2BIG);
    assert_eq!(hook.map_lookup(queue, &[], 0).unwrap(), u32s(5), "the first is looked at");
    assert_eq!(hook.map_take(queue, &[]).unwrap(), u32s(5));
    assert_eq!(hook.map_take(queue, &[]).unwrap(), u32s(6));
    refused(hook.map_take(queue, &[]), Errno::ENOENT);
    hook.release(ObjectId::Map(queue)).unwrap();

    // Every CPU has a value.
    let each = hook.map_create("each", &MapSpec::new(MapType::PercpuArray, 4, 4, 1)).unwrap();
    let size = hook.map_info(each).unwrap().user_value_size as usize;
    assert!(size >= 8 && size.is_multiple_of(8));
    assert_eq!(hook.map_lookup(each, &u32s(0), 0).unwrap().len(), size);
    hook.release(ObjectId::Map(each)).unwrap();

    // A map in a map, by number.
    let inner = MapSpec::new(MapType::Array, 4, 4, 1);
    let outer = MapSpec { inner: Some(Box::new(inner.clone())), ..MapSpec::new(MapType::ArrayOfMaps, 4, 4, 2) };
    let (outer, inner) = (hook.map_create("outer", &outer).unwrap(), hook.map_create("inner", &inner).unwrap());
    hook.map_store(outer, &u32s(1), ObjectId::Map(inner), 0).unwrap();
    assert_eq!(hook.map_lookup(outer, &u32s(1), 0).unwrap(), u32s(inner.0));
    refused(hook.map_lookup(outer, &u32s(0), 0), Errno::ENOENT);
    refused(hook.map_store(outer, &u32s(0), ObjectId::Map(MapId(u32::MAX - 1)), 0), Errno::ENOENT);
    hook.release(ObjectId::Map(outer)).unwrap();
    hook.release(ObjectId::Map(inner)).unwrap();

    refused(hook.map_create("none", &MapSpec::new(MapType::Hash, 0, 8, 2)), Errno::EINVAL);
}

fn batches(hook: &mut dyn Hook) {
    let id = hook.map_create("batch", &MapSpec::new(MapType::Array, 4, 4, 100)).unwrap();
    let all: Vec<_> = (0..100).map(|n| (u32s(n), u32s(n * 3))).collect();
    assert_eq!(hook.map_update_batch(id, &all, 0).unwrap(), 100);
    let (mut seen, mut from) = (Vec::new(), None);
    loop {
        let part = hook.map_lookup_batch(id, from.as_deref(), 33).unwrap();
        assert!(part.entries.len() <= 33);
        seen.extend(part.entries);
        from = part.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(seen, all);
    hook.release(ObjectId::Map(id)).unwrap();

    let id = hook.map_create("some", &MapSpec::new(MapType::Hash, 4, 4, 100)).unwrap();
    assert_eq!(hook.map_update_batch(id, &all, 0).unwrap(), 100);
    let keys: Vec<_> = (90..110).map(u32s).collect();
    assert_eq!(hook.map_delete_batch(id, &keys).unwrap(), 10, "it ends at the first that is not there");
    refused(hook.map_delete_batch(id, &keys), Errno::ENOENT);
    hook.release(ObjectId::Map(id)).unwrap();
}

/// Global variables in this process's memory: read and written there while programs run, as skeletons of objects do it.
fn mapped(hook: &mut dyn Hook) {
    let objects = hook.load(&image(GLOBALS), &LoadRequest::default()).unwrap();
    let program = objects.program("weigh").unwrap();
    let of = |section: &str| objects.maps.iter().find(|(name, _)| name.ends_with(section)).unwrap().1;
    let (bss, data, rodata) = (of(".bss"), of(".data"), of(".rodata"));
    let run = |hook: &mut dyn Hook| {
        let test = TestRequest { data: &[0; 64], ctx: None, repeat: 1 };
        hook.test_run(program, &test).unwrap().ret
    };
    assert_eq!(run(hook), 2);
    let (seen, limit, constant) =
        (hook.map_window(bss, false).unwrap(), hook.map_window(data, true).unwrap(), hook.map_window(rodata, false));
    assert_eq!(constant.unwrap().load(0, 0, 4), Ok(2));
    assert_eq!((seen.load(0, 0, 8), limit.load(0, 0, 8)), (Ok(64), Ok(100)));
    // The program goes by what is written here, at once.
    limit.store(0, 0, 8, 64).unwrap();
    assert_eq!(run(hook), 1);
    assert_eq!(seen.load(0, 0, 8), Ok(128));
    assert_eq!(seen.store(0, 0, 8, 0), Err(Errno::EACCES));
    // What programs only read is nobody's to write, and what is frozen neither.
    refused(hook.map_window(rodata, true), Errno::EPERM);
    refused(hook.map_freeze(data), Errno::EBUSY);
    drop(limit);
    hook.map_freeze(data).unwrap();
    refused(hook.map_window(data, true), Errno::EPERM);
    let plain = hook.map_create("plain", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    refused(hook.map_window(plain, false), Errno::EINVAL);
    let hash = hook.map_create("hash", &MapSpec::new(MapType::Hash, 4, 4, 1)).unwrap();
    refused(hook.map_window(hash, false), Errno::ENOTSUPP);
    let constant = MapSpec::new(MapType::Array, 4, 4, 1).with_flags(map_flags::MMAPABLE | map_flags::RDONLY_PROG);
    let constant = hook.map_create("constant", &constant).unwrap();
    refused(hook.map_window(constant, true), Errno::EACCES);
    refused(hook.map_window(MapId(u32::MAX - 1), false), Errno::ENOENT);
    for map in objects.maps.iter().map(|(_, id)| *id).chain([plain, hash, constant]) {
        hook.release(ObjectId::Map(map)).unwrap();
    }
    hook.release(ObjectId::Program(program)).unwrap();
    // The memory stays with who has it.
    assert_eq!(seen.load(0, 0, 8), Ok(128));
}

fn pins(hook: &mut dyn Hook, dir: &Path) {
    let path = dir.join("kept");
    refused(hook.pinned(&path), Errno::ENOENT);
    let id = hook.map_create("kept", &MapSpec::new(MapType::Array, 4, 4, 1)).unwrap();
    hook.map_update(id, &u32s(0), &u32s(42), 0).unwrap();
    hook.pin(ObjectId::Map(id), &path).unwrap();
    refused(hook.pin(ObjectId::Map(id), &path), Errno::EEXIST);
    hook.release(ObjectId::Map(id)).unwrap();
    assert_eq!(hook.pinned(&path).unwrap(), ObjectId::Map(id), "the same map, with its number");
    assert_eq!(hook.map_lookup(id, &u32s(0), 0).unwrap(), u32s(42));
    hook.unpin(&path).unwrap();
    refused(hook.unpin(&path), Errno::ENOENT);
    hook.release(ObjectId::Map(id)).unwrap();
}

fn programs(hook: &mut dyn Hook, dir: &Path) {
    let image = image(SOURCE);
    let dir = dir.join("maps");
    let request = LoadRequest { pins: Some(dir.clone()), ..LoadRequest::default() };
    let objects = hook.load(&image, &request).unwrap();
    let (count, shout) = (objects.program("count").unwrap(), objects.program("shout").unwrap());
    let (lengths, jumps) = (objects.map("lengths").unwrap(), objects.map("jumps").unwrap());
    assert_eq!((objects.shared.len(), objects.pinned.len()), (0, 2));

    let types = hook.map_types(lengths).unwrap().expect("its object has types");
    let btf = xway_object::Btf::parse(types.btf).unwrap();
    assert_eq!((btf.size_of(types.key).unwrap(), btf.size_of(types.value).unwrap()), (4, 8));

    let info = hook.program_info(count).unwrap();
    assert_eq!((info.name.as_str(), info.gpl_compatible), ("count", true));
    assert_eq!(info.tag, image.object.programs.iter().find(|p| p.name == "count").unwrap().tag(), "Linux's tag");
    let mut used = info.maps.clone();
    used.sort();
    let mut both = vec![lengths, jumps];
    both.sort();
    assert_eq!(used, both);
    assert!(hook.programs().unwrap().iter().any(|p| p.id == count));
    assert!(!hook.dump(count).unwrap().xlated.is_empty());

    // The types that its object brought along.
    let types = hook.program_types(count).unwrap().expect("compiled with -g");
    let types = xway_object::Btf::parse(types).unwrap();
    let c = types.c_header(None).unwrap();
    assert!(c.contains("struct xdp_md {"), "{c}");
    refused(hook.program_types(ProgId(u32::MAX - 1)), Errno::ENOENT);

    let packet: Vec<u8> = (0..64).collect();
    let test = TestRequest { data: &packet, ctx: None, repeat: 3 };
    let ran = hook.test_run(count, &test).unwrap();
    assert_eq!((ran.ret, ran.data.as_slice()), (2, packet.as_slice()));
    assert_eq!(hook.map_lookup(lengths, &u32s(64), 0).unwrap(), 3u64.to_ne_bytes());
    // A program behind an index, put there by its number.
    hook.map_store(jumps, &u32s(1), ObjectId::Program(shout), 0).unwrap();
    assert_eq!(hook.map_lookup(jumps, &u32s(1), 0).unwrap(), u32s(shout.0));
    let ran = hook.test_run(count, &TestRequest { repeat: 1, ..test.clone() }).unwrap();
    assert_eq!((ran.ret, ran.data[0]), (3, 0x55));
    hook.map_delete(jumps, &u32s(1)).unwrap();
    assert_eq!(hook.test_run(count, &test).unwrap().ret, 2);
    // Metadata in front, and the context back.
    let mut ctx = [0u8; 24];
    ctx[0..4].copy_from_slice(&u32s(8));
    ctx[4..8].copy_from_slice(&u32s(64));
    let ran = hook.test_run(count, &TestRequest { ctx: Some(ctx), repeat: 1, ..test.clone() }).unwrap();
    assert_eq!(ran.ctx, Some(ctx));
    assert_eq!(hook.map_lookup(lengths, &u32s(56), 0).unwrap(), 1u64.to_ne_bytes());
    refused(hook.test_run(count, &TestRequest { data: &packet[..13], ..test.clone() }), Errno::EINVAL);

    // A second load shares the maps that are pinned.
    let again = hook.load(&image, &request).unwrap();
    assert_eq!((again.shared.len(), again.pinned.len()), (2, 0));
    assert_eq!(again.map("lengths"), Some(lengths));
    let second = again.program("count").unwrap();
    assert_ne!(second, count);
    assert_eq!(hook.program_info(second).unwrap().tag, info.tag);

    // A program outlives its loader by its pin.
    let path = dir.join("program");
    hook.pin(ObjectId::Program(second), &path).unwrap();
    for id in again.programs.iter().map(|(_, id)| *id) {
        hook.release(ObjectId::Program(id)).unwrap();
    }
    assert_eq!(hook.pinned(&path).unwrap(), ObjectId::Program(second));
    assert_eq!(hook.test_run(second, &test).unwrap().ret, 2);
    hook.unpin(&path).unwrap();
    for name in ["lengths", "jumps"] {
        hook.unpin(&dir.join(name)).unwrap();
    }

    // What cannot be had.
    let bad = self::image(REFUSED);
    let error = hook.load(&bad, &LoadRequest::default()).unwrap_err();
    assert!(matches!(error.errno, Some(Errno::EACCES | Errno::EINVAL)), "{error}");
    assert!(!error.log.is_empty(), "the verifier's words");
    let missing = LoadRequest { programs: vec!["nobody".into()], ..LoadRequest::default() };
    refused(hook.load(&image, &missing), Errno::ENOENT);
    let nowhere = AttachRequest::new("no-such-port", second);
    // A port that is not there is a missing device, whoever is asked and whatever for.
    for refused in [
        hook.attach(&nowhere).unwrap_err(),
        hook.detach("no-such-port", None).unwrap_err(),
        hook.features("no-such-port").unwrap_err(),
        hook.attachments(Some("no-such-port")).unwrap_err(),
        hook.statistics("no-such-port").unwrap_err(),
    ] {
        assert_eq!((refused.errno, refused.blame), (Some(Errno::ENODEV), Blame::Machine), "{refused}");
    }

    for id in [second, count, shout] {
        hook.release(ObjectId::Program(id)).unwrap();
    }
    for id in [lengths, jumps] {
        hook.release(ObjectId::Map(id)).unwrap();
    }
    let _ = std::fs::remove_dir(&dir);
}

fn unknown(hook: &mut dyn Hook) {
    let (map, program) = (MapId(u32::MAX - 1), ProgId(u32::MAX - 1));
    refused(hook.map_info(map), Errno::ENOENT);
    refused(hook.map_lookup(map, &[0; 4], 0), Errno::ENOENT);
    refused(hook.program_info(program), Errno::ENOENT);
    refused(hook.test_run(program, &TestRequest { data: &[0; 64], ctx: None, repeat: 1 }), Errno::ENOENT);
    refused(hook.release(ObjectId::Program(program)), Errno::ENOENT);
    refused(hook.attach(&AttachRequest::new("lo", program)), Errno::ENOENT);
}

//! Maps that another object made: programs are proved against what these are, not against what their own object says.

use std::path::Path;

use xway_abi::Errno;
use xway_hook::{Hook, LoadRequest, ObjectId};

use super::image;

/// Maps whose declaration says more than their lengths. `OTHER` is the same object by another author.
const MAPS: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#ifdef OTHER
enum { BIG = 4096, LONG = 64, MAY = 0 };
struct locked { struct bpf_spin_lock lock; __u32 n; };
struct timed { __u64 words[2]; __u64 n; };
#else
enum { BIG = 8, LONG = 8, MAY = BPF_F_RDONLY_PROG };
struct locked { __u32 lock; __u32 n; };
struct timed { struct bpf_timer timer; __u64 n; };
#endif
struct value { char bytes[BIG]; };
struct longer { char bytes[LONG]; };
struct array { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(key_size, 4); __uint(value_size, BIG); };
struct hash { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __uint(key_size, LONG); __uint(value_size, LONG); };
struct read { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __uint(map_flags, MAY); __uint(key_size, 4); __uint(value_size, 8); };
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 1); __type(key, __u32); __array(values, struct array); }
    arrays SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS); __uint(max_entries, 1); __type(key, __u32); __array(values, struct hash); }
    hashes SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 1); __type(key, __u32); __array(values, struct read); }
    reads SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct locked); }
    locks SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct timed); }
    timers SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __uint(map_flags, BPF_F_RDONLY_PROG); __type(key, __u32);
         __type(value, __u64); } table SEC(".maps");

#define INNER(map) ({ void *m = bpf_map_lookup_elem(&map, &zero); if (!m) return XDP_DROP; m; })
#define VALUE(map, key) ({ void *v = bpf_map_lookup_elem(map, key); if (!v) return XDP_DROP; v; })
static const __u32 zero;

/* All maps, and nothing that another declaration could spoil. */
SEC("xdp") int modest(struct xdp_md *ctx)
{
    struct longer key = {};
    struct value *small = VALUE(INNER(arrays), &zero);
    struct longer *in_hash = VALUE(INNER(hashes), &key);
    __u64 *word = VALUE(INNER(reads), &zero);
    struct locked *locked = VALUE(&locks, &zero);
    struct timed *timed = VALUE(&timers, &zero);
    small->bytes[0] = in_hash->bytes[0] + *word + locked->n + timed->n;
    return XDP_PASS;
}
SEC("xdp") int beyond(struct xdp_md *ctx)
{
    struct value *v = VALUE(INNER(arrays), &zero);
    *(volatile long *)(v->bytes + BIG - 8) = 0x4141414141414141;
    return XDP_TX;
}
SEC("xdp") int stored(struct xdp_md *ctx)
{
    struct longer key = {}, value = {};
    void *map = INNER(hashes);
    bpf_map_update_elem(map, &key, &value, BPF_ANY);
    struct longer *v = VALUE(map, &key);
    v->bytes[LONG - 1] = 7;
    return XDP_TX;
}
/* What the first element holds for ever says nothing about the second. */
volatile char page[16];
static volatile const __u32 second = 1;
SEC("xdp") int indexed(struct xdp_md *ctx)
{
    __u32 key = second;
    __u64 *at = VALUE(&table, &key);
    page[*at] = 1;
    return XDP_TX;
}
#ifdef OTHER
SEC("xdp") int written(struct xdp_md *ctx)
{
    __u64 *word = VALUE(INNER(reads), &zero);
    *word = 0x55;
    return XDP_TX;
}
SEC("xdp") int locking(struct xdp_md *ctx)
{
    struct locked *v = VALUE(&locks, &zero);
    bpf_spin_lock(&v->lock);
    v->n++;
    bpf_spin_unlock(&v->lock);
    return XDP_TX;
}
SEC("xdp") int scribbled(struct xdp_md *ctx)
{
    struct timed *v = VALUE(&timers, &zero);
    v->words[0] = 0x4141414141414141;
    v->words[1] = 0x4242424242424242;
    return XDP_TX;
}
#endif
char _license[] SEC("license") = "GPL";
"#;

/// Loads one object, and then of another one that has the same maps by name, type and lengths each program alone.
pub fn another_authors_maps(hook: &mut dyn Hook, dir: &Path) {
    let dir = dir.join("theirs");
    let one = image(MAPS);
    let other = image(&format!("#define OTHER\n{MAPS}"));
    let load = |programs: &[&str]| LoadRequest {
        pins: Some(dir.clone()),
        programs: programs.iter().map(|name| (*name).to_owned()).collect(),
        ..LoadRequest::default()
    };
    let first = hook.load(&one, &load(&["modest", "beyond", "stored"])).unwrap();
    let table = first.maps.iter().find(|(name, _)| name == "table").expect("it was made").1;
    for (key, value) in [(0u32, 0u64), (1, 1 << 20)] {
        hook.map_update(table, &key.to_ne_bytes(), &value.to_ne_bytes(), 0).unwrap();
    }
    hook.map_freeze(table).unwrap();
    for name in ["modest", "beyond", "stored", "indexed", "written", "locking", "scribbled"] {
        let answer = hook.load(&other, &load(&[name]));
        let expected = name == "modest";
        match answer {
            Ok(done) if expected => {
                assert_eq!(done.shared.len(), 6);
                // Its own constants; the others are shared.
                let own = done.maps.iter().filter(|(_, id)| first.maps.iter().all(|(_, theirs)| theirs != id));
                own.for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
                done.programs.iter().for_each(|(_, id)| hook.release(ObjectId::Program(*id)).unwrap());
            }
            Ok(_) => panic!("{name}: proved against what its own object says of a map that another one made"),
            Err(error) if expected => panic!("{name}: {error}\n{}", error.log),
            Err(error) => {
                assert!(
                    matches!(error.errno, Some(Errno::EACCES | Errno::EINVAL | Errno::ENOTSUPP)),
                    "{name}: {error}"
                );
                assert!(!error.log.is_empty(), "{name}: the verifier's words");
            }
        }
    }
    first.programs.iter().for_each(|(_, id)| hook.release(ObjectId::Program(*id)).unwrap());
    first.maps.iter().for_each(|(_, id)| hook.release(ObjectId::Map(*id)).unwrap());
    for name in ["arrays", "hashes", "reads", "locks", "timers", "table"] {
        hook.unpin(&dir.join(name)).unwrap();
    }
    let _ = std::fs::remove_dir(&dir);
}

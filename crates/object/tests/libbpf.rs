//! Our reader and libbpf over the same objects: libbpf (through bpftool) loads them into the running kernel, whose program
//! tags cover every instruction after linking and relocation, and whose map list has every parameter.

mod common;

use std::collections::BTreeMap;

use common::{Loaded, show, text_field};
use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, clang};

/// (name, source). Each is loaded from every instruction set version that clang 14 writes.
const SOURCES: &[(&str, &str)] = &[
    (
        "linking",
        r#"
static __attribute__((noinline)) int leaf(int x) { return x * 3 + bpf_get_smp_processor_id(); }
__attribute__((noinline)) int middle(int x) { return leaf(x) + leaf(x + 1); }
static __attribute__((noinline)) int each(__u32 i, void *ctx) { *(int *)ctx += leaf(i) + middle(i); return 0; }
static __attribute__((noinline)) int other(__u32 i, void *ctx) { *(int *)ctx += middle(i); return 0; }
SEC("xdp") int one(struct xdp_md *ctx) { return middle(ctx->ingress_ifindex) & 3; }
SEC("xdp") int two(struct xdp_md *ctx) {
    int n = 0;
    bpf_loop(3, other, &n, 0);
    bpf_loop(5, each, &n, 0);
    return (n + leaf(ctx->rx_queue_index)) & 3;
}
"#,
    ),
    (
        "data",
        r#"
const volatile __u32 limit = 7;
static volatile const __u64 wide[3] = { 1, 2, 3 };
__u64 counter = 5;
static volatile __u32 hidden = 3;
__u32 zeroes[4];
struct { __u32 a; __u16 b; } settings SEC(".data.settings") = { 1, 2 };
extern int LINUX_KERNEL_VERSION __kconfig;
extern _Bool CONFIG_BPF_JIT __kconfig __weak;
extern int CONFIG_HZ __kconfig;
extern enum libbpf_tristate CONFIG_NO_SUCH_THING __kconfig __weak;
extern char CONFIG_DEFAULT_HOSTNAME[9] __kconfig __weak;
SEC("xdp") int entry(struct xdp_md *ctx) {
    bpf_printk("%d", limit);
    counter += zeroes[ctx->rx_queue_index & 3] + settings.b + wide[ctx->rx_queue_index & 1] + CONFIG_HZ;
    zeroes[1] = hidden + CONFIG_BPF_JIT + CONFIG_NO_SUCH_THING + CONFIG_DEFAULT_HOSTNAME[2];
    return LINUX_KERNEL_VERSION > 0x060000 ? XDP_PASS : XDP_DROP;
}
"#,
    ),
    (
        "maps",
        r#"
struct inner { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 7); __type(key, __u32); __type(value, __u64); };
struct inner inner_a SEC(".maps"), inner_b SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 5); __type(key, __u32); __array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = &inner_b, [4] = &inner_a } };
struct { __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); __uint(key_size, 4); __uint(value_size, 4); } events SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 5000); } ring SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 50); __uint(map_flags, BPF_F_NO_COMMON_LRU);
    __type(key, __u32); __type(value, __u64); } lru SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_DEVMAP_HASH); __uint(max_entries, 8); __type(key, __u32);
    __type(value, struct bpf_devmap_val); } devs SEC(".maps");
SEC("xdp") int pass(struct xdp_md *ctx) { return XDP_PASS; }
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 3); __uint(key_size, 4); __array(values, int (void *)); }
tails SEC(".maps") = { .values = { [2] = (void *)&pass } };
SEC("xdp") int entry(struct xdp_md *ctx) {
    __u32 k = 1, n = 0;
    void *m = bpf_map_lookup_elem(&outer, &k);
    __u64 *v = m ? bpf_map_lookup_elem(m, &k) : 0;
    if (v) n += *v;
    bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &n, 4);
    bpf_ringbuf_output(&ring, &n, 4, 0);
    v = bpf_map_lookup_elem(&lru, &k);
    if (v) n += *v;
    bpf_tail_call(ctx, &tails, n & 1);
    return bpf_redirect_map(&devs, n, 0);
}
"#,
    ),
    (
        "core",
        r#"
#include <bpf/bpf_core_read.h>
#define KEEP __attribute__((preserve_access_index))
struct list { void *next, *prev; } KEEP;
struct net_device { int ifindex; char name[16]; unsigned int mtu; struct { int nothing; } gone; unsigned long features;
    unsigned char *dev_addr; } KEEP;
struct net_device___other { int ifindex; unsigned int flags; } KEEP;
struct sk_buff { unsigned int len; unsigned char pkt_type : 3; unsigned char ip_summed : 2; unsigned char cloned : 1;
    unsigned short transport_header; } KEEP;
struct task_struct { int pid; unsigned int personality; unsigned sched_reset_on_fork : 1; struct task_struct *real_parent;
    char comm[16]; } KEEP;
struct never_heard_of { int x; } KEEP;
struct xdp_buff { void *data; void *data_end; } KEEP;
typedef struct { int counter; } atomic_t;
enum bpf_prog_type___local { BPF_PROG_TYPE_XDP___local, BPF_PROG_TYPE_NEVER___local };
enum xdp_action___x { XDP_TX___x = 77 };
__u64 out[64];
SEC("xdp") int entry(struct xdp_md *ctx) {
    struct net_device *dev = (void *)(long)ctx->rx_queue_index;
    struct sk_buff *skb = (void *)dev;
    struct task_struct *task = (void *)dev;
    struct never_heard_of *nothing = (void *)dev;
    int n = 0;
#define PUT(x) out[n++] = (__u64)(x)
    PUT(bpf_core_field_offset(dev->mtu)); PUT(bpf_core_field_size(dev->name)); PUT(bpf_core_field_exists(dev->gone));
    PUT(bpf_core_field_exists(((struct net_device___other *)dev)->flags));
    PUT(bpf_core_field_offset(((struct net_device___other *)dev)->flags));
    PUT(bpf_core_field_size(dev->features)); PUT(bpf_core_field_offset(dev->name[3]));
    PUT(bpf_core_field_exists(skb->cloned)); PUT(bpf_core_field_offset(skb->transport_header));
    PUT(bpf_core_field_exists(nothing->x));
    PUT(bpf_core_type_exists(struct never_heard_of)); PUT(bpf_core_type_exists(struct xdp_buff)); PUT(bpf_core_type_exists(atomic_t));
    PUT(bpf_core_type_size(struct task_struct)); PUT(bpf_core_type_size(struct never_heard_of)); PUT(bpf_core_type_size(atomic_t));
    PUT(bpf_core_type_id_local(struct xdp_buff)); PUT(bpf_core_type_id_kernel(struct xdp_buff));
    PUT(bpf_core_type_id_kernel(struct never_heard_of));
    PUT(bpf_core_enum_value_exists(enum bpf_prog_type___local, BPF_PROG_TYPE_XDP___local));
    PUT(bpf_core_enum_value(enum bpf_prog_type___local, BPF_PROG_TYPE_XDP___local));
    PUT(bpf_core_enum_value_exists(enum bpf_prog_type___local, BPF_PROG_TYPE_NEVER___local));
    PUT(bpf_core_enum_value(enum xdp_action___x, XDP_TX___x));
    PUT(__builtin_preserve_field_info(task->pid, BPF_FIELD_SIGNED));
    PUT(__builtin_preserve_field_info(task->personality, BPF_FIELD_SIGNED));
    if (ctx->ingress_ifindex == 0x7fffffff) {
        PUT(BPF_CORE_READ_BITFIELD_PROBED(skb, pkt_type)); PUT(BPF_CORE_READ_BITFIELD_PROBED(task, sched_reset_on_fork));
        PUT(BPF_CORE_READ(task, real_parent, real_parent, pid));
        PUT(BPF_CORE_READ(dev, dev_addr));
    }
    return XDP_PASS;
}
SEC("xdp") int unreached(struct xdp_md *ctx) {
    struct net_device *dev = (void *)(long)ctx->rx_queue_index;
    struct never_heard_of *nothing = (void *)dev;
    if (bpf_core_field_exists(nothing->x))
        out[0] = bpf_core_field_offset(nothing->x) + bpf_core_field_offset(dev->gone);
    return XDP_PASS;
}
"#,
    ),
    (
        "externs",
        r#"
extern const void nobody_has_this_symbol __ksym __weak;
SEC("xdp") int entry(struct xdp_md *ctx) {
    return &nobody_has_this_symbol ? XDP_DROP : XDP_PASS;
}
"#,
    ),
];

#[test]
fn programs_and_maps_agree_with_libbpf() {
    let needs = Needs::of("libbpf::programs_and_maps_agree_with_libbpf").clang().root().command("bpftool");
    if !needs.file("/sys/kernel/btf/vmlinux").file("/sys/fs/bpf").met() {
        return;
    }
    let opts = LoadOptions::of_running_kernel();
    let mut compared = 0;
    for (name, body) in SOURCES {
        for cpu in ["-mcpu=v1", "-mcpu=v2", "-mcpu=v3"] {
            let text = format!(
                "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n{body}\nchar _license[] SEC(\"license\") = \"GPL\";\n"
            );
            let bytes = clang::compile_text(&format!("libbpf_{name}"), &text, &[cpu]).unwrap_or_else(|e| panic!("{e}"));
            compared += compare(&format!("{name} {cpu}"), &bytes, &opts);
        }
    }
    assert_eq!(compared, 3 * 8, "programs compared");
}

/// Loads with both and compares; returns the number of programs.
fn compare(what: &str, bytes: &[u8], opts: &LoadOptions) -> usize {
    let object = Object::parse(bytes, opts).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(object.rejected.is_empty(), "{what}: {:?}", object.rejected);
    let file = std::env::temp_dir().join(format!("xway-libbpf-{}.o", std::process::id()));
    std::fs::write(&file, bytes).unwrap();
    let loaded = Loaded::file(&file);
    let _ = std::fs::remove_file(&file);
    let loaded = loaded.unwrap_or_else(|e| panic!("{what}: libbpf refuses: {e}"));
    let map_ids: Vec<u64> = object.programs.iter().flat_map(|p| id_list(&loaded.program(p))).collect();
    let mut kernel: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for id in map_ids {
        let shown = show(&["map", "show", "id", &id.to_string()]);
        let numbers = ["bytes_key", "bytes_value", "max_entries", "flags"].map(|f| number_field(&shown, f));
        kernel.insert(text_field(&shown, "name").unwrap(), numbers.to_vec());
    }
    for m in &object.maps {
        // libbpf puts the object's name before data sections, and the kernel cuts names.
        let found = kernel.iter().find(|(n, _)| {
            **n == cut(&m.name) || m.name.starts_with('.') && n.ends_with(&m.name[..m.name.len().min(8)])
        });
        let Some((_, numbers)) = found else { continue };
        let s = &m.spec;
        // The kernel itself makes device maps read-only for programs.
        let forced = if s.map_type.name().starts_with("devmap") { 0x80 } else { 0 };
        let ours = [s.key_size, s.value_size, s.max_entries, s.flags | forced].map(u64::from);
        assert_eq!(ours.as_slice(), numbers, "{what}: map {}", m.name);
    }
    object.programs.len()
}

fn cut(name: &str) -> &str {
    &name[..name.len().min(15)]
}

fn number_field(json: &str, name: &str) -> u64 {
    let rest = json.split_once(&format!("\"{name}\":")).map_or("", |r| r.1);
    rest.split([',', '}']).next().and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

fn id_list(json: &str) -> Vec<u64> {
    let rest = json.split_once("\"map_ids\":[").map_or("", |r| r.1);
    rest.split(']').next().unwrap_or("").split(',').filter_map(|n| n.trim().parse().ok()).collect()
}

//! Instructions that random programs cannot show well: each by name, with the result that it must have, in the kernel, in the
//! interpreter and as machine code; and programs that both verifiers must refuse.

use std::sync::Arc;

use xway_jit::Options;
use xway_kernel::KernelObject;
use xway_object::{LoadOptions, Object, Program};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, MapsView, verify};

use super::machines::Machines;

/// What a program must return, and its text.
type Case = (&'static str, u32, &'static str);

pub fn both() -> [(&'static str, Options); 2] {
    [
        ("machine code", Options { check: true, ..Options::default() }),
        ("machine code without passes", Options { check: true, ..Options::plain() }),
    ]
}

/// Each case everywhere; the kernel only where it has the instruction.
fn check(test: &str, kernel: (u32, u32), cases: &[Case]) {
    check_with(test, kernel, cases, &both());
}

fn check_with(test: &str, kernel: (u32, u32), cases: &[Case], options: &[(&'static str, Options)]) {
    let asked =
        Needs::of(&format!("testkit::isa_kernel::{test}, the kernel's side")).root().kernel(kernel.0, kernel.1).met();
    for (name, want, text) in cases {
        let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        let object = Machines::object(insns, vec![]);
        let mut machines = Machines::new(object, asked, options).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (who, left) in machines.run(&[]).unwrap_or_else(|e| panic!("{name}: {e}")) {
            assert_eq!(left.ret, *want, "{name}: {who}");
        }
    }
}

/// Programs that neither verifier lets pass.
fn refused(test: &str, kernel: (u32, u32), cases: &[(&str, &str)]) {
    let asked =
        Needs::of(&format!("testkit::isa_kernel::{test}, the kernel's side")).root().kernel(kernel.0, kernel.1).met();
    for (name, text) in cases {
        let insns = xway_isa::assemble(text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        let program = Program { name: "refused".into(), section: "xdp".into(), insns, ..Program::default() };
        let config = Config { budget: 20_000, ..Config::default() };
        assert!(verify(&program, &MapsView::empty(), &config).is_err(), "{name}: we accept\n{text}");
        if asked {
            let object = Object { programs: vec![program], license: Some("GPL".to_owned()), ..Object::default() };
            let kernel = KernelObject::load(&object).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(kernel.programs[0].is_err(), "{name}: the kernel accepts\n{text}");
        }
    }
}

#[test]
fn load_acquire_and_store_release() {
    let word = "r1 = 0x8182838485868788 ll\n*(u64 *)(r10 -8) = r1\n";
    let cases: Vec<(String, u32, String)> = [("u8", 0x88u32), ("u16", 0x8788), ("u32", 0x8586_8788)]
        .into_iter()
        .map(|(size, want)| {
            let text = format!("{word}r0 = load_acquire(({size} *)(r10 -8))\nr2 = r0\nr2 >>= 32\nr0 += r2\nexit");
            (format!("a load of {size} is extended with zeros"), want, text)
        })
        .chain([("u8", 0x8586_8700u32), ("u16", 0x8586_0000), ("u32", 0)].into_iter().map(|(size, want)| {
            let text = format!("{word}r3 = 0\nstore_release(({size} *)(r10 -8), r3)\nr0 = *(u32 *)(r10 -8)\nexit");
            (format!("a store of {size} leaves the other bytes"), want, text)
        }))
        .collect();
    let cases: Vec<Case> = cases
        .iter()
        .map(|(name, want, text)| -> Case { (leak(name), *want, leak(text)) })
        .chain([
            ("all eight bytes go and come", 0x0102_0304 ^ 0x0506_0708, "r1 = 0x102030405060708 ll\n\
              store_release((u64 *)(r10 -8), r1)\nr0 = load_acquire((u64 *)(r10 -8))\nr2 = r0\nr2 >>= 32\nw0 ^= w2\nexit"),
            ("a pointer that is stored this way is a pointer when it is loaded this way", 7, "*(u64 *)(r10 -16) = 7\nr1 = r10\n\
              r1 += -16\nstore_release((u64 *)(r10 -8), r1)\nr2 = load_acquire((u64 *)(r10 -8))\nr0 = *(u64 *)(r2 +0)\nexit"),
            ("the destination may be the address", 9, "*(u64 *)(r10 -8) = 9\nr1 = r10\nr1 += -8\nr1 = load_acquire((u64 *)(r1 +0))\n\
              r0 = r1\nexit"),
            ("between functions, through a pointer", 12, "*(u64 *)(r10 -8) = 0\nr1 = r10\nr1 += -8\nr2 = 12\ncall set\n\
              r0 = load_acquire((u64 *)(r10 -8))\nexit\nset:\nstore_release((u64 *)(r1 +0), r2)\nr0 = 0\nexit"),
        ])
        .collect();
    check("load_acquire_and_store_release", (6, 15), &cases);
    refused(
        "load_acquire_and_store_release",
        (6, 15),
        &[
            (
                "a load from the packet",
                "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 8\nif r4 > r3 goto out\n\
          r0 = load_acquire((u64 *)(r2 +0))\nout:\nr0 = 2\nexit",
            ),
            (
                "a store into the packet",
                "r2 = *(u32 *)(r1 +0)\nr3 = *(u32 *)(r1 +4)\nr4 = r2\nr4 += 8\nif r4 > r3 goto out\nr5 = 1\n\
          store_release((u64 *)(r2 +0), r5)\nout:\nr0 = 2\nexit",
            ),
            ("a load from the context", "r0 = load_acquire((u32 *)(r1 +0))\nr0 = 2\nexit"),
            ("a load through a number", "r1 = 5\nr0 = load_acquire((u64 *)(r1 +0))\nexit"),
            ("a store below the stack", "r1 = 0\nstore_release((u64 *)(r10 -520), r1)\nr0 = 0\nexit"),
            ("a store above the stack", "r1 = 0\nstore_release((u64 *)(r10 +0), r1)\nr0 = 0\nexit"),
            (
                "a load that is not aligned",
                "*(u64 *)(r10 -8) = 0\n*(u64 *)(r10 -16) = 0\nr0 = load_acquire((u32 *)(r10 -10))\nexit",
            ),
            ("what is stored is not known", "store_release((u64 *)(r10 -8), r5)\nr0 = 0\nexit"),
        ],
    );
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

#[test]
fn may_goto() {
    check(
        "may_goto",
        (6, 12),
        &[
            ("falls through first", 1, "r0 = 0\nmay_goto out\nr0 = 1\nout:\nexit"),
            (
                "ends no loop that ends by itself",
                51,
                "r0 = 0\nloop:\nr0 += 1\nif r0 > 50 goto out\nmay_goto out\ngoto loop\nout:\nexit",
            ),
            (
                "one for each of two loops",
                30,
                "r0 = 0\nr6 = 0\none:\nr6 += 1\nr0 += 1\nif r6 == 10 goto next\nmay_goto next\ngoto one\n\
          next:\nr6 = 0\ntwo:\nr6 += 1\nr0 += 2\nif r6 == 10 goto out\nmay_goto out\ngoto two\nout:\nexit",
            ),
            (
                "in a function that is called twice",
                20,
                "call f\nr6 = r0\ncall f\nr0 += r6\nexit\n\
          f:\nr0 = 0\nloop:\nr0 += 1\nif r0 == 10 goto out\nmay_goto out\ngoto loop\nout:\nexit",
            ),
            (
                "leads back as well",
                5,
                "r0 = 0\ngoto in\nout:\nexit\nin:\nr0 += 1\nif r0 == 5 goto out\nmay_goto out\ngoto in",
            ),
            ("over nothing", 3, "r0 = 3\nmay_goto +0\nexit"),
            ("a loop that nothing else ends comes to an end", 1, "r0 = 1\nloop:\nmay_goto out\ngoto loop\nout:\nexit"),
        ],
    );
    refused(
        "may_goto",
        (6, 12),
        &[
            (
                "what a loop counts is not known behind it",
                "r6 = r10\nr6 += -8\n*(u64 *)(r10 -8) = 0\nr7 = 0\nloop:\nmay_goto out\nr7 += 8\ngoto loop\n\
          out:\nr6 += r7\nr0 = *(u64 *)(r6 +0)\nexit",
            ),
            ("a loop beside it has no end", "r0 = 0\nmay_goto out\nout:\nloop:\nr0 += 1\ngoto loop"),
            ("it leads outside", "r0 = 0\nmay_goto +5\nexit"),
            ("a value of one way only", "may_goto out\nr0 = 0\nout:\nexit"),
        ],
    );
}

#[test]
fn long_jumps() {
    check(
        "long_jumps",
        (6, 12),
        &[
            (
                "forward and back",
                5057,
                "r0 = 0\nr1 = 0\nloop:\nr1 += 1\nr0 += r1\nif r1 == 100 goto far\ngotol loop\nfar:\ngotol end\n\
          back:\nexit\nend:\nr0 += 7\ngotol back",
            ),
            ("over nothing", 4, "r0 = 4\ngotol +0\nexit"),
        ],
    );
    // Farther than sixteen bits reach, which is also farther than functions are compiled.
    let filler = "r0 += 1\n".repeat(33_000);
    let text = format!("r0 = 0\nr6 = *(u32 *)(r1 +12)\nif r6 == 77 goto +1\ngotol out\n{filler}out:\nr0 += 2\nexit");
    check_with("long_jumps", (6, 12), &[("over 33,000 instructions", 2, leak(&text))], &[]);
    refused(
        "long_jumps",
        (6, 12),
        &[
            ("outside", "r0 = 0\ngotol +100000\nexit"),
            ("before the start", "r0 = 0\ngotol -3\nexit"),
            ("into a wide instruction", "r0 = 0\nif r0 == 0 goto +1\ngotol +1\nr1 = 0x1122334455667788 ll\nexit"),
            ("without an end", "r0 = 0\nloop:\nr0 += 1\ngotol loop"),
        ],
    );
}

/// Callbacks need type information, so these come from the compiler.
#[test]
fn callbacks_in_machine_code_too() {
    if !Needs::of("testkit::isa_kernel::callbacks_in_machine_code_too").clang().met() {
        return;
    }
    let asked =
        Needs::of("testkit::isa_kernel::callbacks_in_machine_code_too, the kernel's side").root().kernel(6, 12).met();
    for (name, want, body) in [
        ("a callback counts its turns", 45, "bpf_loop(10, add, &sum, 0); return sum;"),
        ("bpf_loop says how many turns there were", 8, "return bpf_loop(100, until_seven, &sum, 0);"),
        ("and none for none", 0, "return bpf_loop(0, add, &sum, 0);"),
        ("loops in loops", 120, "bpf_loop(10, inner, &sum, 0); return sum;"),
        ("flags are refused", -22i32 as u32, "return bpf_loop(5, add, &sum, 1);"),
        ("too many turns are refused", -7i32 as u32, "return bpf_loop((1 << 23) + 1, add, &sum, 0);"),
        ("in a number of 32 bits", 0, "long n = bpf_loop((1 << 23) + 1, add, &sum, 0); return n >> 32;"),
        ("all of the count is the count", -7i32 as u32, "return wide_loop(1ULL << 32 | 5, add, &sum, 0);"),
        ("and one that is too large has no turn", 0, "wide_loop(1ULL << 32 | 5, add, &sum, 0); return sum;"),
        ("flags are refused first", -22i32 as u32, "return wide_loop(1ULL << 32 | 5, add, &sum, 1);"),
        ("in a number of 64 bits", u32::MAX, "long n = wide_loop(5, add, &sum, 1); return n >> 32;"),
        (
            "every element of an array",
            4006,
            "long n = bpf_for_each_map_elem(&values, each, &sum, 0); return sum * 1000 + n;",
        ),
        (
            "until the callback says enough",
            1003,
            "long n = bpf_for_each_map_elem(&values, first_three, &sum, 0); return 1000 + n;",
        ),
        ("without a context", 6, "return bpf_for_each_map_elem(&values, nothing, 0, 0);"),
    ] {
        let text = format!(
            "{CALLBACKS}\nSEC(\"xdp\")\nint program(struct xdp_md *ctx)\n{{\n\t__u64 sum = 0;\n\n\t{body}\n}}\n"
        );
        let bytes = clang::compile_text("isa_callbacks", &text, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let object = Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut machines = Machines::new(Arc::new(object), asked, &both()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (who, left) in machines.run(&[0; 8]).unwrap_or_else(|e| panic!("{name}: {e}")) {
            assert_eq!(left.ret, want, "{name}: {who}");
        }
    }
}

const CALLBACKS: &str = r#"// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 6);
	__type(key, __u32);
	__type(value, __u64);
} values SEC(".maps");

/* As assembly can call it, with a count of 64 bits. */
static long (*wide_loop)(__u64 count, void *callback, void *ctx, __u64 flags) = (void *)181;

static long add(__u32 index, __u64 *sum)
{
	*sum += index;
	return 0;
}

static long until_seven(__u32 index, __u64 *sum)
{
	return index == 7;
}

static long inner(__u32 index, __u64 *sum)
{
	bpf_loop(index, add, sum, 0);
	return 0;
}

static long each(void *map, __u32 *key, __u64 *value, __u64 *sum)
{
	*sum += *key == 1 || *key == 3;
	*sum += *value + (*key == 5 ? 2 : 0);
	return 0;
}

static long first_three(void *map, __u32 *key, __u64 *value, __u64 *sum)
{
	return *key == 2;
}

static long nothing(void *map, __u32 *key, __u64 *value, void *none)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
"#;

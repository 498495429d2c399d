//! What the table says of each kernel function is what the verifier says of a program that calls it, and Linux accepts that program.
//!
//! A function whose arguments BTF describes has its program in [`OWN`]; the others' are made from the prototype.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

use xway_abi::{ArgKind, FuncAccess, KfuncClass, KfuncProto, MapSpec, MapType, kfuncs, map_flags};
use xway_isa::Names;
use xway_kernel::{KernelObject, vmlinux};
use xway_object::btf::{BtfBuilder, FuncLinkage, IntEncoding, Kind as BtfKind};
use xway_object::{HelperNames, Initial, KfuncRef, MapDef, Object, Program, Subprog};
use xway_testkit::Needs;
use xway_verifier::{Config, Kind, MapsView, kfunc_unsupported, verify};

use crate::helpers::{ANOTHER_HOOK, TRAP};

/// A task in r7, released at the end.
const TASK: &str = "r1 = 1\ncall kfunc bpf_task_from_pid\nif r0 == 0 goto out\nr7 = r0\n";
const TASK_END: &str = "r1 = r7\ncall kfunc bpf_task_release\n";
/// A cgroup in r8, and its end.
const GROUP: &str = "r1 = 1\ncall kfunc bpf_cgroup_from_id\nif r0 == 0 goto out\nr8 = r0\n";
const GROUP_END: &str = "r1 = r8\ncall kfunc bpf_cgroup_release\n";
/// The end of a reference to a cgroup or task that the call gave.
const FREE_GROUP: &str = "if r0 == 0 goto +2\nr1 = r0\ncall kfunc bpf_cgroup_release\n";
const FREE_TASK: &str = "if r0 == 0 goto +2\nr1 = r0\ncall kfunc bpf_task_release\n";
/// A dynptr of the packet at fp-400.
const DYNPTR: &str = "r1 = r6\nr2 = 0\nr3 = r10\nr3 += -400\ncall kfunc bpf_dynptr_from_xdp\n";
/// What connections are looked up by: tuple and options on the stack.
const TUPLE: &str = "r1 = r6\nr2 = r10\nr2 += -64\nr3 = 12\nr4 = r10\nr4 += -96\nr5 = 12\n";
/// A connection in r7 that is being made.
const NEW: &str = "call kfunc bpf_xdp_ct_alloc\nif r0 == 0 goto out\nr7 = r0\n";
const INSERT: &str =
    "r1 = r7\ncall kfunc bpf_ct_insert_entry\nif r0 == 0 goto out\nr1 = r0\ncall kfunc bpf_ct_release\n";
/// One that is there.
const FOUND: &str = "call kfunc bpf_xdp_ct_lookup\nif r0 == 0 goto out\nr7 = r0\n";
const CT_END: &str = "r1 = r7\ncall kfunc bpf_ct_release\n";
/// An IPsec state, and its end.
const XFRM: &str = "r1 = r6\nr2 = r10\nr2 += -96\nr3 = 36\ncall kfunc bpf_xdp_get_xfrm_state\nif r0 == 0 goto out\n\
                    r1 = r0\ncall kfunc bpf_xdp_xfrm_state_release\n";
const KEY: &str = "r1 = 0\ncall kfunc bpf_lookup_system_key\nif r0 == 0 goto out\nr1 = r0\ncall kfunc bpf_key_put\n";
/// An object of the program's own type, dropped at the end.
const OBJECT: &str = "r1 = NODE\nr2 = 0\ncall kfunc bpf_obj_new_impl\nif r0 == 0 goto out\nr7 = r0\n";
const DROP: &str = "r1 = r7\nr2 = 0\ncall kfunc bpf_obj_drop_impl\n";
/// The second argument of calls that take memory at any address.
const PROBE: &str = "r1 = r10\nr1 += -400\nr2 = 0\nr3 = 1\nr4 = 0\n";

/// Functions whose programs cannot be made from a prototype: what comes before the call, `.` for the call, what comes after.
const OWN: &[(&str, &[&str])] = &[
    ("bpf_task_from_pid", &[TASK, TASK_END]),
    ("bpf_task_from_vpid", &["r1 = 1\n", ".", FREE_TASK]),
    ("bpf_task_acquire", &[TASK, "r1 = r7\n", ".", FREE_TASK, TASK_END]),
    ("bpf_task_release", &[TASK, TASK_END]),
    ("bpf_task_get_cgroup1", &[TASK, "r1 = r7\nr2 = 1\n", ".", FREE_GROUP, TASK_END]),
    ("bpf_task_under_cgroup", &[GROUP, "call bpf_get_current_task_btf\nr1 = r0\nr2 = r8\n", ".", GROUP_END]),
    ("bpf_send_signal_task", &[TASK, "r1 = r7\nr2 = 10\nr3 = 0\nr4 = 0\n", ".", TASK_END]),
    ("bpf_cgroup_from_id", &[GROUP, GROUP_END]),
    ("bpf_cgroup_release", &[GROUP, GROUP_END]),
    ("bpf_cgroup_acquire", &[GROUP, "r1 = r8\n", ".", FREE_GROUP, GROUP_END]),
    ("bpf_cgroup_ancestor", &[GROUP, "r1 = r8\nr2 = 1\n", ".", FREE_GROUP, GROUP_END]),
    ("bpf_cgroup_read_xattr", &[GROUP, DYNPTR, "r1 = r8\nr2 = map[idx:1][0]\nr3 = r10\nr3 += -400\n", ".", GROUP_END]),
    ("bpf_xdp_ct_alloc", &[TUPLE, NEW, INSERT]),
    ("bpf_ct_insert_entry", &[TUPLE, NEW, INSERT]),
    ("bpf_ct_set_timeout", &[TUPLE, NEW, "r1 = r7\nr2 = 9\n", ".", INSERT]),
    ("bpf_ct_set_status", &[TUPLE, NEW, "r1 = r7\nr2 = 8\n", ".", INSERT]),
    ("bpf_ct_set_nat_info", &[TUPLE, NEW, "r1 = r7\nr2 = r10\nr2 += -128\nr3 = 80\nr4 = 0\n", ".", INSERT]),
    ("bpf_xdp_ct_lookup", &[TUPLE, FOUND, CT_END]),
    ("bpf_ct_release", &[TUPLE, FOUND, CT_END]),
    ("bpf_ct_change_timeout", &[TUPLE, FOUND, "r1 = r7\nr2 = 9\n", ".", CT_END]),
    ("bpf_ct_change_status", &[TUPLE, FOUND, "r1 = r7\nr2 = 8\n", ".", CT_END]),
    ("bpf_skb_ct_alloc", &[TUPLE, "."]),
    ("bpf_skb_ct_lookup", &[TUPLE, "."]),
    ("bpf_xdp_get_xfrm_state", &[XFRM]),
    ("bpf_xdp_xfrm_state_release", &[XFRM]),
    ("bpf_lookup_system_key", &[KEY]),
    ("bpf_key_put", &[KEY]),
    ("bpf_get_kmem_cache", &["r1 = 0\n", "."]),
    ("bpf_modify_return_test_tp", &["r1 = 0\n", "."]),
    ("bpf_probe_read_kernel_dynptr", &[DYNPTR, PROBE, "."]),
    ("bpf_probe_read_kernel_str_dynptr", &[DYNPTR, PROBE, "."]),
    ("bpf_probe_read_user_dynptr", &[DYNPTR, PROBE, "."]),
    ("bpf_probe_read_user_str_dynptr", &[DYNPTR, PROBE, "."]),
    ("bpf_stream_vprintk_impl", &["r1 = 1\nr2 = map[idx:1][0]\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = 0\n", "."]),
    ("bpf_obj_new_impl", &[OBJECT, DROP]),
    ("bpf_obj_drop_impl", &[OBJECT, DROP]),
    (
        "bpf_refcount_acquire_impl",
        &[OBJECT, "r1 = r7\nr2 = 0\n", ".", "r8 = r0\n", DROP, "r1 = r8\nr2 = 0\ncall kfunc bpf_obj_drop_impl\n"],
    ),
    ("bpf_rdonly_cast", &["r1 = 77\nr2 = TASK\n", "."]),
    ("bpf_throw", &["r1 = 0\n", "."]),
];

/// The surroundings: an array, a constant string, types for the program and for what it allocates.
struct Place {
    object: Object,
    main: u32,
    node: u32,
}

impl Place {
    fn new() -> Place {
        let mut b = BtfBuilder::new();
        let int = b.int("int", 4, IntEncoding::Signed);
        let word = b.int("unsigned int", 4, IntEncoding::Unsigned);
        let long = b.int("long", 8, IntEncoding::Signed);
        let count = b.structure("bpf_refcount", 4, &[("__opaque", word, 0)]);
        let node = b.structure("node", 16, &[("value", long, 0), ("count", count, 64)]);
        let md = b.structure("xdp_md", 24, &[("data", word, 0)]);
        let ctx = b.ptr(md);
        let proto = b.prototype(int, &[("ctx", ctx)]);
        let main = b.func("row", proto, FuncLinkage::Global);
        let mut text = MapDef::new("text", MapSpec::new(MapType::Array, 4, 16, 1).with_flags(map_flags::RDONLY_PROG));
        (text.initial, text.frozen) = (Initial::Data(b"user.a\0\0\0\0\0\0\0\0\0\0".to_vec()), true);
        let maps = vec![MapDef::new("values", MapSpec::new(MapType::Array, 4, 64, 4)), text];
        let object = Object { maps, btf: Some(Arc::new(b.finish())), license: Some("GPL".into()), ..Object::default() };
        Place { object, main, node }
    }
}

/// Kernel functions by the order in which the text calls them.
#[derive(Default)]
struct Called(RefCell<Vec<String>>);

impl Names for Called {
    fn helper_id(&self, name: &str) -> Option<u32> {
        HelperNames.helper_id(name)
    }

    fn helper(&self, id: u32) -> Option<Cow<'_, str>> {
        HelperNames.helper(id)
    }

    fn kfunc_id(&self, name: &str) -> Option<(i32, i16)> {
        let mut names = self.0.borrow_mut();
        let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        Some((at as i32, 0))
    }
}

/// Arguments from the prototype, with what must come before the call and after it.
fn by_prototype(k: &KfuncProto) -> String {
    let args = k.args.unwrap_or_else(|| panic!("{} needs a program of its own", k.name));
    let (mut before, mut given) = (String::new(), String::new());
    let iterator = "r1 = r10\nr1 += -432\n";
    for (r, arg) in (1..).zip(args) {
        let stack = |at: usize| format!("r{r} = r10\nr{r} += -{at}\n");
        given += &match arg.kind {
            ArgKind::Ctx => format!("r{r} = r6\n"),
            ArgKind::ConstMap => format!("r{r} = map[idx:0]\n"),
            ArgKind::Dynptr(_, FuncAccess::Init) => stack(416),
            ArgKind::Dynptr(..) => {
                before = DYNPTR.to_owned();
                stack(400)
            }
            ArgKind::Mem(..) => stack(16 * r),
            ArgKind::Iter(..) => stack(432),
            ArgKind::Ignored => stack(8),
            _ => format!("r{r} = 1\n"),
        };
    }
    if k.class == KfuncClass::Iterator {
        // All three of a kind belong together.
        let name = k.name.rsplit_once('_').expect("a kind and what is done").0;
        let new = xway_abi::kfunc(&format!("{name}_new")).expect("iterators begin");
        let over = match new.args.map(|a| a[1].kind) {
            Some(ArgKind::Ignored) => "r10\nr2 += -8",
            _ => "0",
        };
        given = format!("{iterator}r2 = {over}\nr3 = 1\n");
        return format!(
            "{given}call kfunc {name}_new\nagain: {iterator}call kfunc {name}_next\nif r0 != 0 goto again\n\
             {iterator}call kfunc {name}_destroy\n"
        );
    }
    if k.class == KfuncClass::Region {
        let (enter, leave) = match k.name {
            "bpf_rcu_read_lock" | "bpf_rcu_read_unlock" => ("bpf_rcu_read_lock", "bpf_rcu_read_unlock"),
            _ => ("bpf_preempt_disable", "bpf_preempt_enable"),
        };
        return format!("call kfunc {enter}\ncall kfunc {leave}\n");
    }
    format!("{before}{given}call kfunc {}\n", k.name)
}

fn program(k: &KfuncProto, place: &Place) -> Program {
    let mut text = String::from("r6 = r1\n");
    (1..=40).for_each(|i| _ = writeln!(text, "*(u64 *)(r10 -{}) = 0", 8 * i));
    let call = format!("call kfunc {}\n", k.name);
    text += &match OWN.iter().find(|o| o.0 == k.name) {
        Some((_, parts)) => parts.iter().map(|p| if *p == "." { call.as_str() } else { p }).collect(),
        // What is refused by its name needs no arguments.
        None if kfunc_unsupported(k).is_some() => call,
        None => by_prototype(k),
    };
    let task = vmlinux().and_then(|b| b.find("task_struct", |t| matches!(t.kind, BtfKind::Struct(_)))).unwrap_or(0);
    text = text.replace("NODE", &place.node.to_string()).replace("TASK", &task.to_string());
    text += "out: r0 = 2\nexit";
    let names = Called::default();
    let insns = xway_isa::assemble_with(&text, &names).unwrap_or_else(|e| panic!("{}: {e}\n{text}", k.name));
    let kfuncs = names.0.into_inner();
    let len = insns.len();
    Program {
        name: "row".into(),
        section: "xdp".into(),
        insns,
        subprogs: vec![Subprog { name: "row".into(), start: 0, len, global: true, func_id: place.main }],
        kfuncs: kfuncs.into_iter().map(|name| KfuncRef { name, func_id: 0, weak: false }).collect(),
        ..Program::default()
    }
}

#[test]
fn every_kfunc_row_is_what_the_verifier_says() {
    if !Needs::of("testkit::compatibility::every_kfunc_row_is_what_the_verifier_says").kernel(6, 18).met() {
        return;
    }
    let (place, kernel) = (Place::new(), vmlinux());
    let view = MapsView { kernel: kernel.as_deref(), ..MapsView::from(&place.object) };
    for k in kfuncs().iter().filter(|k| k.xdp()) {
        let program = program(k, &place);
        let answer = verify(&program, &view, &Config { explain: 0, ..Config::default() });
        match answer {
            Err(r) if kfunc_unsupported(k).is_some() => assert_eq!(r.errors[0].kind, Kind::Unsupported, "{}", k.name),
            Err(r) if k.name == TRAP => assert_eq!(r.errors[0].kind, Kind::BadCall),
            Err(r) if ANOTHER_HOOK.contains(&k.name) => assert_eq!(r.errors[0].kind, Kind::Argument, "{}", k.name),
            Err(r) => panic!("{} is refused: {r} at {}", k.name, r.errors[0].insn),
            Ok(proof) => {
                assert!(kfunc_unsupported(k).is_none() && k.name != TRAP, "{} is accepted", k.name);
                assert!(!ANOTHER_HOOK.contains(&k.name), "{} is accepted", k.name);
                // Nothing runs here that the engine does not have: either the proof says so, or linking does.
                let runs = xway_vm::kfunc_support(k.name).is_ok();
                assert!(!runs || proof.facts().kernel_objects.is_empty(), "{}", k.name);
            }
        }
    }
}

#[test]
fn linux_takes_the_program_of_every_kfunc_row() {
    let needs = Needs::of("testkit::compatibility::linux_takes_the_program_of_every_kfunc_row").root();
    if !needs.kernel(6, 18).file("/sys/kernel/btf/vmlinux").met() {
        return;
    }
    let place = Place::new();
    let kernel = KernelObject::load(&place.object).expect("two maps");
    for k in kfuncs().iter().filter(|k| k.xdp()) {
        // Metadata wants a device; what we refuse by name has no program with arguments.
        if k.class == KfuncClass::Metadata || kfunc_unsupported(k).is_some() {
            continue;
        }
        let answer = kernel.load_more(&place.object, &program(k, &place), 1);
        let refused = k.name == TRAP || ANOTHER_HOOK.contains(&k.name);
        let log = answer.as_ref().err().map(|e| format!("{}{e}", e.log())).unwrap_or_default();
        assert_eq!(answer.is_err(), refused, "{}: {log}", k.name);
    }
}

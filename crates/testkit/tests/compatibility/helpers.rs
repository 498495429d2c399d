//! Helpers and kernel functions.

use xway_abi::{KfuncClass, helpers as helper_table, kfuncs as kfunc_table};
use xway_verifier::{kfunc_unsupported, needs_kernel_objects, unsupported};
use xway_vm::{Support, kfunc_support, support};

use crate::Table;

const KERNEL_ONLY: &str = "it works on objects of the kernel, which a user-space engine does not have";

/// Where compilers end a way whose outcome depends on what was never written.
pub const TRAP: &str = "__bpf_trap";
/// Functions that no XDP program can call, whatever it gives them.
pub const ANOTHER_HOOK: [&str; 2] = ["bpf_skb_ct_alloc", "bpf_skb_ct_lookup"];

pub fn helpers() -> String {
    let mut table = Table::new(&["helper", "number", "GPL", "here"]);
    let (mut same, mut differ, mut missing) = (0, 0, 0);
    for h in helper_table().iter().filter(|h| h.xdp) {
        let how = match support(h.id) {
            _ if h.might_sleep => Support::Yes,
            // Proved, and not run: what the interpreter does without a proof is no answer.
            Support::Differs(_) | Support::Yes if unsupported(h).is_some() || needs_kernel_objects(h) => Support::No,
            how => how,
        };
        let here = match how {
            Support::Yes => {
                same += 1;
                if h.might_sleep { "yes: refused in every XDP program" } else { "yes" }.to_owned()
            }
            Support::Differs(how) => {
                differ += 1;
                format!("differs: {how}")
            }
            Support::No => {
                missing += 1;
                match unsupported(h) {
                    Some(why) => format!("no: refused, as {why}"),
                    None => format!("no: proved, and refused when it is linked: {KERNEL_ONLY}"),
                }
            }
        };
        let gpl = if h.gpl_only { "needed" } else { "" };
        table.row(&[&format!("`{}`", h.name), &h.id.to_string(), gpl, &here]);
    }
    let foreign: Vec<String> =
        helper_table().iter().filter(|h| !h.xdp).map(|h| format!("`{}` ({})", h.name, h.id)).collect();
    format!(
        "## Helpers\n\nLinux 6.18 gives XDP programs {} helpers. Here {same} are the same, {differ} differ, {missing} are missing.\n\n\
         {table}\nThe other {} are not for XDP, in Linux as here: {}.\n",
        same + differ + missing,
        foreign.len(),
        foreign.join(", ")
    )
}

pub fn kfuncs() -> String {
    let mut table = Table::new(&["kernel function", "about", "here"]);
    for k in kfunc_table().iter().filter(|k| k.xdp()) {
        let here = match (kfunc_unsupported(k), kfunc_support(k.name)) {
            (Some(why), _) => format!("no: refused, as {why}"),
            _ if k.name == TRAP => "yes: refused where it is reached".to_owned(),
            _ if ANOTHER_HOOK.contains(&k.name) => {
                "yes: refused in every XDP program, as it takes another hook's context".to_owned()
            }
            (None, Ok(())) if k.class == KfuncClass::Metadata => "yes, and without binding to a device".to_owned(),
            (None, Ok(())) => "yes".to_owned(),
            (None, Err(why)) => format!("no: proved, and refused when it is linked: {why}"),
        };
        table.row(&[&format!("`{}`", k.name), about(k.class), &here]);
    }
    let not_for_xdp = kfunc_table().iter().filter(|k| !k.xdp()).count();
    format!(
        "## Kernel functions\n\nThose that Linux 6.18 lets an XDP program call. All of them need a licence compatible with the \
         GPL there.\n\n{table}\nAnother {not_for_xdp} are known by name and refused in every XDP program, as in Linux: they sleep or \
         belong to other hooks.\n\n{}\n",
        own_kfuncs()
    )
}

/// The engine's own, which no kernel has.
fn own_kfuncs() -> String {
    let own: Vec<String> = xway_abi::engine_kfuncs().iter().map(|k| format!("`{}`", k.name)).collect();
    format!("The engine's own, declared `__ksym __weak` and asked for with `bpf_ksym_exists`: {}.", own.join(", "))
}

fn about(class: KfuncClass) -> &'static str {
    match class {
        KfuncClass::Metadata => "RX metadata",
        KfuncClass::Packet => "the packet",
        KfuncClass::Dynptr => "dynptrs",
        KfuncClass::Iterator => "loops",
        KfuncClass::Region => "regions and locks",
        KfuncClass::Object => "objects, lists, trees",
        KfuncClass::Cast => "casts",
        KfuncClass::Text => "strings",
        KfuncClass::Deferred => "work that runs later",
        KfuncClass::Exception => "leaving at once",
        KfuncClass::Map => "maps",
        KfuncClass::Kernel => "objects of the kernel",
        KfuncClass::Engine => "the engine",
        KfuncClass::Sleepable | KfuncClass::Foreign => "not for XDP",
    }
}

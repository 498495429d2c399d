//! Members of map values that belong to the runtime: spin locks, timers, kernel pointers.

use xway_abi::{MapSpec, MapType, SpecialField, SpecialKind};

use crate::MapDef;
use crate::btf::{Btf, Kind, MAX_DEPTH};

/// A bound on the members that are looked at in one value.
const MAX_MEMBERS: u32 = 100_000;

/// A bound on the special members of one value; Linux's is 11.
const MAX_FIELDS: usize = 64;

/// Fills in the special members of a map's values and of its inner maps' values, from their types. Where the map's type cannot hold
/// them Linux refuses to create it with types, and libbpf does without: then the values are plain bytes, and a note says so.
pub(super) fn fill(btf: &Btf, def: &mut MapDef, notes: &mut Vec<String>) {
    let mut untyped = fill_spec(btf, def.value_type, &mut def.spec);
    if let Some(inner) = &mut def.spec.inner {
        untyped = untyped.or(fill_spec(btf, def.inner_value_type, inner));
    }
    notes.extend(untyped.map(|why| {
        format!(
            "map {}: it is created without the type of its values, so that none of their fields is special: {why}",
            def.name
        )
    }));
}

/// Says why the values are taken for plain bytes, if they are.
fn fill_spec(btf: &Btf, value_type: u32, spec: &mut MapSpec) -> Option<&'static str> {
    // Values of other types are no memory that a program could put such a member into.
    let typed = matches!(
        spec.map_type,
        MapType::Hash
            | MapType::Array
            | MapType::PercpuHash
            | MapType::PercpuArray
            | MapType::LruHash
            | MapType::LruPercpuHash
    );
    if value_type == 0 || !typed {
        return None;
    }
    spec.special = special_fields(btf, value_type);
    let (_, why) = xway_abi::special_fields_fit(spec).err()?;
    spec.special.clear();
    Some(why)
}

/// The members of a type that belong to the runtime, by rising offset. Linear in the number of members.
pub fn special_fields(btf: &Btf, ty: u32) -> Vec<SpecialField> {
    let mut search = Search { btf, fields: Vec::new(), left: MAX_MEMBERS };
    search.walk(ty, 0, MAX_DEPTH);
    search.fields.sort_by_key(|f| f.offset);
    search.fields
}

struct Search<'a> {
    btf: &'a Btf,
    fields: Vec<SpecialField>,
    left: u32,
}

impl Search<'_> {
    fn walk(&mut self, id: u32, offset: u32, depth: usize) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        let (Some(depth), true) = (depth.checked_sub(1), self.fields.len() < MAX_FIELDS) else { return };
        let Ok((_, ty)) = self.btf.resolve(id) else { return };
        match ty.kind {
            Kind::Struct(c) => {
                if let Some(kind) = owned_struct(ty.name, c.size) {
                    self.fields.push(SpecialField { kind, offset });
                    return;
                }
                for m in c.members().filter(|m| m.bit_size == 0) {
                    self.walk(m.ty, offset.saturating_add(m.bit_offset / 8), depth);
                }
            }
            Kind::Array(a) => {
                let Ok(step) = self.btf.size_of(a.element) else { return };
                for i in 0..a.len.min(self.left) {
                    let found = self.fields.len();
                    self.walk(a.element, offset.saturating_add(i.saturating_mul(step)), depth);
                    // What the first element has not, no other has.
                    if self.fields.len() == found {
                        break;
                    }
                }
            }
            Kind::Datasec { vars, .. } => {
                for v in vars.iter() {
                    self.walk(v.ty, offset.saturating_add(v.offset), depth);
                }
            }
            Kind::Var(ty, _) => self.walk(ty, offset, depth),
            Kind::Ptr(to) if self.is_kernel_pointer(to) => {
                self.fields.push(SpecialField { kind: SpecialKind::Kptr, offset });
            }
            _ => {}
        }
    }

    /// A type tag behind the pointer says that the kernel keeps a reference in it.
    fn is_kernel_pointer(&self, mut id: u32) -> bool {
        for _ in 0..MAX_DEPTH {
            let Ok(ty) = self.btf.ty(id) else { return false };
            id = match ty.kind {
                Kind::TypeTag(_) if matches!(ty.name, "kptr" | "kptr_untrusted" | "percpu_kptr" | "uptr") => {
                    return true;
                }
                Kind::TypeTag(t) | Kind::Const(t) | Kind::Volatile(t) | Kind::Restrict(t) => t,
                _ => return false,
            };
        }
        false
    }
}

fn owned_struct(name: &str, size: u32) -> Option<SpecialKind> {
    match name {
        "bpf_spin_lock" => Some(SpecialKind::SpinLock),
        "bpf_timer" => Some(SpecialKind::Timer),
        "bpf_wq" => Some(SpecialKind::Workqueue),
        "bpf_list_head" | "bpf_list_node" | "bpf_rb_root" | "bpf_rb_node" | "bpf_refcount" | "bpf_res_spin_lock"
        | "bpf_task_work" => Some(SpecialKind::Other(size)),
        _ => None,
    }
}

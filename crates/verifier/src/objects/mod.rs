//! Objects that BTF describes: those of the kernel, and those of the program's own types.
//!
//! A pointer to one says how far it may be believed ([`Trust`]). Reading a field that is a pointer gives another such pointer;
//! what that is worth follows from the first one, from the field's type tag and from a few fields that Linux names. Nothing
//! outside a kernel can hand such objects to a program: whatever gives one is noted among the needs of the proof, and linking
//! the program refuses it there. The proof itself is the same as Linux's.

mod allocated;
mod kcall;
mod walk;

use xway_object::Btf;
use xway_object::btf::Kind;

use crate::diag::{Fail, fail};
use crate::domain::Scalar;
use crate::explore::Verifier;
use crate::graph::NONE;
use crate::value::{Base, Object, Ptr, Trust, Value};

use walk::{Field, Pointer};

/// Fields that stay trusted when they are read from a trusted structure (`BTF_TYPE_SAFE_TRUSTED`).
const KEEPS_TRUST: [(&str, &str); 3] = [("linux_binprm", "file"), ("file", "f_inode"), ("dentry", "d_inode")];
/// The same, but they may be null (`BTF_TYPE_SAFE_TRUSTED_OR_NULL`).
const KEEPS_TRUST_OR_NULL: [(&str, &str); 3] =
    [("socket", "sk"), ("vm_area_struct", "vm_mm"), ("vm_area_struct", "vm_file")];
/// Fields that RCU protects although no tag says so (`BTF_TYPE_SAFE_RCU`).
const RCU_FIELDS: [(&str, &str); 7] = [
    ("task_struct", "cpus_ptr"),
    ("task_struct", "cgroups"),
    ("task_struct", "real_parent"),
    ("task_struct", "group_leader"),
    ("cgroup", "kn"),
    ("css_set", "dfl_cgrp"),
    ("cgroup_subsys_state", "cgroup"),
];
/// The same, but they may be null (`BTF_TYPE_SAFE_RCU_OR_NULL`).
const RCU_FIELDS_OR_NULL: [(&str, &str); 3] = [("mm_struct", "exe_file"), ("sk_buff", "sk"), ("request_sock", "sk")];
/// Numbers in objects of the kernel that an XDP program may write (`btf_struct_access` of XDP programs).
const WRITABLE: [(&str, &str); 2] = [("nf_conn", "mark"), ("nf_conn___init", "mark")];

impl<'a> Verifier<'a> {
    /// The types of the kernel: its own, or what the program says of them.
    pub(crate) fn kernel_types(&self) -> Option<&'a Btf> {
        self.view.kernel.or(self.view.btf)
    }

    /// The types that an object's structure is one of.
    pub(crate) fn types_of(&self, o: &Object) -> Result<&'a Btf, Fail> {
        let btf = if o.own { self.view.btf } else { self.kernel_types() };
        btf.ok_or_else(|| no_types("the object's structure"))
    }

    /// The structure of the kernel with this name. The search is linear: it is made once for each name.
    pub(crate) fn kernel_struct(&mut self, name: &str) -> Result<u32, Fail> {
        let Some(btf) = self.kernel_types() else { return Err(no_types(name)) };
        if let Some(id) = self.structs.get(name) {
            return Ok(*id);
        }
        let Some(id) = btf.find_struct(name) else {
            return fail!(Unsupported, "the kernel's types have no struct {name}");
        };
        self.structs.insert(name.to_owned(), id);
        Ok(id)
    }

    /// A pointer to an object of the kernel.
    pub(crate) fn kernel_pointer(&mut self, name: &str, trust: Trust, nullable: bool) -> Result<Ptr, Fail> {
        let ty = self.kernel_struct(name)?;
        let id = if nullable { self.id() } else { 0 };
        Ok(Ptr { nullable, id, ..Ptr::to(Base::Object(Object { ty, own: false, trust })) })
    }

    /// The structure's name, for messages and for rules that name it.
    pub(crate) fn object_name(&self, o: &Object) -> &'a str {
        self.types_of(o).ok().and_then(|b| b.resolve(o.ty).ok()).map_or("", |t| t.1.name)
    }

    /// Reads `size` bytes at `p + off` of an object.
    pub(crate) fn object_read(&mut self, p: &Ptr, o: &Object, off: i64, size: u32) -> Result<Value, Fail> {
        let number = Value::num(Scalar::of_bits(size * 8), NONE);
        if o.ty == 0 {
            return Ok(number);
        }
        let at = self.object_offset(p, o, off)?;
        if !o.is_foreign() {
            self.no_special_field(o, at, size)?;
        }
        let name = self.object_name(o);
        let types = self.types_of(o)?;
        let field = walk::field(types, o.ty, at, size, o.trust == Trust::Untrusted).map_err(|why| {
            Fail::new(crate::diag::Kind::Permission, format!("read of an object of struct {name}: {why}"))
        })?;
        Ok(match field {
            Field::Number => number,
            // In the program's own objects pointers are numbers: the program may have written anything there.
            _ if !o.is_foreign() => number,
            Field::Address => Value::Ptr(Ptr::to(Base::Object(Object { ty: 0, trust: Trust::Untrusted, ..*o }))),
            Field::Pointer(f) => {
                let trusted = o.trust == Trust::Trusted || p.reference != 0;
                let (trust, nullable) = trust_of_field(o.trust, trusted, &f);
                let id = if nullable { self.id() } else { 0 };
                Value::Ptr(Ptr { nullable, id, ..Ptr::to(Base::Object(Object { ty: f.to, trust, ..*o })) })
            }
        })
    }

    /// Writes `size` bytes at `p + off` of an object.
    pub(crate) fn object_write(&mut self, p: &Ptr, o: &Object, off: i64, size: u32) -> Result<(), Fail> {
        let name = self.object_name(o);
        if o.ty == 0 {
            return fail!(Permission, "memory of which only the address is known can be read, not written");
        }
        let at = self.object_offset(p, o, off)?;
        let types = self.types_of(o)?;
        if !o.is_foreign() {
            self.no_special_field(o, at, size)?;
            return walk::field(types, o.ty, at, size, false).map(|_| ()).map_err(|why| {
                Fail::new(crate::diag::Kind::Permission, format!("write of an object of struct {name}: {why}"))
            });
        }
        let own_field = WRITABLE.iter().filter(|w| w.0 == name).any(|w| {
            types.member_at(o.ty, w.1).is_ok_and(|m| {
                let start = m.bit_offset / 8;
                let len = types.size_of(m.ty).unwrap_or(0);
                m.bit_size == 0 && start == at && size <= len
            })
        });
        if own_field && !matches!(o.trust, Trust::Untrusted | Trust::PerCpu | Trust::User) {
            return Ok(());
        }
        fail!(Permission, "an object of the kernel (struct {name}) can only be read")
    }

    /// Locks, list heads and their like inside an object are not the program's to read or write.
    fn no_special_field(&self, o: &Object, at: u32, size: u32) -> Result<(), Fail> {
        let types = self.types_of(o)?;
        let hit = |f: &xway_abi::SpecialField| at < f.offset + f.kind.size() && f.offset < at.saturating_add(size);
        match xway_object::special_fields(types, o.ty).iter().find(|f| hit(f)) {
            Some(f) => {
                fail!(Permission, "{:?} at offset {} of the object cannot be accessed directly", f.kind, f.offset)
            }
            None => Ok(()),
        }
    }

    /// The constant offset into an object.
    fn object_offset(&self, p: &Ptr, o: &Object, off: i64) -> Result<u32, Fail> {
        if matches!(o.trust, Trust::PerCpu) {
            return fail!(
                Permission,
                "each CPU has its own: the address is had by bpf_this_cpu_ptr or bpf_per_cpu_ptr"
            );
        }
        if matches!(o.trust, Trust::User) {
            return fail!(Permission, "an address of user space is read by bpf_probe_read_user");
        }
        if !p.is_fixed() {
            return fail!(Unbounded, "fields of struct {} are at constant offsets", self.object_name(o));
        }
        let at = i64::from(p.off) + off;
        u32::try_from(at).map_err(|_| {
            let name = self.object_name(o);
            Fail::new(crate::diag::Kind::MemoryBounds, format!("offset {at} lies before the object of struct {name}"))
        })
    }

    /// A field of a map itself (`struct bpf_array` and its relatives): it can be read as any object of the kernel.
    pub(crate) fn map_object_read(
        &mut self,
        p: &Ptr,
        m: &crate::value::MapRef,
        off: i64,
        size: u32,
    ) -> Result<Value, Fail> {
        let Some(spec) = self.map_spec(m) else { return fail!(BadReference, "the map has no description") };
        let name = spec.map_type.kernel_struct();
        if self.kernel_types().is_none() {
            return fail!(Permission, "a map cannot be accessed directly")
                .map_err(|e| e.hint("look an element up with bpf_map_lookup_elem"));
        }
        let ty =
            self.kernel_struct(name).map_err(|e| e.hint("a map's elements are looked up with bpf_map_lookup_elem"))?;
        let o = Object { ty, own: false, trust: Trust::Plain };
        let value = self.object_read(p, &o, off, size)?;
        self.facts.kernel_object(&format!("struct {name}"));
        Ok(value)
    }

    /// True when an object may stand where one of the kernel's structure `want` is asked for.
    pub(crate) fn is_object_of(&self, p: &Ptr, o: &Object, want: u32, exact: bool) -> bool {
        let Ok(types) = self.types_of(o) else { return false };
        let Some(kernel) = self.kernel_types() else { return false };
        let wanted = kernel.resolve(want).map_or("", |t| t.1.name);
        let same = |ty: u32| {
            (!o.own && ty == want) || types.resolve(ty).is_ok_and(|t| o.own && t.1.name == wanted && !wanted.is_empty())
        };
        let Ok(off) = u32::try_from(p.off) else { return false };
        if !p.is_fixed() {
            return false;
        }
        // `struct X___init` is another view of `struct X` that some functions insist on.
        let here = types.resolve(o.ty).map_or("", |t| t.1.name);
        let other_view =
            |a: &str, b: &str| a != b && xway_object::btf::essential_name(a) == xway_object::btf::essential_name(b);
        if exact || other_view(here, wanted) { off == 0 && same(o.ty) } else { walk::holds(types, o.ty, off, same) }
    }
}

/// What a pointer that is read from an object is worth, and whether it may be null. XDP programs always run in an RCU section.
fn trust_of_field(from: Trust, trusted: bool, f: &Pointer<'_>) -> (Trust, bool) {
    let named = |list: &[(&str, &str)]| list.contains(&(f.owner, f.name));
    match from {
        Trust::Untrusted => (Trust::Untrusted, false),
        _ if trusted && named(&KEEPS_TRUST) => (Trust::Trusted, false),
        _ if trusted && named(&KEEPS_TRUST_OR_NULL) => (Trust::Trusted, true),
        _ if trusted || from == Trust::Rcu => match f.tag {
            _ if named(&RCU_FIELDS) => (Trust::Rcu, false),
            _ if named(&RCU_FIELDS_OR_NULL) => (Trust::Rcu, true),
            "rcu" => (Trust::Rcu, true),
            "percpu" => (Trust::PerCpu, false),
            "user" => (Trust::User, false),
            _ if f.in_union => (Trust::Untrusted, false),
            _ => (Trust::Plain, false),
        },
        _ => match f.tag {
            "percpu" => (Trust::PerCpu, false),
            "user" => (Trust::User, false),
            _ if f.in_union => (Trust::Untrusted, false),
            _ => (Trust::Plain, false),
        },
    }
}

/// A structure is asked for and there are no types.
pub(crate) fn no_types(what: &str) -> Fail {
    Fail::new(
        crate::diag::Kind::Unsupported,
        format!("{what} is described by the kernel's types (BTF), and there are none"),
    )
    .hint("name a file with them: --btf /sys/kernel/btf/vmlinux")
}

/// The structure behind a pointer type; 0 for anything else.
pub(crate) fn pointee(btf: &Btf, ty: u32) -> Option<(u32, Kind<'_>)> {
    let (_, t) = btf.resolve(ty).ok()?;
    let Kind::Ptr(to) = t.kind else { return None };
    let (id, target) = btf.resolve(to).ok()?;
    Some((id, target.kind))
}

#[cfg(test)]
mod tests {
    use xway_object::btf::{BtfBuilder, IntEncoding};

    use super::*;

    #[test]
    fn a_field_is_worth_no_more_than_what_it_was_read_from() {
        let field = |owner, name, tag| Pointer { to: 1, owner, name, tag, in_union: false };
        let plain = field("task_struct", "mm", "");
        assert_eq!(trust_of_field(Trust::Untrusted, false, &plain), (Trust::Untrusted, false));
        assert_eq!(trust_of_field(Trust::Trusted, true, &plain), (Trust::Plain, false));
        let named = field("file", "f_inode", "");
        assert_eq!(trust_of_field(Trust::Trusted, true, &named), (Trust::Trusted, false));
        assert_eq!(trust_of_field(Trust::Plain, false, &named), (Trust::Plain, false), "only of a trusted one");
        assert_eq!(trust_of_field(Trust::Rcu, false, &field("x", "y", "rcu")), (Trust::Rcu, true));
        assert_eq!(trust_of_field(Trust::Plain, false, &field("x", "y", "rcu")), (Trust::Plain, false));
        assert_eq!(trust_of_field(Trust::Trusted, true, &field("x", "y", "user")), (Trust::User, false));
        assert_eq!(trust_of_field(Trust::Plain, false, &field("x", "y", "percpu")), (Trust::PerCpu, false));
        let union = Pointer { in_union: true, ..field("x", "y", "") };
        assert_eq!(trust_of_field(Trust::Trusted, true, &union), (Trust::Untrusted, false));
    }

    #[test]
    fn what_a_pointer_type_points_to_is_told_and_of_others_nothing() {
        let mut b = BtfBuilder::new();
        let word = b.int("u32", 4, IntEncoding::Unsigned);
        let pair = b.structure("pair", 8, &[("a", word, 0), ("b", word, 32)]);
        let pointer = b.ptr(pair);
        let btf = b.finish();
        assert!(matches!(pointee(&btf, pointer), Some((id, Kind::Struct(_))) if id == pair));
        assert!(pointee(&btf, word).is_none() && pointee(&btf, 77).is_none());
    }
}

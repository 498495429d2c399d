//! Object files: from the ELF file that clang writes to linked programs, map descriptions and types.
//!
//! [`Object::parse`] is the whole loader and a pure function: bytes in, plain data out, no file, no system call, no map
//! that lives. What it gives serves the interpreter, the verifier, the compiler and bpf(2) alike, because references are
//! left in a form that depends on nothing but the object ([`Program`] has the table).
//!
//! Objects of four ages of convention are in the field and are read alike:
//!
//! | age | maps | programs |
//! |---|---|---|
//! | libbpf today | BTF `.maps` | section names with a meaning, functions in `.text` |
//! | libbpf before 1.0 | `SEC("maps")`, `struct bpf_map_def` | section names such as `xdp_name` |
//! | before libbpf | the same, longer, symbols without a type | sections named anything |
//! | iproute2 | `struct bpf_elf_map` | `prog`; tail calls by sections named `ID/KEY` |
//!
//! The input is hostile: every length is checked against bytes that are there, every walk over types is bounded, and
//! what is wrong is said with its place.
#![forbid(unsafe_code)]

pub mod btf;
mod core_relo;
mod elf;
mod error;
mod externs;
mod find;
mod functions;
mod host;
mod kconfig;
mod kinds;
mod lines;
mod link;
mod load;
mod maps;
mod model;
mod names;
mod options;
mod run_config;
mod tag;
mod unit;

pub use btf::Btf;
pub use error::ObjectError;
pub use find::Select;
pub use maps::special_fields;
pub use model::{
    Initial, KfuncRef, KsymRef, LineInfo, MapDef, MapKind, Object, Pinning, Poison, Program, ProgramKind,
    RejectedProgram, Section, SlotRef, Subprog,
};
pub use names::HelperNames;
pub use options::{Exists, LoadOptions};
pub use run_config::RunConfig;

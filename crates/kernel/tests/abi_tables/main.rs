//! The tables of `abi` against the verdicts of the running kernel.

mod btf;
mod helpers;
mod kfuncs;
mod load;
mod maps;
mod probe;

//! Verified programs to machine code, with Cranelift.

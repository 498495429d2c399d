//! Typed values: bytes in, a neutral tree out, and back. What prints a map or reads its content from JSON stands on this.

mod decode;
mod encode;

/// A value as its type structures it.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Integer, pointer, or an enum's value without a name.
    Int(i128),
    /// Boolean.
    Bool(bool),
    /// Floating-point number.
    Float(f64),
    /// Text of a character array; on the way in also an enum's name, a number in any notation, or hexadecimal bytes.
    Text(String),
    /// Named value of an enum.
    Enum {
        /// Name.
        name: String,
        /// Number.
        value: i128,
    },
    /// Bytes without a structure.
    Bytes(Vec<u8>),
    /// Array.
    List(Vec<Value>),
    /// Struct, union (every member, each read from the same bytes) or data section, in order of declaration. Members of
    /// anonymous structs and unions stand beside those of the struct that holds them.
    Struct(Vec<(String, Value)>),
}

impl Value {
    /// The member of a struct.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Struct(members) => members.iter().find(|m| m.0 == name).map(|m| &m.1),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(v) | Value::Enum { value: v, .. } => Some(*v),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }
}

/// Why bytes and a type, or a tree and a type, do not fit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{why}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct ValueError {
    /// Member path, empty at the top.
    pub path: String,
    /// Reason.
    pub why: String,
}

impl ValueError {
    fn new(why: impl Into<String>) -> ValueError {
        ValueError { path: String::new(), why: why.into() }
    }

    /// The same error, seen from one level further out.
    fn under(mut self, step: &str) -> ValueError {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self
    }
}

/// A bound on the nodes of one tree.
const MAX_NODES: u32 = 4 << 20;

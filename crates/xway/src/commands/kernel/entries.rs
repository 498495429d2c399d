//! Keys and values of a map on any hook: from words to bytes, from bytes to JSON.

use serde_json::{Value, json};
use xway_abi::{Errno, MapType, map_flags};
use xway_hook::{Hook, HookError, HookKind, MapId, MapInfo};
use xway_object::Btf;

use super::failure;
use crate::failure::Failure;
use crate::values::{self, Shape};

/// A map with what is known about its types, on the hook that it lives on.
pub struct Typed {
    pub hook: Box<dyn Hook>,
    pub info: MapInfo,
    btf: Option<Btf>,
    key_type: u32,
    value_type: u32,
}

impl Typed {
    /// Asks the hook for the map's types.
    pub fn new(mut hook: Box<dyn Hook>, id: MapId) -> Result<Typed, Failure> {
        let info = hook.map_info(id).map_err(failure)?;
        // Types that cannot be had or read leave bytes, which are as true.
        let types = hook.map_types(id).ok().flatten();
        let (key_type, value_type) = types.as_ref().map_or((0, 0), |t| (t.key, t.value));
        let btf = types.and_then(|t| Btf::parse(t.btf).ok());
        Ok(Typed { hook, info, btf, key_type, value_type })
    }

    /// What the map is called in messages.
    pub fn name(&self) -> String {
        match self.info.name.is_empty() {
            true => format!("map {}", self.info.id.0),
            false => format!("map {} (id {})", self.info.name, self.info.id.0),
        }
    }

    fn key_shape(&self) -> Shape<'_> {
        Shape::new(self.btf.as_ref(), self.key_type, self.info.key_size as usize)
    }

    fn value_shape(&self) -> Shape<'_> {
        Shape::new(self.btf.as_ref(), self.value_type, self.info.value_size as usize)
    }

    fn per_cpu(&self) -> bool {
        use MapType::{LruPercpuHash, PercpuArray, PercpuHash};
        matches!(self.info.map_type, PercpuHash | PercpuArray | LruPercpuHash)
    }

    /// Maps whose values are descriptors on the way in and ids on the way out.
    fn of_objects(&self) -> bool {
        use MapType::{ArrayOfMaps, CgroupArray, HashOfMaps, PerfEventArray, ProgArray, Xskmap};
        matches!(self.info.map_type, ArrayOfMaps | HashOfMaps | ProgArray | PerfEventArray | CgroupArray | Xskmap)
    }

    /// The bytes of a key.
    pub fn key(&self, words: &[String]) -> Result<Vec<u8>, Failure> {
        bytes(self.key_shape(), words).map_err(|e| Failure::usage(format!("{}: key: {e}", self.name())))
    }

    /// The bytes that an update takes: on per-CPU maps the same value for every CPU.
    pub fn value(&self, words: &[String]) -> Result<Vec<u8>, Failure> {
        let wrong = |e: String| Failure::usage(format!("{}: value: {e}", self.name()));
        if self.of_objects() {
            let hint = "a socket or a perf event belongs to the process that made it, which puts it in itself";
            return Err(wrong("maps of this type take descriptors of other processes' objects".into()).hint(hint));
        }
        let one = bytes(self.value_shape(), words).map_err(wrong)?;
        if !self.per_cpu() {
            return Ok(one);
        }
        let mut padded = one;
        padded.resize(padded.len().next_multiple_of(8), 0);
        let cpus = self.info.user_value_size as usize / padded.len().max(1);
        Ok(padded.repeat(cpus))
    }

    /// A key as JSON; indices are numbers also where no type says so.
    pub fn show_key(&self, key: &[u8]) -> Value {
        use MapType::{Array, ArrayOfMaps, Cpumap, Devmap, DevmapHash, PercpuArray, PerfEventArray, ProgArray, Xskmap};
        let index = matches!(
            self.info.map_type,
            Array | PercpuArray | ProgArray | ArrayOfMaps | Devmap | DevmapHash | Cpumap | Xskmap | PerfEventArray
        );
        match key.first_chunk() {
            Some(bytes) if index && self.key_type == 0 => json!(u32::from_ne_bytes(*bytes)),
            _ => values::decode(self.key_shape(), key),
        }
    }

    /// An entry as JSON.
    pub fn entry(&self, key: &[u8], value: &[u8]) -> Value {
        let shape = self.value_shape();
        let size = self.info.value_size as usize;
        if self.per_cpu() {
            let step = size.next_multiple_of(8).max(8);
            let all: Vec<Value> =
                value.chunks(step).map(|v| values::decode(shape, v.get(..size).unwrap_or(v))).collect();
            return json!({ "key": self.show_key(key), "values": all });
        }
        let id = || value.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
        let shown = match self.info.map_type {
            MapType::ArrayOfMaps | MapType::HashOfMaps => json!({ "map_id": id() }),
            MapType::ProgArray => json!({ "prog_id": id() }),
            _ => values::decode(shape, value),
        };
        json!({ "key": self.show_key(key), "value": shown })
    }

    /// What a map of this type takes, where an update was refused with this errno.
    fn wanted(&self, errno: Errno) -> Option<String> {
        use MapType::{Array, ArrayOfMaps, Cpumap, Devmap, DevmapHash, HashOfMaps, LpmTrie, PercpuArray};
        match (self.info.map_type, errno) {
            (LpmTrie, Errno::EINVAL) => {
                Some(format!("the length that the key begins with: at most {}", (self.info.key_size - 4) * 8))
            }
            (Devmap | DevmapHash, Errno::EINVAL) => Some(match self.hook.kind() {
                HookKind::Kernel => "the number of an interface that there is: ip link".into(),
                _ => "the number of an open port: xway features --hook user".into(),
            }),
            (ArrayOfMaps | HashOfMaps, Errno::EINVAL) => {
                Some("a map of the type and the sizes that this one was made for: those of its inner_map".into())
            }
            (Cpumap, Errno::EOVERFLOW) => Some("a queue of at most 16384 packets".into()),
            (Array | PercpuArray, Errno::EEXIST) => {
                Some("elements of an array are always there: without noexist".into())
            }
            _ => None,
        }
    }

    /// A refusal of an operation on this map. What the map itself says is looked at before anybody is blamed.
    pub fn refused(&mut self, step: &str, error: HookError) -> Failure {
        let Some(errno) = error.errno else { return failure(error) };
        let what = format!("{}: {step}", self.name());
        if errno != Errno::EPERM {
            let failed = refused(&what, errno);
            let mend = if step == "the update" { self.wanted(errno) } else { None };
            return mend.into_iter().fold(failed, Failure::hint);
        }
        // It may have been frozen since it was asked for its types.
        let info = self.hook.map_info(self.info.id).unwrap_or_else(|_| self.info.clone());
        let failed = Failure::no(format!("{what} failed with {errno} ({})", errno.text()));
        if info.frozen {
            return failed.hint(
                "the map is frozen: nobody but programs writes to it any more; make another one: xway map create",
            );
        }
        if info.flags & (map_flags::RDONLY | map_flags::WRONLY) != 0 {
            let closed = if info.flags & map_flags::RDONLY != 0 {
                "BPF_F_RDONLY: nobody but programs writes to it"
            } else {
                "BPF_F_WRONLY: nobody but programs reads it"
            };
            return failed.hint(format!("the map was made with {closed}; make another one: xway map create"));
        }
        match error.hint {
            // Whoever refused knows better: the service names its group.
            Some(hint) => Failure::needs(format!("{what}: {}", error.message)).hint(hint),
            None => refused(&what, errno),
        }
    }
}

/// A refusal by errno.
pub fn refused(what: &str, errno: Errno) -> Failure {
    let message = format!("{what} failed with {errno} ({})", errno.text());
    match errno {
        Errno::EPERM => Failure::needs(message).hint("run as root, or with CAP_BPF"),
        Errno::ENOENT => Failure::no(message).hint("xway map dump shows which keys there are"),
        Errno::E2BIG => Failure::no(message).hint("the map is full, or the index is too high"),
        _ => Failure::no(message),
    }
}

/// Bytes from words: as bpftool takes them (`0x0a 0 0 1`, `hex 0a 00 00 01`), one literal (`ip:10.0.0.1`), a number, JSON.
fn bytes(shape: Shape<'_>, words: &[String]) -> Result<Vec<u8>, String> {
    let [first, rest @ ..] = words else { return Err("is missing".into()) };
    if first == "hex" {
        return exact(shape, rest.iter().map(|w| u8::from_str_radix(w, 16).map_err(|_| w)).collect());
    }
    if rest.is_empty() {
        let value = serde_json::from_str(first).unwrap_or_else(|_| json!(first));
        // A number or a literal without a type: a number of the machine's order in so many bytes.
        if shape.typed.is_none()
            && let Some(number) = value.as_u64().or_else(|| value.as_i64().map(|n| n as u64))
            && matches!(shape.size, 1 | 2 | 4 | 8)
        {
            let fits = shape.size == 8 || number >> (8 * shape.size) == 0;
            let low: Vec<u8> = (0..shape.size).map(|i| (number >> (8 * i)) as u8).collect();
            let ordered = if cfg!(target_endian = "big") { low.into_iter().rev().collect() } else { low };
            return if fits { Ok(ordered) } else { Err(format!("{number} does not fit into {} bytes", shape.size)) };
        }
        return values::encode(shape, &value, &[]);
    }
    let byte = |w: &String| -> Result<u8, ()> {
        match w.strip_prefix("0x") {
            Some(hex) => u8::from_str_radix(hex, 16).map_err(|_| ()),
            None => w.parse().map_err(|_| ()),
        }
    };
    exact(shape, words.iter().map(|w| byte(w).map_err(|()| w)).collect())
}

fn exact(shape: Shape<'_>, bytes: Result<Vec<u8>, &String>) -> Result<Vec<u8>, String> {
    let bytes = bytes.map_err(|word| format!("{word}: not a byte"))?;
    match bytes.len() == shape.size {
        true => Ok(bytes),
        false => Err(format!("{} bytes were given, it has {}", bytes.len(), shape.size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_become_bytes() {
        let four = Shape { typed: None, size: 4 };
        for (text, want) in [
            ("0x0a 0 0 1", vec![10, 0, 0, 1]),
            ("hex 0a 00 00 01", vec![10, 0, 0, 1]),
            ("ip:10.0.0.1", vec![10, 0, 0, 1]),
            ("258", 258u32.to_ne_bytes().to_vec()),
        ] {
            assert_eq!(bytes(four, &words(text)), Ok(want), "{text}");
        }
        for wrong in ["", "hex 0a", "1 2 3", "1 2 3 256", "hex 0a 00 00 xx", "4294967296"] {
            assert!(bytes(four, &words(wrong)).is_err(), "{wrong}");
        }
    }
}

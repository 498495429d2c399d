//! Maps, and what is attached where, on the wire.

use serde::{Deserialize, Serialize};
use xway_abi::{Errno, MapSpec, MapType, SpecialField, SpecialKind};
use xway_hook::{AttachRequest, Elements, HookError, MapId, MapInfo, MapTypes, Mode, ProgId, Replace, Verdicts};

use super::Bytes;

/// [`MapSpec`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the specification's.
pub struct Spec {
    #[serde(rename = "type")]
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    #[serde(default)]
    pub flags: u32,
    #[serde(default)]
    pub numa_node: u32,
    #[serde(default)]
    pub map_extra: u64,
    #[serde(default)]
    pub inner: Option<Box<Spec>>,
    /// Spin locks and timers in values: kind (0 lock, 1 timer, 2 work queue, 3 pointer), offset.
    #[serde(default)]
    pub special: Vec<(u32, u32)>,
}

impl From<&MapSpec> for Spec {
    fn from(s: &MapSpec) -> Spec {
        let kind = |f: &SpecialField| match f.kind {
            SpecialKind::SpinLock => 0,
            SpecialKind::Timer => 1,
            SpecialKind::Workqueue => 2,
            SpecialKind::Kptr => 3,
            SpecialKind::Other(size) => 16 + size,
        };
        Spec {
            map_type: s.map_type as u32,
            key_size: s.key_size,
            value_size: s.value_size,
            max_entries: s.max_entries,
            flags: s.flags,
            numa_node: s.numa_node,
            map_extra: s.map_extra,
            inner: s.inner.as_deref().map(|i| Box::new(Spec::from(i))),
            special: s.special.iter().map(|f| (kind(f), f.offset)).collect(),
        }
    }
}

impl Spec {
    /// The specification. `EINVAL` for a type that is not known.
    pub fn read(&self) -> Result<MapSpec, HookError> {
        let unknown = || HookError::errno(format!("map type {}", self.map_type), Errno::EINVAL);
        let map_type = MapType::from_u32(self.map_type).ok_or_else(unknown)?;
        let kind = |kind: u32| match kind {
            0 => SpecialKind::SpinLock,
            1 => SpecialKind::Timer,
            2 => SpecialKind::Workqueue,
            3 => SpecialKind::Kptr,
            other => SpecialKind::Other(other.saturating_sub(16)),
        };
        Ok(MapSpec {
            flags: self.flags,
            numa_node: self.numa_node,
            map_extra: self.map_extra,
            inner: self.inner.as_ref().map(|i| i.read().map(Box::new)).transpose()?,
            special: self.special.iter().map(|(k, offset)| SpecialField { kind: kind(*k), offset: *offset }).collect(),
            ..MapSpec::new(map_type, self.key_size, self.value_size, self.max_entries)
        })
    }
}

/// [`AttachRequest`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the request's.
pub struct Attach {
    pub port: String,
    pub queue: Option<u32>,
    pub program: u32,
    pub priority: u32,
    pub chain_on: u32,
    /// `never`, `any`, `id:N`, `name:NAME`.
    pub replace: String,
    pub chain: bool,
}

impl From<&AttachRequest> for Attach {
    fn from(r: &AttachRequest) -> Attach {
        let replace = match &r.replace {
            Replace::Never => "never".to_owned(),
            Replace::Any => "any".to_owned(),
            Replace::Id(id) => format!("id:{id}"),
            Replace::Name(name) => format!("name:{name}"),
        };
        Attach {
            port: r.port.clone(),
            queue: r.queue,
            program: r.program.0,
            priority: r.priority,
            chain_on: r.chain_on.0,
            replace,
            chain: r.chain,
        }
    }
}

impl Attach {
    /// The request.
    pub fn read(&self) -> Result<AttachRequest, HookError> {
        let wrong = || HookError::errno(format!("field replace: {}", self.replace), Errno::EINVAL);
        let replace = match self.replace.split_once(':') {
            None if self.replace == "never" => Replace::Never,
            None if self.replace == "any" => Replace::Any,
            Some(("id", id)) => Replace::Id(id.parse().map_err(|_| wrong())?),
            Some(("name", name)) => Replace::Name(name.to_owned()),
            _ => return Err(wrong()),
        };
        Ok(AttachRequest {
            port: self.port.clone(),
            queue: self.queue,
            mode: Mode::Auto,
            program: ProgId(self.program),
            priority: self.priority,
            chain_on: Verdicts(self.chain_on),
            replace,
            chain: self.chain,
        })
    }
}

/// [`MapInfo`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the description's.
pub struct Map {
    pub id: u32,
    pub name: String,
    #[serde(rename = "type")]
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub user_value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub frozen: bool,
    pub memory: Option<u64>,
    #[serde(default)]
    pub placement: Option<String>,
}

impl From<MapInfo> for Map {
    fn from(m: MapInfo) -> Map {
        Map {
            id: m.id.0,
            name: m.name,
            map_type: m.map_type as u32,
            key_size: m.key_size,
            value_size: m.value_size,
            user_value_size: m.user_value_size,
            max_entries: m.max_entries,
            flags: m.flags,
            frozen: m.frozen,
            memory: m.memory,
            placement: m.placement,
        }
    }
}

impl Map {
    /// The description; `None` for a type that this end does not know.
    pub fn read(self) -> Option<MapInfo> {
        Some(MapInfo {
            id: MapId(self.id),
            name: self.name,
            map_type: MapType::from_u32(self.map_type)?,
            key_size: self.key_size,
            value_size: self.value_size,
            user_value_size: self.user_value_size,
            max_entries: self.max_entries,
            flags: self.flags,
            frozen: self.frozen,
            memory: self.memory,
            placement: self.placement,
        })
    }
}

/// [`MapTypes`] on the wire: type information, type of the key, type of the value.
pub type Types = Option<(Bytes, u32, u32)>;

/// [`MapTypes`] as the trait has them.
pub fn map_types(types: Types) -> Option<MapTypes> {
    types.map(|(btf, key, value)| MapTypes { btf: btf.0, key, value })
}

/// [`Elements`] on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are the elements'.
pub struct Part {
    pub entries: Vec<(Bytes, Bytes)>,
    pub next: Option<Bytes>,
}

impl From<Elements> for Part {
    fn from(e: Elements) -> Part {
        let entries = e.entries.into_iter().map(|(k, v)| (Bytes(k), Bytes(v))).collect();
        Part { entries, next: e.next.map(Bytes) }
    }
}

impl From<Part> for Elements {
    fn from(p: Part) -> Elements {
        let entries = p.entries.into_iter().map(|(k, v)| (k.0, v.0)).collect();
        Elements { entries, next: p.next.map(|n| n.0) }
    }
}

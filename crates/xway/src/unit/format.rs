//! The test file: what it may say. `docs/testing.md` is the description for people; the two are kept together by a test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de};
use xway_packet_text::{Description, literal};

use crate::failure::Failure;
use crate::payload;

/// Largest test file, bytes.
const FILE_MAX: u64 = 16 << 20;
/// Most cases in one file.
const CASES_MAX: usize = 100_000;
/// Most runs of one case.
const REPEAT_MAX: u32 = 100_000_000;

/// A test file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Object, relative to the file's directory. A `.c` file is compiled with clang first.
    pub object: PathBuf,
    /// Flags for clang, after the usual ones.
    #[serde(default)]
    pub cflags: Vec<String>,
    /// Program by function name; a case may choose another one.
    pub program: Option<String>,
    /// Program by section.
    pub section: Option<String>,
    /// The maps live through all cases, in the order of the file, instead of being new for each.
    #[serde(default)]
    pub keep_maps: bool,
    /// The programs are not verified: the checked interpreter runs them and stops them at the first wrong access.
    #[serde(default)]
    pub checked: bool,
    /// Map contents before each case (with `keep_maps`: before the first).
    #[serde(default, rename = "map")]
    pub maps: Vec<MapEntries>,
    /// The cases.
    #[serde(default, rename = "test")]
    pub tests: Vec<Case>,
}

/// One case: a packet in, what must come out.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// Program by function name, when not the file's.
    pub program: Option<String>,
    /// Packet in.
    pub packet: PacketSource,
    /// Context fields.
    #[serde(default)]
    pub ctx: Context,
    /// How often the packet goes in, each time as it is written here. Default 1.
    #[serde(default = "one")]
    pub repeat: u32,
    /// Map contents before this case, after the file's.
    #[serde(default, rename = "map")]
    pub maps: Vec<MapEntries>,
    /// `ABORTED`, `DROP`, `PASS`, `TX`, `REDIRECT` or `INVALID`; with or without `XDP_`.
    pub verdict: Option<Expected>,
    /// The program's return value as a number, for what is no verdict.
    pub retval: Option<u32>,
    /// Packet out, or `"unchanged"`.
    pub packet_out: Option<PacketOut>,
    /// The program must fault, with a message that contains this.
    pub fault: Option<String>,
    /// What maps must hold afterwards.
    #[serde(default, rename = "expect_map")]
    pub expect_maps: Vec<ExpectMap>,
}

/// Fields of `struct xdp_md` that a test may set.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Interface that the packet came in on.
    #[serde(default)]
    pub ingress_ifindex: u32,
    /// Receive queue.
    #[serde(default, alias = "rx_queue")]
    pub rx_queue_index: u32,
}

/// Content for a map.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapEntries {
    /// Map.
    pub name: String,
    /// Its entries.
    #[serde(default)]
    pub entries: Vec<serde_json::Value>,
}

/// Expected content of a map.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectMap {
    /// Map.
    pub name: String,
    /// Entries that must be there.
    #[serde(default)]
    pub entries: Vec<serde_json::Value>,
    /// Keys that must not be there.
    #[serde(default)]
    pub absent: Vec<serde_json::Value>,
    /// Number of entries in all.
    pub count: Option<u64>,
    /// Records that a ring buffer or perf event array must have delivered, all of them, as byte literals.
    pub records: Option<Vec<String>>,
}

/// A packet, in one of its forms.
#[derive(Debug, Clone)]
pub enum PacketSource {
    /// The bytes.
    Bytes(Vec<u8>),
    /// In words.
    Described(Box<Description>),
    /// Packet of a capture, the first is 0.
    Capture {
        /// Capture file, relative to the test file.
        pcap: PathBuf,
        /// Which packet.
        index: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaptureRef {
    pcap: PathBuf,
    #[serde(default)]
    index: u64,
}

impl<'de> Deserialize<'de> for PacketSource {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(text) => {
                let bytes = literal::parse(&text).unwrap_or_else(|| literal::hex(&text));
                bytes.map(PacketSource::Bytes).map_err(de::Error::custom)
            }
            table @ serde_json::Value::Object(_) if table.get("pcap").is_some() => {
                let CaptureRef { pcap, index } = CaptureRef::deserialize(table).map_err(de::Error::custom)?;
                Ok(PacketSource::Capture { pcap, index })
            }
            table @ serde_json::Value::Object(_) => {
                Description::deserialize(table).map(|d| PacketSource::Described(Box::new(d))).map_err(de::Error::custom)
            }
            other => Err(de::Error::custom(format!(
                "a packet is hex:…, base64:…, {{ pcap = \"FILE\", index = N }} or a description as {{ ipv4 = {{}}, udp = {{}} }}, not {other}"
            ))),
        }
    }
}

/// What must come out.
#[derive(Debug, Clone)]
pub enum PacketOut {
    /// What went in.
    Unchanged,
    /// These bytes.
    Packet(PacketSource),
}

impl<'de> Deserialize<'de> for PacketOut {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(d)?;
        if value == "unchanged" {
            return Ok(PacketOut::Unchanged);
        }
        PacketSource::deserialize(value).map(PacketOut::Packet).map_err(de::Error::custom)
    }
}

/// An expected verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// One of the five.
    Verdict(xway_abi::Verdict),
    /// Any other number.
    Invalid,
}

impl Expected {
    /// What a return value of the program means.
    pub fn of(retval: u32) -> Expected {
        xway_abi::Verdict::from_ret(retval.into()).map_or(Expected::Invalid, Expected::Verdict)
    }

    /// The name without `XDP_`.
    pub const fn name(self) -> &'static str {
        match self {
            Expected::Verdict(v) => v.name(),
            Expected::Invalid => "INVALID",
        }
    }
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let name = text.strip_prefix("XDP_").unwrap_or(&text).to_ascii_uppercase();
        if name == "INVALID" {
            return Ok(Expected::Invalid);
        }
        let found = xway_abi::Verdict::ALL.into_iter().find(|v| v.name() == name);
        found.map(Expected::Verdict).ok_or_else(|| {
            de::Error::custom(format!(
                "unknown verdict {text:?}; there are ABORTED, DROP, PASS, TX, REDIRECT and INVALID"
            ))
        })
    }
}

fn one() -> u32 {
    1
}

/// What whoever names the object itself may try.
const TOML: &str = "a test file, which names its object and is written in TOML (docs/testing.md)";

impl File {
    /// Reads and checks a test file.
    pub fn read(path: &Path) -> Result<File, Failure> {
        let place = path.display();
        let text = String::from_utf8(payload::file(path, FILE_MAX)?)
            .map_err(|_| Failure::input(format!("{place}: it is no text")).hint(TOML))?;
        File::parse(&text).map_err(|f| f.at(place))
    }

    /// Parses and checks the text of a test file.
    pub fn parse(text: &str) -> Result<File, Failure> {
        let file: File = toml::from_str(text)
            .map_err(|e| Failure::input(e.to_string().trim_end()).hint("docs/testing.md describes the format"))?;
        let problem = |what: String| Err(Failure::input(what).hint("docs/testing.md describes the format"));
        if file.tests.is_empty() {
            return problem("no [[test]] in this file".into());
        }
        if file.tests.len() > CASES_MAX {
            return problem(format!("{} tests; a file may have {CASES_MAX}", file.tests.len()));
        }
        if file.program.is_some() && file.section.is_some() {
            return problem("give `program` or `section`, not both".into());
        }
        let mut seen = BTreeMap::new();
        for (at, case) in file.tests.iter().enumerate() {
            let name = &case.name;
            if let Some(before) = seen.insert(name.as_str(), at) {
                return problem(format!("tests {} and {} are both named {name:?}", before + 1, at + 1));
            }
            if case.repeat == 0 || case.repeat > REPEAT_MAX {
                return problem(format!("test {name:?}: repeat = {}; 1 to {REPEAT_MAX} are possible", case.repeat));
            }
            let silent = case.verdict.is_none()
                && case.retval.is_none()
                && case.packet_out.is_none()
                && case.fault.is_none()
                && case.expect_maps.is_empty();
            if silent {
                return problem(format!(
                    "test {name:?} expects nothing: give verdict, retval, packet_out, fault or [[test.expect_map]]"
                ));
            }
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "object = 'x.o'\n";

    fn parse(rest: &str) -> Result<File, Failure> {
        File::parse(&format!("{HEAD}{rest}"))
    }

    #[test]
    fn a_full_file_is_understood() {
        let file = parse(
            r#"
            program = "count"
            [[map]]
            name = "blocked"
            entries = [{ key = "ip:192.0.2.7", value = 1 }]
            [[test]]
            name = "one"
            packet = { vlan = 7, ipv4 = { src = "192.0.2.7" }, udp = { dport = 53 }, payload = 10 }
            ctx = { ingress_ifindex = 3, rx_queue = 1 }
            verdict = "XDP_DROP"
            packet_out = "unchanged"
            [[test.expect_map]]
            name = "hits"
            entries = [{ key = 0, value = { packets = 1 } }]
            count = 1
            [[test]]
            name = "two"
            packet = "ff ff"
            repeat = 3
            verdict = "invalid"
            packet_out = "hex:ffff"
            [[test]]
            name = "three"
            packet = { pcap = "x.pcap", index = 4 }
            retval = 9
            "#,
        )
        .unwrap();
        assert_eq!(file.tests.len(), 3);
        assert_eq!(file.tests[0].verdict, Some(Expected::Verdict(xway_abi::Verdict::Drop)));
        assert_eq!((file.tests[0].ctx.ingress_ifindex, file.tests[0].ctx.rx_queue_index), (3, 1));
        assert!(matches!(&file.tests[1].packet, PacketSource::Bytes(b) if *b == [255, 255]));
        assert_eq!(file.tests[1].verdict, Some(Expected::Invalid));
        assert!(matches!(&file.tests[2].packet, PacketSource::Capture { index: 4, .. }));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("", "no [[test]]"),
            ("[[test]]\nname='a'\npacket='ff'\n", "expects nothing"),
            ("[[test]]\nname='a'\npacket='ff'\nverdict='PAS'\n", "unknown verdict \"PAS\""),
            ("[[test]]\nname='a'\npacket='f'\nverdict='PASS'\n", "hexadecimal"),
            ("[[test]]\nname='a'\npacket={ipv5={}}\nverdict='PASS'\n", "ipv5"),
            ("[[test]]\nname='a'\npacket=7\nverdict='PASS'\n", "a packet is"),
            ("[[test]]\nname='a'\npacket={pcap='x',indx=1}\nverdict='PASS'\n", "indx"),
            ("[[test]]\nname='a'\npacket='ff'\nverdict='PASS'\nrepeat=0\n", "repeat = 0"),
            ("[[test]]\nname='a'\npacket='ff'\nretval=1\n[[test]]\nname='a'\npacket='ff'\nretval=1\n", "both named"),
            ("verdct=1\n[[test]]\nname='a'\npacket='ff'\nretval=1\n", "verdct"),
            ("program='a'\nsection='b'\n[[test]]\nname='a'\npacket='ff'\nretval=1\n", "not both"),
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {failure}");
            assert_eq!(failure.exit, crate::failure::Exit::Input);
        }
    }
}

//! What the service says of itself on standard error: a line for each thing, as text or as JSON.
//!
//! What changes something is said with who asked for it, and so is a look at packets (a capture); other looks are not. Journald takes
//! either.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use xway_vm::Printer;

use crate::message::{Loss, PortFate};

/// Where they go.
static LOG: Printer = Printer::new();

/// How lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Nothing is said.
    Off,
    /// `event key=value …`
    #[default]
    Text,
    /// A JSON object: `time` (seconds since 1970), `level`, `event`, and the event's own members.
    Json,
}

/// How much it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// As it should be.
    Info,
    /// Something was refused or left out.
    Warning,
}

impl LogFormat {
    /// Says one thing. A standard error that nobody reads is no reason to stop: what finds no room there is lost, and the next line
    /// that does is behind one that says how many were.
    pub(crate) fn say(self, level: Level, event: &str, members: &[(&str, Value)]) {
        let now = SystemTime::now();
        let Some(line) = self.line(level, event, members, now) else { return };
        LOG.print(|lost| {
            let lost = (lost > 0).then(|| self.line(Level::Warning, "lost", &[("lines", lost.into())], now)).flatten();
            lost.unwrap_or_default() + &line
        });
    }

    /// Says what becomes of a port: as it was asked for, or not.
    pub(crate) fn fate(self, of: &PortFate) {
        let members = [
            ("port", json!(of.port)),
            ("what", json!("handover")),
            ("requested", json!(of.requested)),
            ("effective", json!(of.fate)),
            ("reason", json!(of.reason)),
        ];
        match of.goes_on() {
            true => self.say(Level::Info, "as asked", &members),
            false => self.say(Level::Warning, "not as asked", &members),
        }
    }

    /// Says how many packets were lost, of which port, and which counter tells of them.
    pub(crate) fn lost(self, of: &Loss) {
        let members = [("port", json!(of.port)), ("counter", json!(of.counter)), ("packets", json!(of.packets))];
        self.say(Level::Warning, "packets lost", &members);
    }

    fn line(self, level: Level, event: &str, members: &[(&str, Value)], now: SystemTime) -> Option<String> {
        let level = match level {
            Level::Info => "info",
            Level::Warning => "warning",
        };
        match self {
            LogFormat::Off => None,
            LogFormat::Text => {
                let mut line = if level == "info" { event.to_owned() } else { format!("{level}: {event}") };
                for (name, value) in members.iter().filter(|(_, v)| !v.is_null()) {
                    match value {
                        // What has spaces in it stays one thing.
                        Value::String(s) if !s.contains([' ', '"', '\n']) => line.push_str(&format!(" {name}={s}")),
                        other => line.push_str(&format!(" {name}={other}")),
                    }
                }
                Some(line + "\n")
            }
            LogFormat::Json => {
                let time = now.duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
                let mut object = Map::new();
                object.insert("time".into(), time.into());
                object.insert("level".into(), level.into());
                object.insert("event".into(), event.into());
                object.extend(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
                Some(Value::Object(object).to_string() + "\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_both_kinds() {
        let members = [("uid", json!(7)), ("why", json!("no \"port\"\nhere")), ("queue", Value::Null)];
        let at = UNIX_EPOCH + std::time::Duration::from_millis(1500);
        let line = |format: LogFormat| format.line(Level::Warning, "refused", &members, at);
        assert_eq!(line(LogFormat::Off), None);
        assert_eq!(line(LogFormat::Text).unwrap(), "warning: refused uid=7 why=\"no \\\"port\\\"\\nhere\"\n");
        let read: Value = serde_json::from_str(&line(LogFormat::Json).unwrap()).unwrap();
        assert_eq!((&read["time"], &read["level"], &read["queue"]), (&json!(1.5), &json!("warning"), &Value::Null));
        assert_eq!(line(LogFormat::Json).unwrap().matches('\n').count(), 1);
    }
}

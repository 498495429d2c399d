//! One program on many ports.

use xway_hook::{AttachRequest, Attached, Hook, Mode, PRIORITY, ProgId};

use crate::ToolError;

/// How a tool's program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct How {
    /// Where in Linux it runs.
    pub mode: Mode,
    /// Run together with other programs of the ports, at this place; `None`: alone.
    pub priority: Option<u32>,
}

/// Attaches a program to all of these ports, or to none.
pub(crate) fn everywhere(
    hook: &mut dyn Hook,
    ports: &[String],
    program: ProgId,
    how: How,
) -> Result<Vec<(String, Attached)>, ToolError> {
    let mut done: Vec<(String, Attached)> = Vec::new();
    for port in ports {
        let request = AttachRequest {
            mode: how.mode,
            priority: how.priority.unwrap_or(PRIORITY),
            chain: how.priority.is_some(),
            ..AttachRequest::new(port, program)
        };
        match hook.attach(&request) {
            Ok(attached) => done.push((port.clone(), attached)),
            Err(error) => {
                for (before, attached) in &done {
                    // The first refusal is the one to tell.
                    let _ = hook.detach(before, Some(attached.program));
                }
                return Err(error.into());
            }
        }
    }
    Ok(done)
}

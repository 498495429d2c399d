//! Single packets of capture files.

use std::path::Path;

use xway_port_pcap::{CaptureError, CaptureReader};

use crate::failure::Failure;

/// The packet with this index, from 0.
pub fn packet(path: &Path, index: u64) -> Result<Vec<u8>, Failure> {
    let mut reader = CaptureReader::open(path).map_err(|e| failure(&e))?;
    let mut at = 0;
    loop {
        let wanted = at == index;
        let found = reader.next_with(|r| wanted.then(|| r.data.to_vec())).map_err(|e| failure(&e))?;
        match found {
            None => return Err(Failure::input(format!("{}: no packet {index}; it has {at}", path.display()))),
            Some(Some(bytes)) => return Ok(bytes),
            Some(None) => at += 1,
        }
    }
}

/// What went wrong with a capture, with its exit code.
pub fn failure(error: &CaptureError) -> Failure {
    let io = match error {
        CaptureError::Open { source, .. } | CaptureError::Read { source, .. } | CaptureError::Write { source, .. } => {
            Some(source)
        }
        _ => None,
    };
    match io.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::PermissionDenied) => Failure::needs(error),
        _ => Failure::input(error),
    }
}

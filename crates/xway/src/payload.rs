//! Bytes that are given on the command line: a file, `hex:…`, `base64:…`.

use std::io::Read;

use xway_packet_text::literal;

use crate::failure::Failure;

/// Most bytes that an argument or the file it names may have.
const BYTES_MAX: u64 = 16 << 20;

/// Reads what `text` stands for: a byte literal, `-` for standard input, or else a file.
pub fn bytes(option: &str, text: &str) -> Result<Vec<u8>, Failure> {
    if let Some(("hex" | "base64", _)) = text.split_once(':') {
        let parsed = literal::parse(text).unwrap_or_else(|| Ok(Vec::new()));
        return parsed.map_err(|e| Failure::usage(format!("{option}: {e}")));
    }
    if text == "-" {
        return limited(option, "standard input", std::io::stdin().lock());
    }
    let file = std::fs::File::open(text).map_err(|e| {
        let failure = Failure::file(text, &e).at(option);
        match e.kind() {
            std::io::ErrorKind::NotFound => failure.hint("bytes can be given directly, as hex:0a0b… or base64:CgsM…"),
            _ => failure,
        }
    })?;
    limited(option, text, file)
}

/// Reads a whole regular file of at most `max` bytes. Nothing is waited for: who opens a pipe for reading waits for a writer.
pub fn file(path: &std::path::Path, max: u64) -> Result<Vec<u8>, Failure> {
    let place = path.display();
    xway_door::read(path, max).map_err(|e| match e {
        xway_door::FileError::Io(e) => Failure::file(&place, &e),
        other => Failure::input(format!("{place}: {other}")),
    })
}

fn limited(option: &str, place: &str, from: impl Read) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    from.take(BYTES_MAX + 1).read_to_end(&mut out).map_err(|e| Failure::file(place, &e).at(option))?;
    if out.len() as u64 > BYTES_MAX {
        return Err(Failure::input(format!("{option}: {place} is longer than {BYTES_MAX} bytes")));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn forms_and_mistakes() {
        assert_eq!(bytes("--data-in", "hex:0102").unwrap(), [1, 2]);
        assert_eq!(bytes("--data-in", "base64:AQI=").unwrap(), [1, 2]);
        assert_eq!(bytes("--data-in", "hex:012").unwrap_err().exit, Exit::Usage);
        let missing = bytes("--data-in", "/no/such/file").unwrap_err();
        assert_eq!(missing.exit, Exit::Input);
        assert!(missing.message.contains("--data-in: /no/such/file: no such file"), "{missing}");
        for (path, what) in [("/", "a directory"), ("/dev/zero", "a device")] {
            let refused = file(std::path::Path::new(path), 10).unwrap_err();
            assert_eq!(refused.exit, Exit::Input);
            assert_eq!(refused.message, format!("{path}: is {what}, and a file is wanted"));
        }
        assert!(bytes("--data-in", "/dev/zero").unwrap_err().message.contains("longer than"));
    }
}

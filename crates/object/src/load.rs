//! From bytes to an [`Object`].

use crate::{LoadOptions, Object, ObjectError};

impl Object {
    /// Reads an object file.
    pub fn parse(bytes: &[u8], _opts: &LoadOptions) -> Result<Object, ObjectError> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(ObjectError::NotElf { found: format!("{:02x?}", &bytes[..bytes.len().min(4)]) });
        }
        Err(ObjectError::WrongElf { what: "this build does not read programs yet".to_owned() })
    }
}

//! The library that was built with the tests.

use std::path::PathBuf;

/// The folder in which cargo has put the shared library: beside this test.
pub fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    [deps.clone(), deps.join("..")]
        .into_iter()
        .find(|dir| dir.join("libxway.so").exists())
        .expect("libxway.so is built with this test")
}

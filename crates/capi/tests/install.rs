//! What `make install` puts in its places is what C programs are built with.

mod common;

use std::path::Path;
use std::process::Command;

use common::library;
use xway_testkit::{Needs, clang, skip};

#[test]
fn an_installed_library_is_found_by_pkg_config() {
    const NAME: &str = "xway-capi::install::an_installed_library_is_found_by_pkg_config";
    if !Needs::of(NAME).clang().command("cc").command("pkg-config").met() {
        return;
    }
    let library = library();
    let places = [&library.join("xway"), &library.join("../xway")];
    let Some(command) = places.into_iter().find(|path| path.is_file()) else {
        return skip(NAME, "the command xway, built beside the library");
    };
    let dir = std::env::temp_dir().join(format!("xway-install-{}", std::process::id()));
    let (built, usr) = (dir.join("built"), dir.join("usr"));
    std::fs::create_dir_all(&built).unwrap();
    std::os::unix::fs::symlink(command, built.join("xway")).unwrap();
    std::os::unix::fs::symlink(library.join("libxway.so"), built.join("libxway.so")).unwrap();
    let root = clang::repository();
    let ran = |command: &mut Command| {
        let out = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(out.status.success(), "{command:?}\n{}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let install = root.join("scripts/install");
    let places = ran(Command::new(install).arg(&built).env("PREFIX", &usr).env_remove("DESTDIR"));
    assert!(places.lines().count() > 20, "{places}");
    assert!(places.lines().all(|place| Path::new(place).is_file()), "{places}");

    let example = root.join("crates/capi/examples/filter.c");
    let build = "cc -Wall -Werror \"$0\" $(pkg-config --cflags --libs xway) -o \"$1\"";
    let (program, object) = (dir.join("filter"), dir.join("count.o"));
    let find = ("PKG_CONFIG_PATH", usr.join("lib/pkgconfig"));
    ran(Command::new("sh").args(["-c", build]).arg(&example).arg(&program).env(find.0, &find.1));
    let source = root.join("bpf/samples/count.bpf.c");
    std::fs::write(&object, clang::compile_file(&source, &[]).unwrap()).unwrap();
    let out = ran(Command::new(&program).arg(&object).env("LD_LIBRARY_PATH", usr.join("lib")));
    assert!(out.contains("pass 100"), "{out}");
    let version = ran(Command::new("pkg-config").args(["--modversion", "xway"]).env(find.0, &find.1));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    std::fs::remove_dir_all(&dir).unwrap();
}

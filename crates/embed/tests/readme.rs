//! The README shows the examples as they are compiled.

#[test]
fn examples_stand_in_the_readme() {
    let root = xway_testkit::clang::repository();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for name in ["buffers", "engine"] {
        let path = root.join(format!("crates/embed/examples/{name}.rs"));
        let text = std::fs::read_to_string(&path).unwrap();
        let (_, code) = text.split_once("\n\n").expect("a heading, then the code");
        let block = format!("```rust\n{}\n```\n", code.trim_end());
        assert!(readme.contains(&block), "README.md does not show {} as it is:\n{block}", path.display());
    }
}

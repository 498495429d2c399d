//! Hints help: where a hint names a check, the check is written into the program as the hint says, and the program is accepted.

use xway_object::{LoadOptions, Object};
use xway_testkit::{Needs, clang};
use xway_verifier::{Config, Diagnostic, MapsView, verify};

/// The first error of the first program, `None` when it is accepted.
fn refusal(text: &str) -> Option<Diagnostic> {
    let include = format!("-I{}", clang::repository().join("bpf/verifier-cases/refused").display());
    let bytes = clang::compile_text("verifier_hints", text, &[&include]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let object = Object::parse(&bytes, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&object.programs[0], &MapsView::from(&object), &Config::default()).err()?.errors.into_iter().next()
}

/// The statement that a hint names, and the line before which it belongs; `None` when the hint names none.
fn check(error: &Diagnostic) -> Option<(String, usize)> {
    let hint = error.hint.as_deref()?;
    let parts: Vec<&str> = hint.split('`').collect();
    // Every second part stood in backquotes.
    let (before, code) = parts.chunks(2).filter_map(|p| Some((p[0], *p.get(1)?))).find(|(before, code)| {
        let condition = code.contains("end") && before.trim_end().ends_with("check");
        code.starts_with("if (") || (condition && !code.contains('…'))
    })?;
    let statement = if code.starts_with("if (") { code.to_owned() } else { format!("if ({code}) return XDP_PASS;") };
    let line = before.rfind("before line ").and_then(|i| {
        let digits: String = before[i + 12..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    Some((statement, line.unwrap_or(error.line as usize)))
}

/// The text with a statement before a line, counted from 1.
fn mended(text: &str, statement: &str, line: usize) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    // A program that compares nothing may have no name for the end.
    let end = "void *data_end = (void *)(long)ctx->data_end;";
    lines.insert(line - 1, statement);
    if statement.contains("data_end") && !text.contains("*data_end") {
        lines.insert(line - 1, end);
    }
    lines.join("\n") + "\n"
}

/// Applies hints, one after the other where each names a check, until the program is accepted.
fn apply(name: &str, text: &str) -> Option<String> {
    let mut text = text.to_owned();
    let mut said = Vec::new();
    for _ in 0..3 {
        let Some(error) = refusal(&text) else { return (!said.is_empty()).then(|| said.join(" ")) };
        let (statement, line) = check(&error)?;
        said.push(format!("line {line}: {statement}"));
        text = mended(&text, &statement, line);
    }
    panic!("{name}: these do not help: {}\n{:?}\n{text}", said.join("\n"), refusal(&text).map(|e| (e.message, e.hint)));
}

/// Programs of one line each that are refused, and whose hint must help: the packet is `data` to `data_end`.
const PROGRAMS: [(&str, &str); 12] = [
    ("an index behind too short a check", "if (data + 64 > data_end) return XDP_PASS;\nreturn data[q & 127];"),
    ("an index that nothing checks", "return data[q & 31];"),
    ("a sum with a name", "__u8 *p = data + (q & 31);\nreturn *p;"),
    ("an element of four bytes", "__u32 *words = (void *)data;\nreturn words[q & 7];"),
    ("a field behind a variable header", "struct iphdr *ip = (void *)(data + (q & 60));\nreturn ip->ttl;"),
    ("a field of a fixed header", "struct iphdr *ip = (void *)(data + 14);\nreturn ip->saddr & 3;"),
    ("a pointer with a constant offset", "__u8 *p = data + 20;\nreturn p[7];"),
    ("an element of a value", "return value->bytes[q];"),
    ("a word of a value", "return value->words[q];"),
    ("a signed index into a value", "int i = q;\nreturn value->bytes[i];"),
    ("a value that may be null", "return other->bytes[1];"),
    ("a length", "char buf[32] = {};\n__u64 n = (__u64)q + 1;\nbpf_xdp_load_bytes(ctx, 0, buf, n);\nreturn buf[3];"),
];

/// Programs of several functions: in a called one the names are its parameters'.
const FUNCTIONS: [(&str, &str, &str); 3] = [
    (
        "the end as a parameter",
        "static __attribute__((noinline)) int port(struct udphdr *udp, void *end) {\n\
         if ((void *)udp == end) return 0;\n\
         return udp->dest;\n}\n\
         SEC(\"xdp\") int hinted(struct xdp_md *ctx) {\n\
         return port((void *)(long)ctx->data + 34, (void *)(long)ctx->data_end) & 3;\n}\n",
        "(void *)(udp + 1) > end",
    ),
    (
        "memory of a global function",
        "struct flow { __u32 packets; };\n\
         __attribute__((noinline)) int count(struct flow *flow) {\n\
         return flow->packets++;\n}\n\
         SEC(\"xdp\") int hinted(struct xdp_md *ctx) {\n\
         struct flow f = {};\n\
         return count(&f) & 3;\n}\n",
        "!flow",
    ),
    (
        "an index of a global function",
        "__u32 table[16];\n\
         __attribute__((noinline)) int slot(__u32 queue) {\n\
         return table[queue];\n}\n\
         SEC(\"xdp\") int hinted(struct xdp_md *ctx) {\n\
         return slot(ctx->rx_queue_index) & 3;\n}\n",
        "queue >= 16",
    ),
];

fn program(body: &str) -> String {
    format!(
        "#include \"refused.h\"\n\
         struct value {{ __u8 bytes[64]; __u32 words[16]; }};\n\
         struct {{ __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, __u32); __type(value, struct value); }} \
         values SEC(\".maps\");\n\
         SEC(\"xdp\") int hinted(struct xdp_md *ctx) {{\n\
         __u8 *data = (void *)(long)ctx->data;\n\
         void *data_end = (void *)(long)ctx->data_end;\n\
         __u32 q = ctx->rx_queue_index, key = 1;\n\
         struct value *value = bpf_map_lookup_elem(&values, &key);\n\
         if (!value) return XDP_PASS;\n\
         struct value *other = bpf_map_lookup_elem(&values, &q);\n\
         {body}\n}}\n"
    )
}

#[test]
fn what_a_hint_says_mends_the_program() {
    if !Needs::of("testkit::verifier_hints::what_a_hint_says_mends_the_program").clang().met() {
        return;
    }
    let mut wrong = Vec::new();
    for (name, body) in PROGRAMS {
        match apply(name, &program(body)) {
            Some(said) => println!("{name}: {said}"),
            None => wrong.push(format!("{name}: {:?}", refusal(&program(body)).map(|e| (e.message, e.hint)))),
        }
    }
    assert!(wrong.is_empty(), "no check is named:\n{}", wrong.join("\n"));
}

#[test]
fn parameters_have_the_names_of_the_function_that_is_refused() {
    if !Needs::of("testkit::verifier_hints::parameters_have_the_names_of_the_function_that_is_refused").clang().met() {
        return;
    }
    for (name, text, condition) in FUNCTIONS {
        let text = format!("#include \"refused.h\"\n{text}");
        let said =
            apply(name, &text).unwrap_or_else(|| panic!("{name}: {:?}", refusal(&text).map(|e| (e.message, e.hint))));
        assert!(said.contains(&format!("if ({condition}) return")), "{name}: {said}");
    }
}

/// Faults that no single check mends, and words that the hint must hold.
const WORDS: [(&str, &str); 9] = [
    ("__u8 *p = data; while (p <= (__u8 *)data_end) { q += *p == 7; p++; }\nreturn q;", "a byte more: check `(void *)"),
    (
        "if (data + 34 > data_end) return 1;\nint sum = 0;\nfor (int i = 0; i < 64; i++) sum += data[i];\nreturn sum & 1;",
        "(void *)data + ",
    ),
    ("if (data_end - (void *)data < 14) return 1;\nreturn data[17];", "is known to have 14 bytes"),
    ("ctx->rx_queue_index = 3;\nreturn 2;", "is for reading"),
    ("__u32 cut = ctx->data;\nreturn *(__u8 *)(long)(cut + 14u);", "`void *data = (void *)(long)ctx->data`"),
    ("return bpf_skb_load_bytes(ctx, 0, &key, 4);", "use bpf_xdp_load_bytes"),
    ("char buf[32];\nif (bpf_xdp_load_bytes(ctx, 0, buf, q)) return 1;\nreturn buf[3];", " < 1 || "),
    (
        "struct iphdr *ip = (void *)data; if ((void *)(ip + 1) > data_end) return 1;\n\
         return bpf_csum_diff(0, 0, (void *)ip, ip->ihl * 4, 0) & 1;",
        "+ ip->ihl * 4 > data_end`",
    ),
    ("if (data == data_end) return 1;\nreturn *data;", "for equality, which proves no bytes"),
];

#[test]
fn hints_say_what_is_wrong_where_no_check_is_missing() {
    if !Needs::of("testkit::verifier_hints::hints_say_what_is_wrong_where_no_check_is_missing").clang().met() {
        return;
    }
    for (body, words) in WORDS {
        let error = refusal(&program(body)).unwrap_or_else(|| panic!("{body}: accepted"));
        let hint = error.hint.unwrap_or_default();
        assert!(hint.contains(words), "{body}\n{}\n{hint}", error.message);
    }
}

#[test]
fn the_hints_of_the_common_refusals_help() {
    if !Needs::of("testkit::verifier_hints::the_hints_of_the_common_refusals_help").clang().met() {
        return;
    }
    let dir = clang::repository().join("bpf/verifier-cases/refused");
    let mut helped = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".bpf.c") && apply(&name, &std::fs::read_to_string(&path).unwrap()).is_some() {
            helped.push(name[..2].to_owned());
        }
    }
    helped.sort();
    // The others ask for more than a check: another order, another type, a release.
    assert_eq!(helped, ["01", "02", "03", "04", "05", "07", "08", "09", "11", "12"]);
}

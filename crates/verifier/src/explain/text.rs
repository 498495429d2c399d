//! What a C statement names: variables that it assigns, pointers through which it reaches memory, arguments, conditions. All of it is
//! guessed from one line of text, which is what an object has of its source.

/// The part of a line that stands at a column (from 1; 0: unknown): one statement, one declaration of a list, or the head of an
/// `if` or a loop. Empty when the line has several parts and the column tells none.
pub(crate) fn statement(text: &str, col: u32) -> &str {
    let bytes = text.as_bytes();
    let (mut depth, mut quoted, mut start) = (0i32, false, 0);
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let head = |from: usize, to: usize| {
        let part = text[from..to].trim_start();
        let word: String = part.strip_prefix("else ").unwrap_or(part).chars().take_while(|c| is_word(*c)).collect();
        matches!(word.as_str(), "if" | "while" | "for" | "switch")
    };
    for (i, c) in text.char_indices() {
        let escaped = i > 0 && bytes[i - 1] == b'\\';
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        if quoted {
            continue;
        }
        let mut ends = false;
        match c {
            '(' | '[' => depth += 1,
            ']' => depth -= 1,
            ')' => {
                depth -= 1;
                ends = depth == 0 && head(start, i);
            }
            ';' | '{' | '}' | ',' => ends = depth == 0,
            _ => {}
        }
        if ends {
            parts.push((start, i + 1));
            start = i + 1;
        }
    }
    parts.push((start, text.len()));
    parts.retain(|(a, b)| text[*a..*b].chars().any(is_word));
    match (parts.as_slice(), (col as usize).checked_sub(1)) {
        ([(a, b)], _) => &text[*a..*b],
        (_, Some(at)) => parts.iter().find(|(a, b)| (*a..*b).contains(&at)).map_or("", |(a, b)| &text[*a..*b]),
        _ => "",
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The last identifier of a text that ends with one (an index in brackets is skipped).
fn trailing(text: &str) -> Option<String> {
    let mut text = text.trim_end();
    if text.ends_with(']') {
        text = text[..text.rfind('[')?].trim_end();
    }
    let start = text.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
    let word = &text[start..];
    let good = word.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&word);
    good.then(|| word.to_owned())
}

const KEYWORDS: &[&str] = &[
    "if", "for", "while", "return", "int", "char", "void", "long", "unsigned", "sizeof", "struct", "ctx", "xdp", "md",
];

/// Both sides of an assignment that is a statement of its own.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    let i = text.match_indices('=').map(|(i, _)| i).find(|i| {
        let around = (text.as_bytes().get(i.wrapping_sub(1)), text.as_bytes().get(i + 1));
        !matches!(around.0, Some(b'=' | b'!' | b'<' | b'>')) && around.1 != Some(&b'=')
    })?;
    (!text.starts_with("if") && !text.starts_with("for")).then(|| (&text[..i], &text[i + 1..]))
}

/// The variable that a line assigns: `eth` in `struct ethhdr *eth = data;`.
pub(crate) fn assigned(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut depth = 0i32;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            '=' if depth == 0 || text.starts_with("if") || text.starts_with("for") || text.starts_with("while") => {
                let before = i.checked_sub(1).map_or(b' ', |j| bytes[j]);
                let after = bytes.get(i + 1).copied().unwrap_or(b' ');
                if after == b'=' || matches!(before, b'=' | b'!' | b'<' | b'>') {
                    continue;
                }
                let end = if b"+-*/&|^%".contains(&before) { i - 1 } else { i };
                let left = &text[..end];
                // A member is no name of the value.
                let name = trailing(left)?;
                let lead = left.trim_end().strip_suffix(name.as_str()).unwrap_or("");
                return (!lead.ends_with('.') && !lead.ends_with("->")).then_some(name);
            }
            _ => {}
        }
    }
    None
}

/// The variable through which a line reaches memory: before `->`, before `[`, or behind `*`.
pub(crate) fn reached(text: &str) -> Option<String> {
    for (i, _) in text.match_indices("->") {
        if let Some(name) = trailing(&text[..i]) {
            return Some(name);
        }
    }
    for (i, _) in text.match_indices('[') {
        if let Some(name) = trailing(&text[..i]) {
            return Some(name);
        }
    }
    // `*p` where it cannot be a product or a declaration.
    for (i, _) in text.match_indices('*') {
        let before = text[..i].trim_end().chars().next_back();
        let before = before.filter(|_| !text[..i].trim_end().ends_with("return"));
        // `*(type *)p`: the star of the cast stands right before the name.
        let rest = text[i + 1..].strip_prefix(')');
        let before = if rest.is_some() { None } else { before };
        let name: String = rest.unwrap_or(&text[i + 1..]).chars().take_while(|c| is_word(*c)).collect();
        let first = name.chars().next();
        if matches!(before, None | Some('=' | '(' | ',' | '+' | '!' | '<' | '>' | ')'))
            && first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        {
            return Some(name);
        }
    }
    None
}

/// Elements of arrays that a text names, with where they begin: `data[i & 31]`, `eth->h_dest[i]`.
pub(crate) fn elements(text: &str) -> Vec<(usize, &str)> {
    let word = |c: char| is_word(c) || matches!(c, '.' | '-' | '>');
    let mut out = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find('[').map(|i| from + i) {
        let start = text[from..open].rfind(|c| !word(c)).map_or(from, |i| from + i + 1);
        let mut depth = 0;
        let len = text[open..].find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            depth == 0
        });
        let Some(len) = len else { break };
        if text[start..open].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            out.push((start, &text[start..=open + len]));
        }
        from = open + len + 1;
    }
    out
}

/// Whether the statement declares this variable as a pointer (`__u8 *q = …`) or as a number (`for (int i = …`); `None` when
/// it declares nothing.
pub(crate) fn declares_pointer(text: &str, name: &str) -> Option<bool> {
    let at = text.match_indices(name).map(|(i, _)| i).find(|i| {
        let bytes = text.as_bytes();
        let alone = |b: Option<&u8>| b.is_none_or(|b| !is_word(char::from(*b)));
        alone(i.checked_sub(1).and_then(|i| bytes.get(i))) && alone(bytes.get(i + name.len()))
    })?;
    let before = text[..at].trim_end();
    let stars = before.trim_end_matches('*').trim_end();
    let start = stars.rfind(|c| !is_word(c)).map_or(0, |i| i + 1);
    let ty = &stars[start..];
    let is_type = ty.ends_with("_t")
        || matches!(
            ty.trim_start_matches("__"),
            "u8" | "u16" | "u32" | "u64" | "s8" | "s16" | "s32" | "s64" | "be16" | "be32"
        )
        || matches!(ty, "int" | "long" | "short" | "char" | "unsigned" | "void")
        || stars[..start].trim_end().ends_with("struct");
    is_type.then_some(before.len() != before.trim_end_matches('*').len())
}

/// The n-th argument (from 1) of a function that a text calls.
pub(crate) fn argument(text: &str, function: &str, n: usize) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{function}("))?;
    let (mut depth, mut start, mut at) = (0i32, 0, 1);
    for (i, c) in rest.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ',' if depth == 0 => {
                if at == n {
                    return Some(rest[start..i].trim().to_owned());
                }
                (start, at) = (i + 1, at + 1);
            }
            ')' if depth == 0 => return (at == n).then(|| rest[start..i].trim().to_owned()),
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// What stands between the parentheses of an `if` or a loop, when all of it is on the line.
pub(crate) fn condition(text: &str) -> Option<String> {
    let start = text.find("if (").map(|i| i + 4).or_else(|| text.find("while (").map(|i| i + 7))?;
    let mut depth = 1;
    for (i, c) in text[start..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(text[start..start + i].to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_statements_on_a_line_the_column_tells_which() {
        let at = |text: &str, what: &str| {
            let col = text.find(what).unwrap() as u32 + 1;
            statement(text, col).trim().to_owned()
        };
        let line = "\tip = data + 14; if (ip + 1 > end) return 1; tcp = ip + ip->ihl;";
        assert_eq!(at(line, "data"), "ip = data + 14;");
        assert_eq!(at(line, "> end"), "if (ip + 1 > end)");
        assert_eq!(at(line, "return"), "return 1;");
        assert_eq!(at(line, "ip->"), "tcp = ip + ip->ihl;");
        assert_eq!(statement(line, 0), "", "nobody knows");
        // One statement needs no column; a list of declarations has several parts, arguments have not.
        assert_eq!(statement("  x = f(a, b);", 0).trim(), "x = f(a, b);");
        let list = "__u32 a = f(x, y), *b = p;";
        assert_eq!((at(list, "f(").as_str(), at(list, "= p").as_str()), ("__u32 a = f(x, y),", "*b = p;"));
        assert_eq!(assigned(at(list, "= p").as_str()), Some("b".into()));
        let turns = "for (i = 0; i < n; i++) sum += v[i];";
        assert_eq!(at(turns, "sum"), "sum += v[i];");
        assert_eq!(assigned(&at(turns, "v[i]")), Some("sum".into()));
        assert_eq!(at("if (!(v = get(\"a;b\"))) { n++; return 0; }", "get"), "if (!(v = get(\"a;b\")))");
        assert_eq!(at("if (a) { b = 1; c = d; }", "d;"), "c = d;");
    }

    #[test]
    fn elements_are_found_in_lines() {
        let all = |text| elements(text).into_iter().map(|(_, t)| t).collect::<Vec<_>>();
        assert_eq!(all("return data[i & 31];"), ["data[i & 31]"]);
        assert_eq!(all("x = f(eth->h_dest[i]) + b[2];"), ["eth->h_dest[i]", "b[2]"]);
        assert_eq!(all("v = t[u[3]];"), ["t[u[3]]"]);
        assert_eq!(elements("return c[0] + c[1] + c[2];")[2], (21, "c[2]"));
        assert!(all("return *p;").is_empty() && all("(a)[3]").is_empty() && all("a[").is_empty());
    }

    #[test]
    fn declarations_say_what_is_a_pointer() {
        assert_eq!(declares_pointer("__u8 *q = data + *neg;", "q"), Some(true));
        assert_eq!(declares_pointer("struct iphdr *ip = data;", "ip"), Some(true));
        assert_eq!(declares_pointer("for (int i = 0; i < n; i++)", "i"), Some(false));
        assert_eq!(declares_pointer("uint32_t n = ip->ihl;", "n"), Some(false));
        assert_eq!(declares_pointer("q = p + n;", "q"), None);
        assert_eq!(declares_pointer("x = n * q;", "q"), None);
    }

    #[test]
    fn names_are_found_in_lines() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(assigned("struct ethhdr *eth = data;"), some("eth"));
        assert_eq!(assigned("void *data_end = (void *)(long)ctx->data_end;"), some("data_end"));
        assert_eq!(assigned("off += ip->ihl * 4;"), some("off"));
        assert_eq!(assigned("if (a == b && c <= d)"), None);
        assert_eq!(assigned("if (!(v = bpf_map_lookup_elem(&m, &k)))"), some("v"));
        assert_eq!(assigned("v->count = 1;"), None);
        assert_eq!(assigned("key[3] = 1;"), some("key"));
        assert_eq!(reached("if (ip->protocol != 6)"), some("ip"));
        assert_eq!(reached("sum += table[i & 7];"), some("table"));
        assert_eq!(reached("return *(__u8 *)p;"), some("p"));
        assert_eq!(reached("return a * b;"), None);
        assert_eq!(condition("if ((void *)(eth + 1) > data_end) return 1;"), some("(void *)(eth + 1) > data_end"));
        assert_eq!(condition("return 1;"), None);
        let call = "if (bpf_xdp_load_bytes(ctx, f(a, b[1, 2]), buf, len) < 0) return 1;";
        let of = |n| argument(call, "bpf_xdp_load_bytes", n);
        assert_eq!([of(1), of(2), of(3), of(4)], [some("ctx"), some("f(a, b[1, 2])"), some("buf"), some("len")]);
        assert_eq!((of(5), argument(call, "bpf_redirect", 1)), (None, None));
    }
}

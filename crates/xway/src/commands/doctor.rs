//! `xway doctor`.

use serde_json::{Value, json};
use xway_hook::doctor::{Finding, Grade, Interface, Machine, interface, machine};

use super::kernel::{failure, refused};
use crate::args_machine::Doctor;
use crate::failure::Failure;
use crate::print;

/// Findings about one thing.
struct Chapter {
    title: String,
    findings: Vec<Finding>,
}

pub fn run(args: &Doctor, as_json: bool) -> Result<(), Failure> {
    let mut chapters = vec![Chapter { title: "machine".into(), findings: machine(&Machine::here()) }];
    let names = match args.interfaces.is_empty() {
        false => args.interfaces.clone(),
        true => {
            let all = xway_kernel::devices().map_err(refused)?;
            all.into_iter().map(|device| device.name).filter(|name| name != "lo").collect()
        }
    };
    for name in names {
        xway_hook::kernel::device(&name).map_err(failure)?;
        let found = Interface::here(&name).map_err(refused)?;
        chapters.push(Chapter { title: name, findings: interface(&found) });
    }
    let worst = chapters.iter().flat_map(|c| &c.findings).map(|f| f.grade).max().unwrap_or(Grade::Good);
    if as_json {
        print::json(&print::document("doctor", json!({ "result": worst.name(), "chapters": all_json(&chapters) })));
    } else {
        print::text(&text(&chapters));
    }
    if worst == Grade::Bad { Err(Failure::silent()) } else { Ok(()) }
}

fn all_json(chapters: &[Chapter]) -> Vec<Value> {
    let finding = |f: &Finding| json!({ "topic": f.topic, "grade": f.grade.name(), "found": f.found, "mend": f.mend });
    let chapter = |c: &Chapter| {
        let findings: Vec<Value> = c.findings.iter().map(finding).collect();
        json!({ "about": c.title, "findings": findings })
    };
    chapters.iter().map(chapter).collect()
}

fn text(chapters: &[Chapter]) -> String {
    let mut out = String::new();
    for chapter in chapters {
        out.push_str(&format!("{}\n", chapter.title));
        for finding in &chapter.findings {
            out.push_str(&format!("  {:<8} {:<14} {}\n", finding.grade.name(), finding.topic, finding.found));
            if let Some(mend) = &finding.mend {
                out.push_str(&format!("  {:<8} {:<14} -> {mend}\n", "", ""));
            }
        }
    }
    let count = |grade| chapters.iter().flat_map(|c| &c.findings).filter(|f| f.grade == grade).count();
    out.push_str(&format!("{} problems, {} notes\n", count(Grade::Bad), count(Grade::Note)));
    out
}

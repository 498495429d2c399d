//! `xway bench prog`: programs measured, ours and the kernel's in turns.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use xway_abi::Errno;
use xway_bench::flows::Pattern;
use xway_bench::kernel::KernelSideError;
use xway_bench::user::UserSideError;
use xway_bench::{Case, Figures, MeasureError, Options, Row, Stat, Way, measure, suite, unchanged};
use xway_kernel::KernelError;
use xway_object::Object;
use xway_vm::InstanceError;

use crate::args::Engine;
use crate::args_bench::{BenchProg, FlowPattern, Suite, Versus};
use crate::commands::{bench_counters, bench_fill, bench_kernel, bench_verify};
use crate::failure::Failure;
use crate::load;
use crate::output::Whole;
use crate::print::{self, grouped};

/// Runs the command.
pub fn run(args: &BenchProg, as_json: bool) -> Result<(), Failure> {
    let (cases, unread) = chosen(args)?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let options = Options {
        kernel: args.vs == Some(Versus::Kernel),
        rounds: args.rounds,
        ways: ways(args),
        cpu: args.cpu.unwrap_or(cpus - 1),
        counters: args.counters,
        flows: args.flows,
        table: whole_table(args),
        pattern: args.pattern.map(pattern),
    };
    if args.list {
        let cases: Vec<Case> = cases.iter().map(|(case, _)| options.adapted(case)).collect();
        list(&cases, args.markdown, as_json);
        return unread.into_iter().next().map_or(Ok(()), |(_, failure)| Err(failure));
    }
    bench_kernel::wanted(args.vs)?;
    // Before minutes are spent on what could not be written.
    let raster = args.plot.as_deref().map(is_raster).transpose()?;
    let plot = args.plot.as_deref().map(Whole::create).transpose().map_err(|e| e.at("--plot"))?;
    let mut rows = Vec::new();
    let mut left_out: Vec<(String, String)> =
        unread.iter().map(|(name, f)| (name.clone(), bench_verify::reason(name, f).to_owned())).collect();
    let mut why = unread.into_iter().next().map(|(_, failure)| failure);
    let width = width(&cases, &options.ways);
    let text = !as_json && !args.markdown;
    if text {
        print::text(&heading(&options, width));
        left_out.iter().for_each(|(name, why)| print::text(&format!("  not read: {name}: {why}\n")));
    }
    for (case, object) in &cases {
        match measure(case, object.as_deref(), &options) {
            Ok(row) => {
                if text {
                    print::text(&line(&row, width, &options));
                    print::text(&bench_fill::about(&row, object.as_deref(), &options));
                }
                rows.push(row);
            }
            // One program that cannot be measured does not spoil the others; a machine that cannot measure does.
            Err(error) if cases.len() > 1 && !hopeless(&error) => {
                if text {
                    print::text(&format!("  {:<width$}  not measured: {error}\n", case.name));
                }
                left_out.push((case.name.clone(), error.to_string()));
                why.get_or_insert_with(|| failure(&case.name, &error));
            }
            Err(error) => return Err(failure(&case.name, &error)),
        }
    }
    if let (true, Some(why)) = (rows.is_empty(), &why) {
        return Err(why.clone());
    }
    if let (Some(raster), Some(file)) = (raster, plot) {
        let picture = xway_bench::plot::bars(&rows);
        let bytes = if raster { picture.png().map_err(Failure::no)? } else { picture.svg().into_bytes() };
        file.fill(&bytes)?;
    }
    let empty = bench_fill::empty(cases.iter().filter_map(|(case, object)| Some((case, object.as_deref()?))));
    if as_json {
        print::json(&print::document("bench prog", document(args, &options, &rows, &left_out)));
    } else if args.markdown {
        print::text(&markdown(&options, &rows));
        print::text(&bench_fill::filled(&rows));
        print::text(&bench_fill::changed(&rows, &options));
        print::text(&interpreted(&rows));
        print::text(&empty);
        print::text(&not_compared(&rows));
        print::text(&missing(&left_out));
        print::text(&bench_counters::markdown(&rows));
    } else {
        print::text(&compile_time(&rows));
        print::text(LEGEND);
        print::text(if options.ways.len() > 1 { WAYS_LEGEND } else { "" });
        print::text(&empty);
        print::text(&same(&rows));
        print::text(&bench_counters::text(&rows));
    }
    let differ = rows.iter().filter(|r| !r.checked.differences.is_empty()).count();
    if differ > 0 {
        let what = format!("in {differ} cases the two sides do not compute the same: their figures mean nothing");
        return Err(Failure::no(what).said());
    }
    // What was named and has no figure is not done, and the code is that of the first of them.
    why.map_or(Ok(()), |why| Err(why.said()))
}

/// Of the first column.
fn width(cases: &[Chosen], ways: &[Way]) -> usize {
    let cases = cases.iter().map(|(case, _)| case.name.chars().count());
    // Two places further in.
    let ways = ways.iter().skip(1).map(|way| label(way).chars().count() + 2);
    cases.chain(ways).max().unwrap_or(0).max(4)
}

/// A way in tables.
fn label(way: &Way) -> String {
    // An empty program that is called for each packet pays the call too, which is what the loop over a burst saves: nets would hide it.
    let called = if *way == Way::Single { ", calls included" } else { "" };
    way.name() + called
}

/// What the program costs in one of several ways. What a way makes of the empty program is its own affair, and part of what it costs:
/// all are less the empty program of the first one.
fn net(row: &Row, ways: &[Way], way: usize) -> f64 {
    let floor = row.ours[0].empty.median;
    let net = |f: &Figures| (f.program.median - floor).max(0.0);
    match ways.get(way) {
        Some(Way::Single) => row.ours[way].run(),
        _ if way == 0 => row.as_it_is(net),
        _ => net(&row.ours[way]),
    }
}

/// Whether a picture of this name is PNG, and not SVG.
fn is_raster(path: &Path) -> Result<bool, Failure> {
    let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    match end.as_deref() {
        Some("png") => Ok(true),
        Some("svg") => Ok(false),
        _ => Err(Failure::usage(format!("--plot: {} is no name of a picture that can be made", path.display()))
            .hint("a name that ends in .svg or .png")),
    }
}

/// What compiling the programs took, together.
fn compile_time(rows: &[Row]) -> String {
    let all = || rows.iter().filter_map(|r| Some((r.insns, r.compiled?.time)));
    let (insns, time): (usize, std::time::Duration) = (all().map(|c| c.0).sum(), all().map(|c| c.1).sum());
    if insns == 0 {
        return String::new();
    }
    let ms = time.as_secs_f64() * 1e3;
    let each = ms / insns as f64 * 1e3;
    let programs = all().count();
    format!(
        "\ncompiled: {programs} programs, {insns} instructions in {ms:.1} ms: {each:.1} ms for 1,000 instructions\n"
    )
}

const LEGEND: &str = "
ns and Mpps: the whole loop, making the packet included. run: without the making of packets. net: less an empty program too.
x: the kernel's net over ours; - where ours cannot be told from nothing. ±: half the distance of the quartiles, per cent.
";

const WAYS_LEGEND: &str = "\
net of several ways: less the empty program of the first; packet by packet with what its calls cost, which an empty
program has too.
";

/// What figures mean whose code is that of the first way, and which ways have no others; nothing where there is one way.
fn same(rows: &[Row]) -> String {
    if rows.iter().all(|row| row.ours.len() < 2) {
        return String::new();
    }
    let first = &rows[0].ours[0].side;
    let mut text = format!(
        "\n`=`: the same machine code as `{first}`, so that what was measured differs by what the machine did."
    );
    let unchanged: Vec<String> = unchanged(rows).into_iter().map(|way| format!("`{way}`")).collect();
    if !unchanged.is_empty() {
        text += &format!(" The code of no case here is changed by {}.", unchanged.join(", "));
    }
    text + "\n"
}

/// A case, and its object where a file was named.
type Chosen = (Case, Option<Arc<Object>>);

/// Objects that could not be read beside others that could, and why.
type Unread = Vec<(String, Failure)>;

/// The cases that the arguments name.
fn chosen(args: &BenchProg) -> Result<(Vec<Chosen>, Unread), Failure> {
    let (mut cases, unread) = if args.objects.is_empty() { (built_in(args)?, Vec::new()) } else { of_objects(args)? };
    if !args.filter.is_empty() {
        cases.retain(|(case, _)| args.filter.iter().any(|wanted| case.name.contains(wanted.as_str())));
    }
    if let (true, Some((_, failure))) = (cases.is_empty(), unread.first()) {
        return Err(failure.clone());
    }
    if cases.is_empty() {
        let list = match (args.objects.is_empty(), args.suite) {
            (true, Suite::Helpers) => "xway bench prog --suite helpers --list",
            _ => "xway bench prog --list; those of helpers: --suite helpers",
        };
        return Err(Failure::usage("no case of this name").hint(list));
    }
    if whole_table(args).is_some() && cases.iter().all(|(case, _)| case.table.is_none()) {
        return Err(Failure::usage("--table: no chosen case has a table").hint("xway bench prog --list names tables"));
    }
    Ok((cases, unread))
}

/// The programs of a user's objects, whose maps are as large and as full as the user says.
fn of_objects(args: &BenchProg) -> Result<(Vec<Chosen>, Unread), Failure> {
    let fills = bench_fill::read(&args.fill)?;
    let (mut objects, mut unread): (Vec<(PathBuf, Object)>, Unread) = (Vec::new(), Vec::new());
    for path in &args.objects {
        match load::read(path, None) {
            Ok(object) => objects.push((path.clone(), object)),
            Err(failure) => unread.push((path.display().to_string(), failure)),
        }
    }
    if objects.is_empty() {
        return unread.into_iter().next().map_or(Ok(Default::default()), |(_, failure)| Err(failure));
    }
    let have: Vec<(&Path, &Object)> = objects.iter().map(|(path, object)| (path.as_path(), object)).collect();
    bench_fill::known(&fills, &args.table, &have)?;
    let mut cases: Vec<Chosen> = Vec::new();
    for (path, object) in &mut objects {
        let sizes = bench_fill::sizes(path, object, &args.table)?;
        let given = bench_fill::given(path, object, &fills, &sizes)?;
        let table = whole_table(args).map(|_| bench_fill::only_table(path, object)).transpose()?;
        let object = Arc::new(object.clone());
        for program in object.programs.iter().filter(|p| p.kind.is_xdp()) {
            let (table, sizes, given) = (table.clone(), sizes.clone(), given.clone());
            let case = Case { table, sizes, given, ..case_of(path, &program.name) };
            cases.push((case, Some(object.clone())));
        }
    }
    Ok((cases, unread))
}

/// A suite.
fn built_in(args: &BenchProg) -> Result<Vec<Chosen>, Failure> {
    if let Some(why) = suite::missing() {
        return Err(Failure::needs(format!("there are no built-in programs: {why}"))
            .hint("install clang and libbpf-dev and build again, or name object files"));
    }
    if let Some(fill) = args.fill.first() {
        let why = format!("--fill {fill}: the built-in cases fill their maps by themselves");
        return Err(Failure::usage(why).hint("xway bench prog OBJ --fill NAME=FILE.json"));
    }
    if let Some(name) = args.table.iter().find_map(|table| table.map.as_ref()) {
        let why = format!("--table {name}=N: names are for objects of one's own");
        return Err(Failure::usage(why).hint("--table N is the size of the table that the chosen cases have"));
    }
    let cases = match args.suite {
        Suite::Programs => suite::cases(),
        Suite::Helpers => suite::helpers::cases(),
    };
    Ok(cases.into_iter().map(|case| (case, None)).collect())
}

/// `--table N`: the size of the table, where it is clear which that is.
fn whole_table(args: &BenchProg) -> Option<u32> {
    args.table.iter().rev().find(|table| table.map.is_none()).map(|table| table.entries)
}

fn case_of(path: &Path, program: &str) -> Case {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    Case { name: format!("{file}:{program}"), ..Case::new("", &file, program) }
}

fn ways(args: &BenchProg) -> Vec<Way> {
    match (args.techniques, args.engine) {
        (true, _) => Way::all(),
        (false, Engine::Auto | Engine::Jit) => vec![Way::Compiled],
        (false, Engine::Interp) => vec![Way::Interpreter],
    }
}

fn pattern(of: FlowPattern) -> Pattern {
    match of {
        FlowPattern::Single => Pattern::Single,
        FlowPattern::Uniform => Pattern::Uniform,
        FlowPattern::Zipf => Pattern::Zipf,
        FlowPattern::Scan => Pattern::Scan,
    }
}

fn list(cases: &[Case], markdown: bool, as_json: bool) {
    if as_json {
        let all: Vec<Value> = cases.iter().map(case_json).collect();
        return print::json(&print::document("bench prog", json!({ "cases": all })));
    }
    let row = |case: &Case| {
        let sizes = case.table.iter().chain(&case.sizes).map(|(map, n)| format!("{map} {}", grouped((*n).into())));
        let table = sizes.collect::<Vec<_>>().join(", ");
        vec![case.name.clone(), format!("{}:{}", case.object, case.program), grouped(case.flows.into()), table]
    };
    let mut rows = vec![["case", "program", "flows", "table"].map(String::from).to_vec()];
    rows.extend(cases.iter().map(row));
    print::text(&if markdown { print::markdown(&rows) } else { print::table(&rows) });
}

fn machine(options: &Options) -> String {
    format!("{}, CPU {}, {} rounds", xway_bench::machine_name(), options.cpu, options.rounds)
}

/// The table as Markdown. With several ways to run a program: net figures alone, a line for each way, a column for each case.
fn markdown(options: &Options, rows: &[Row]) -> String {
    let table = if options.ways.len() > 1 { by_way(options, rows) } else { by_case(options, rows) };
    let what = if options.ways.len() > 1 { "; net ns a packet" } else { "" };
    format!("{}{what}.\n\n{}{}{}", machine(options), print::markdown(&table), same(rows), compile_time(rows))
}

fn by_case(options: &Options, rows: &[Row]) -> Vec<Vec<String>> {
    let side = |name: &str| [format!("{name} ns"), "Mpps".into(), "run".into(), "net".into(), "±".into()];
    let mut table = vec![vec!["case".to_owned()]];
    if options.kernel {
        table[0].extend(side("kernel"));
    }
    table[0].extend(side("ours"));
    table[0].extend(options.kernel.then(|| "x".to_owned()));
    let goals = options.kernel && rows.iter().any(|row| row.case.wanted.is_some());
    table[0].extend(["at least", "reached"].into_iter().filter(|_| goals).map(str::to_owned));
    for row in rows {
        let cells = |f: Option<&Figures>| {
            f.map_or([const { String::new() }; 5], |f| {
                let ns = f.program.median;
                [ns, 1e3 / ns, f.run(), f.net(), spread(&f.program)].map(figure)
            })
        };
        let mut line = vec![row.case.name.clone()];
        if options.kernel {
            line.extend(cells(row.kernel.as_ref()));
        }
        line.extend(cells(row.ours.first()));
        line.extend(options.kernel.then(|| row.ratio().map_or("-".to_owned(), ratio)));
        line.extend(goals.then(|| row.case.wanted.map_or(String::new(), |times| times.to_string())));
        line.extend(goals.then(|| reached(row).to_owned()));
        table.push(line);
    }
    table
}

/// Whether a row is as many times as fast as the kernel as it is meant to be; nothing where that was not asked, or not measured.
fn reached(row: &Row) -> &'static str {
    match (row.case.wanted, &row.kernel, row.ratio()) {
        (Some(wanted), _, Some(ratio)) if ratio < wanted => "no",
        // Without a ratio ours is too little to be told from nothing.
        (Some(_), Some(_), _) => "yes",
        _ => "",
    }
}

/// Cases that have no row, and why.
fn missing(left_out: &[(String, String)]) -> String {
    left_out.iter().map(|(name, why)| format!("\nnot measured: {name}: {why}\n")).collect()
}

/// In front of the compiler's reason.
const NOT_COMPILED: &str = "not compiled: ";

/// Rows that the interpreter took over, and why.
fn interpreted(rows: &[Row]) -> String {
    let rows = rows.iter().filter_map(|row| Some((&row.case.name, row.not_compiled.as_ref()?)));
    rows.map(|(name, why)| format!("\ninterpreted: {name}: {NOT_COMPILED}{why}\n")).collect()
}

/// Rows whose results need not be the other side's, and why.
fn not_compared(rows: &[Row]) -> String {
    let rows = rows.iter().filter_map(|row| Some((&row.case.name, row.checked.not_compared.as_ref()?)));
    rows.map(|(name, why)| format!("\nnot compared: {name}: {why}\n")).collect()
}

fn by_way(options: &Options, rows: &[Row]) -> Vec<Vec<String>> {
    let mut table = vec![vec![String::new()]];
    table[0].extend(rows.iter().map(|row| row.case.name.clone()));
    if rows.iter().any(|row| row.kernel.is_some()) {
        let kernel = |row: &Row| row.kernel.as_ref().map_or(String::new(), |f| figure(f.net()));
        table.push(["kernel".to_owned()].into_iter().chain(rows.iter().map(kernel)).collect());
    }
    let ways = rows.first().map_or(0, |row| row.ours.len());
    for way in 0..ways {
        let name = label(&options.ways[way]);
        let ns = |row: &Row| match row.ours.get(way) {
            Some(f) if f.same_code => "=".to_owned(),
            Some(_) => figure(net(row, &options.ways, way)),
            None => String::new(),
        };
        table.push([name].into_iter().chain(rows.iter().map(ns)).collect());
    }
    table
}

fn heading(options: &Options, width: usize) -> String {
    let machine = machine(options) + "\n\n";
    let kernel = if options.kernel { "   kernel ns   Mpps   run   net  ±%" } else { "" };
    let ratio = if options.kernel { "        x" } else { "" };
    format!("{machine}  {:<width$}{kernel}     ours ns   Mpps   run   net  ±%{ratio}\n", "case")
}

fn line(row: &Row, width: usize, options: &Options) -> String {
    let vs_kernel = options.kernel;
    let mut out = format!("  {:<width$}", row.case.name);
    match &row.kernel {
        Some(kernel) => out += &columns(kernel, kernel.net()),
        None if vs_kernel => out += &" ".repeat(KERNEL_WIDTH),
        None => {}
    }
    let Some(ours) = row.ours.first() else { return out + "\n" };
    out += &columns(ours, net(row, &options.ways, 0));
    if row.kernel.is_some() {
        out += &row.ratio().map_or("        -".to_owned(), |r| format!("  {:>7}", ratio(r)));
    }
    for difference in &row.checked.differences {
        out += &format!("\n    differs: {difference}");
    }
    if let Some(why) = &row.not_compiled {
        out += &format!("\n    interp: {NOT_COMPILED}{why}");
    }
    if let Some(why) = &row.checked.not_compared {
        out += &format!("\n    not compared: {why}");
    }
    if let Some(part) = row.checked.part {
        out += &format!("\n    compared over {part} of {} packets: the program is slow", row.ring);
    }
    out.push('\n');
    for (way, more) in row.ours.iter().enumerate().skip(1) {
        let blank = if vs_kernel { KERNEL_WIDTH } else { 0 };
        let same = if more.same_code { "  =" } else { "" };
        let columns = columns(more, net(row, &options.ways, way));
        out += &format!("    {:<w$}{:blank$}{columns}{same}\n", label(&options.ways[way]), "", w = width - 2);
    }
    out
}

/// Columns of the kernel's side.
const KERNEL_WIDTH: usize = 35;

fn columns(f: &Figures, net: f64) -> String {
    let ns = f.program.median;
    format!(
        "  {:>10} {:>6} {:>5} {:>5} {:>3}",
        figure(ns),
        figure(1e3 / ns),
        figure(f.run()),
        figure(net),
        format!("{:.0}", spread(&f.program))
    )
}

/// Half the distance of the quartiles, per cent of the median.
fn spread(stat: &Stat) -> f64 {
    if stat.median == 0.0 { 0.0 } else { (stat.high - stat.low) / 2.0 / stat.median * 100.0 }
}

/// Three digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn ratio(value: f64) -> String {
    figure(value)
}

/// What is smaller than what was asked for.
const LESS: &str = "a smaller --table, fewer --flows";

fn hopeless(error: &MeasureError) -> bool {
    match error {
        MeasureError::Pin { .. } | MeasureError::NotBuilt { .. } => true,
        // Whoever may not use bpf(2) may not for any program.
        MeasureError::Kernel(KernelSideError::Kernel(error)) => error.errno() == Some(Errno::EPERM),
        _ => false,
    }
}

fn failure(case: &str, error: &MeasureError) -> Failure {
    let failure = match error {
        MeasureError::Kernel(KernelSideError::Driver(_)) => {
            Failure::input(error).hint("a program that is not static, compiled with -g; or leave out --vs kernel")
        }
        MeasureError::Kernel(KernelSideError::Kernel(kernel)) => bench_kernel::refused(error, kernel, LESS),
        MeasureError::Kernel(KernelSideError::Map { errno, .. } | KernelSideError::TestRun { errno }) => {
            bench_kernel::refused(error, &KernelError::Call { step: "measuring", errno: *errno }, LESS)
        }
        MeasureError::Pin { .. } => Failure::usage(error).hint("--cpu with the number of a core that there is"),
        MeasureError::NotBuilt { .. } => Failure::needs(error).hint("install clang and build again"),
        MeasureError::User(UserSideError::Compile(_)) => {
            Failure::input(error).hint("without --techniques the interpreter takes over")
        }
        MeasureError::Refused { .. } | MeasureError::User(UserSideError::Fault(_)) => Failure::no(error),
        MeasureError::User(UserSideError::Instance(InstanceError::Create { .. }) | UserSideError::Frames(_)) => {
            Failure::input(error).hint(LESS)
        }
        MeasureError::Fill { map, at, count, errno, .. } => {
            Failure::input(error).hint(bench_fill::hint(map, *at, *count, *errno))
        }
        _ => Failure::input(error),
    };
    failure.at(case)
}

fn document(args: &BenchProg, options: &Options, rows: &[Row], left_out: &[(String, String)]) -> Value {
    let left_out: Vec<Value> = left_out.iter().map(|(name, why)| json!({ "name": name, "reason": why })).collect();
    json!({
        "machine": xway_bench::machine_name(),
        "cpu": options.cpu,
        "rounds": options.rounds,
        "unit": "ns per packet",
        "rows": rows.iter().map(|row| row_json(row, args.engine)).collect::<Vec<_>>(),
        "unchanged": (options.ways.len() > 1).then(|| unchanged(rows)),
        "not_measured": left_out,
        "not_counted": options.counters.then(bench_counters::missing),
    })
}

fn case_json(case: &Case) -> Value {
    json!({
        "name": case.name,
        "object": case.object,
        "program": case.program,
        "flows": case.flows,
        "pattern": case.pattern.name(),
        "table": case.table.as_ref().map(|(map, entries)| json!({ "map": map, "entries": entries })),
        "sizes": case.sizes.iter().map(|(map, entries)| json!({ "map": map, "entries": entries })).collect::<Vec<_>>(),
        "fill": case.given.iter().map(bench_fill::json).collect::<Vec<_>>(),
        "packet_bytes": case.packet_len,
        "frames": case.frames,
        "kernel_runs_per_test_run": case.runs,
        "wanted_ratio_net": case.wanted,
    })
}

fn row_json(row: &Row, requested: Engine) -> Value {
    let mut doc = case_json(&row.case);
    doc["insns"] = json!(row.insns);
    let filled = row.filled.iter().map(|filled| json!({ "map": filled.map, "elements": filled.elements }));
    doc["filled"] = filled.collect();
    doc["ring_packets"] = json!(row.ring);
    let interpreted = requested == Engine::Interp || row.not_compiled.is_some();
    doc["engine_requested"] = json!(requested.name());
    doc["engine"] = json!(if interpreted { Engine::Interp } else { Engine::Jit }.name());
    doc["engine_reason"] = json!(row.not_compiled.as_ref().map(|why| format!("{NOT_COMPILED}{why}")));
    doc["compile"] = json!(row.compiled.map(|c| json!({
        "ms": c.time.as_secs_f64() * 1e3,
        "code_bytes": c.code_len,
    })));
    doc["kernel"] = json!(row.kernel.as_ref().map(figures_json));
    doc["ours"] = json!(row.ours.iter().map(figures_json).collect::<Vec<_>>());
    doc["ratio_net"] = json!(row.ratio());
    doc["ratio_run"] = json!(row.run_ratio());
    doc["checked"] = json!({
        "packets": row.checked.packets,
        "ring_packets": row.checked.part.unwrap_or(row.ring),
        "map_elements": row.checked.elements,
        "verdicts_ours": row.checked.ours,
        "verdicts_kernel": row.checked.kernel,
        "exact": row.checked.exact,
        "not_compared": row.checked.not_compared,
        "differences": row.checked.differences,
    });
    doc
}

fn figures_json(f: &Figures) -> Value {
    let stat = |s: &Stat| json!({ "median": s.median, "low": s.low, "high": s.high });
    json!({
        "side": f.side,
        "same_code": f.same_code,
        "loop": stat(&f.nothing),
        "empty": stat(&f.empty),
        "program": stat(&f.program),
        "mpps": 1e3 / f.program.median,
        "run_ns": f.run(),
        "net_ns": f.net(),
        "counters": f.counted.as_ref().map(bench_counters::json),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!([0.0, 1.234, 12.34, 123.4, 1234.0].map(figure), ["0.00", "1.23", "12.3", "123", "1234"]);
    }

    #[test]
    fn spread_is_half_the_quartile_distance() {
        assert_eq!(spread(&Stat { median: 10.0, low: 9.0, high: 12.0 }), 15.0);
        assert_eq!(spread(&Stat::default()), 0.0);
    }
}

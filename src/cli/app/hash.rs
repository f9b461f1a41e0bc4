//! `weir app hash`: the SHA-256 of files, and of whole programs, as rules have them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use weir_daemon::identity::digest_of;
use weir_identity::{Digest, aggregate};

use super::array;
use crate::cli::{Common, ExitAnswer, show};

/// Print the SHA-256 of files, or of whole programs, as rules name them
#[derive(clap::Args)]
pub struct Args {
    /// Executables and libraries; with --aggregate also pid:NUMBER, a process as it is now
    #[arg(required = true, value_name = "FILE|PROCESS")]
    paths: Vec<PathBuf>,
    /// Print one SHA-256 of all files together, as the key aggregate of a rule has it: those that
    /// are named, in whatever order, or all that a process has mapped executable, the loader and
    /// libraries that it has opened by now among them
    #[arg(long)]
    aggregate: bool,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    match args.aggregate {
        true => wholes(common, args),
        false => files(&args.paths, args.json),
    }
}

fn hashed(path: &Path) -> anyhow::Result<Digest> {
    digest_of(path).map_err(|why| anyhow::anyhow!("cannot hash {}: {why}", path.display()))
}

fn files(paths: &[PathBuf], is_json: bool) -> anyhow::Result<ExitAnswer> {
    let mut found = BTreeMap::new();
    for path in paths {
        found.insert(path, hashed(path)?.to_string());
    }
    if is_json {
        let rows = found
            .iter()
            .map(|(path, digest)| json!({ "path": path, "sha256": digest }));
        show::json(&Value::Array(rows.collect()))?;
        return Ok(ExitAnswer::Done);
    }
    for (path, digest) in found {
        show::line(format!("{digest}  {}", path.display()))?;
    }
    Ok(ExitAnswer::Done)
}

/// One whole, and for people what it is of.
struct Whole {
    about: String,
    json: Value,
}

fn wholes(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let processes = args.paths.iter().map(|path| process_in(path));
    let processes = processes.collect::<anyhow::Result<Vec<_>>>()?;
    let numbers: Vec<u32> = processes.iter().copied().flatten().collect();
    let wholes = match numbers.len() {
        0 => vec![of_files(&args.paths)?],
        count if count == args.paths.len() => {
            let wholes = numbers.iter().map(|pid| of_process(common, *pid));
            wholes.collect::<anyhow::Result<Vec<_>>>()?
        }
        _ => bail!("--aggregate of files and of processes; allowed: either"),
    };
    if args.json {
        let all = wholes.into_iter().map(|whole| whole.json);
        show::json(&Value::Array(all.collect()))?;
        return Ok(ExitAnswer::Done);
    }
    for Whole { about, json } in wholes {
        let digest = json["aggregate"].as_str().unwrap_or_default();
        show::line(format!("{digest}  {}", weir_daemon::escape(&about)))?;
    }
    Ok(ExitAnswer::Done)
}

/// The number of the process that an argument names; `None`: it is the path of a file.
fn process_in(argument: &Path) -> anyhow::Result<Option<u32>> {
    let number = argument.to_str().and_then(|text| text.strip_prefix("pid:"));
    let Some(number) = number else {
        return Ok(None);
    };
    match number.parse() {
        Ok(pid) => Ok(Some(pid)),
        Err(_) => bail!(
            "pid:{number}; allowed: pid: and the number of a process, or a file of that name as ./pid:{number}"
        ),
    }
}

/// The first file, and how many others.
fn with_others(first: &str, count: usize) -> String {
    match count {
        0 | 1 => first.to_owned(),
        2 => format!("{first} and 1 other file"),
        count => format!("{first} and {} other files", count - 1),
    }
}

/// The whole that a program of these files is, each once and in the order of the paths by which
/// the kernel shows them.
fn of_files(paths: &[PathBuf]) -> anyhow::Result<Whole> {
    let (mut known, mut files) = (BTreeSet::new(), BTreeSet::new());
    for path in paths {
        let real = fs::canonicalize(path);
        let real = real.with_context(|| format!("cannot find {}", path.display()))?;
        let about = fs::metadata(&real);
        let about = about.with_context(|| format!("cannot find {}", path.display()))?;
        if known.insert((about.dev(), about.ino())) {
            let digest = hashed(&real)?;
            files.insert((real, digest));
        }
    }
    let whole = aggregate(files.iter().map(|(_, digest)| *digest));
    let rows = files.iter();
    let rows = rows.map(|(path, digest)| json!({ "path": path, "sha256": digest }));
    let first = paths.first().map(|path| path.display().to_string());
    Ok(Whole {
        about: with_others(&first.unwrap_or_default(), files.len()),
        json: json!({ "aggregate": whole, "files": rows.collect::<Vec<_>>() }),
    })
}

/// The whole that a process is now.
fn of_process(common: &Common, pid: u32) -> anyhow::Result<Whole> {
    let why = ask(common, pid)?;
    let objects = array(&why["program"]["objects"]);
    let rows = objects
        .iter()
        .map(|object| json!({ "path": object["path"], "sha256": object["digest"] }));
    let exe = super::digest(&why["program"]["exe"]["path"]);
    Ok(Whole {
        about: format!("process {pid}: {}", with_others(&exe, objects.len())),
        json: json!({
            "aggregate": why["aggregate"],
            "pid": pid,
            "files": rows.collect::<Vec<_>>(),
        }),
    })
}

/// So often it is asked who a process is, whose files take long to read.
const ANSWERS: usize = 10;

/// Who a process is now, with the aggregate that it has.
fn ask(common: &Common, pid: u32) -> anyhow::Result<Value> {
    let path = format!("/v1/app/why/{pid}");
    let mut why = common.client().get(&path)?.ok()?;
    // Each answer has the files that were read for those before.
    for _ in 1..ANSWERS {
        if why["gave_up"] != true {
            break;
        }
        why = common.client().get(&path)?.ok()?;
    }
    if why["gave_up"] == true {
        bail!("process {pid} has no aggregate yet: not all of its files were read in time");
    }
    if !why["aggregate"].is_string() {
        let objects = array(&why["program"]["objects"]);
        let unknown = objects.iter().find(|object| object["digest"].is_null());
        match unknown.and_then(|object| object["path"].as_str()) {
            Some(path) => {
                bail!("process {pid} has no aggregate: {path} has no SHA-256 that counts")
            }
            None => {
                bail!("process {pid} has no aggregate: it has more files than are looked at")
            }
        }
    }
    Ok(why)
}

/// The aggregate of a process as it is now.
pub fn whole_of(common: &Common, pid: u32) -> anyhow::Result<String> {
    Ok(super::digest(&ask(common, pid)?["aggregate"]))
}

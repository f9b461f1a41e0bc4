//! Rows, their spread and their ratios, as text and as JSON.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use anyhow::Context;
use serde::Serialize;

/// One figure of a report.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name of the measured row.
    pub name: String,
    /// The median of all rounds.
    pub value: f64,
    /// Unit of value, min and max.
    pub unit: &'static str,
    /// Least of the rounds.
    pub min: f64,
    /// Greatest of the rounds.
    pub max: f64,
    /// Median of the rounds' ratios to another row, each within its round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The name of that other row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to: Option<String>,
}

/// All rows of a run, with where and how they were made.
#[derive(Serialize)]
pub struct Report {
    machine: String,
    kernel: String,
    commit: String,
    command: String,
    rows: Vec<Row>,
    /// Further data from which the rows were made, by key of the JSON file.
    #[serde(flatten)]
    attached: BTreeMap<&'static str, serde_json::Value>,
}

fn first_line(program: &str, args: &[&str]) -> String {
    std::process::Command::new(program)
        .args(args)
        .output()
        .ok()
        .and_then(|out| {
            Some(
                String::from_utf8_lossy(&out.stdout)
                    .lines()
                    .next()?
                    .to_owned(),
            )
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

/// The middle of some numbers.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The value below which `share` of the numbers lie.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

impl Report {
    /// An empty report of this machine.
    pub fn new() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("unknown CPU", |(_, model)| model);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            machine: format!("{cores} × {model}"),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            commit: first_line("git", &["describe", "--always", "--dirty"]),
            command: std::env::args()
                .enumerate()
                .map(|(i, arg)| if i == 0 { "weir-bench".to_owned() } else { arg })
                .collect::<Vec<_>>()
                .join(" "),
            rows: Vec::new(),
            attached: BTreeMap::new(),
        }
    }

    /// Adds a row from its rounds.
    pub fn add(&mut self, name: &str, unit: &'static str, values: &[f64]) {
        self.push(name, unit, values, None);
    }

    /// Adds a row and its ratio to another, round by round.
    pub fn add_ratio(
        &mut self,
        name: &str,
        unit: &'static str,
        values: &[f64],
        to: (&str, &[f64]),
    ) {
        self.push(name, unit, values, Some(to));
    }

    fn push(&mut self, name: &str, unit: &'static str, values: &[f64], to: Option<(&str, &[f64])>) {
        let ratio = to.map(|(_, base)| {
            median(
                &values
                    .iter()
                    .zip(base)
                    .map(|(v, b)| v / b)
                    .collect::<Vec<_>>(),
            )
        });
        let row = Row {
            name: name.to_owned(),
            value: median(values),
            unit,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ratio,
            ratio_to: to.map(|(name, _)| name.to_owned()),
        };
        eprintln!("{}", line(&row));
        self.rows.push(row);
    }

    /// Adds what rows were made from to the JSON.
    pub fn attach(&mut self, name: &'static str, what: &impl Serialize) -> serde_json::Result<()> {
        self.attached.insert(name, serde_json::to_value(what)?);
        Ok(())
    }

    /// Prints the rows, and writes them to a file as JSON if there is one.
    pub fn finish(&self, json: Option<&Path>) -> anyhow::Result<()> {
        print!("{}", self.table());
        if let Some(file) = json {
            std::fs::write(file, self.json()?)
                .with_context(|| format!("write {}", file.display()))?;
        }
        Ok(())
    }

    /// The rows are of this machine, kernel and commit, measured earlier.
    pub fn measured_on(&mut self, machine: String, kernel: String, commit: String) {
        (self.machine, self.kernel, self.commit) = (machine, kernel, commit);
    }

    /// The machine, kernel, commit and command, in Markdown.
    pub fn heading(&self) -> String {
        format!(
            "{}, Linux {}, commit {}\n`{}`\n",
            self.machine, self.kernel, self.commit, self.command
        )
    }

    /// The report for people, as Markdown.
    pub fn table(&self) -> String {
        let mut out = self.heading();
        out.push_str("\n| row | median | min – max | ratio |\n|---|---|---|---|\n");
        for row in &self.rows {
            let _ = writeln!(out, "{}", line(row));
        }
        out
    }

    /// The report as JSON, for programs.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|json| json + "\n")
    }
}

fn line(row: &Row) -> String {
    let ratio = match (row.ratio, &row.ratio_to) {
        (Some(ratio), Some(to)) => format!("{ratio:.3} of {to}"),
        _ => String::new(),
    };
    format!(
        "| {} | {:.3} {} | {:.3} – {:.3} | {ratio} |",
        row.name, row.value, row.unit, row.min, row.max
    )
}

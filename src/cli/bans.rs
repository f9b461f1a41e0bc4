//! `weir bans`

use std::io::Write;

use serde_json::Value;

use super::{Common, ExitAnswer, client::quote, show};

/// List the bans in force
///
/// A terminal is shown what fits into its lines; `weir why` shows a ban's reason
/// and end whole, and so does this command in a pipe or a file.
#[derive(clap::Args)]
pub struct Args {
    /// Only the bans of this jail
    #[arg(long, value_name = "NAME")]
    jail: Option<String>,
    /// At most this many, by address; 0 for all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// What is shortened for a narrow terminal, in this order, and how far.
const NARROWED: [(&str, usize); 4] = [("REASON", 12), ("PORTS", 9), ("BY", 8), ("REASON", 0)];

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let limit = match args.limit {
        0 => usize::MAX,
        n => n,
    };
    let mut path = format!("/v1/bans?limit={limit}");
    if let Some(jail) = &args.jail {
        path.push_str(&format!("&jail={}", quote(jail)));
    }
    let answer = common.client().get(&path)?.ok()?;
    if args.json {
        show::json(&answer)?;
        return Ok(ExitAnswer::Done);
    }
    let bans = answer["bans"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = |end: fn(&Value) -> String| -> Vec<_> {
        let row = |ban: &Value| {
            vec![
                show::text(&ban["subject"]),
                show::ports(ban),
                show::text(&ban["producer"]),
                end(ban),
                show::text(&ban["reason"]),
            ]
        };
        bans.iter().map(row).collect()
    };
    let mut head = vec!["SUBJECT", "PORTS", "BY", "END", "REASON"];
    let mut table = rows(show::end);
    if let Some(room) = show::terminal_columns()
        && show::table_width(&head, &table) > room
    {
        table = rows(show::left);
        show::fit(&mut head, &mut table, room, &NARROWED);
    }
    show::table(&head, &table)?;
    let total = answer["total"].as_u64().unwrap_or(0);
    if total > bans.len() as u64 {
        writeln!(
            std::io::stderr(),
            "weir: {} of {total} bans shown; --limit 0 shows all",
            bans.len()
        )?;
    }
    Ok(ExitAnswer::Done)
}

//! `weir bans`

use std::io::Write;

use super::{Answer, Common, client::quote, show};

/// List the bans in force
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

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
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
        return Ok(Answer::Done);
    }
    let bans = answer["bans"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<_> = bans
        .iter()
        .map(|ban| {
            vec![
                show::text(&ban["subject"]),
                format!("{}{}", show::text(&ban["scope"]), show::rejected(ban)),
                show::producer(ban),
                show::end(ban),
                show::text(&ban["reason"]),
            ]
        })
        .collect();
    show::table(&["SUBJECT", "PORTS", "BY", "END", "REASON"], &rows)?;
    let total = answer["total"].as_u64().unwrap_or(0);
    if total > bans.len() as u64 {
        writeln!(
            std::io::stderr(),
            "weir: {} of {total} bans shown; --limit 0 shows all",
            bans.len()
        )?;
    }
    Ok(Answer::Done)
}

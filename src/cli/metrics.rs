//! `weir metrics`

use std::io::{self, IsTerminal, Write};

use super::{Answer, Common, show};

/// Print all metrics, for Prometheus
///
/// In the text format of Prometheus (0.0.4), as node_exporter's textfile collector
/// takes it and as `GET /v1/metrics` on the control socket answers. Counters begin
/// at zero when the daemon starts, those of packets when its tables are made; what
/// is about a jail, watch or sink goes when a reload removes it.
#[derive(clap::Args)]
pub struct Args {
    /// Print them as JSON, as they are in `weir status --json`
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let client = common.client();
    if args.json {
        let status = client.get("/v1/status")?.ok()?;
        show::json(&status["metrics"])?;
        return Ok(Answer::Done);
    }
    // Whole, or nothing: half of it would be a file of its own.
    let mut text = Vec::new();
    client.stream("/v1/metrics", &mut |piece| {
        text.extend_from_slice(piece);
        Ok(())
    })?;
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(out, "{}", weir_daemon::escape(line))?;
        }
    } else {
        out.write_all(&text)?;
    }
    Ok(Answer::Done)
}

//! `weir metrics`

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::{Common, ExitAnswer, show};

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

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    if args.json {
        let status = client.get("/v1/status")?.ok()?;
        show::json(metrics_of(&status)?)?;
        return Ok(ExitAnswer::Done);
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
    Ok(ExitAnswer::Done)
}

/// The metrics in the daemon's answer.
fn metrics_of(status: &Value) -> anyhow::Result<&Value> {
    let metrics = &status["metrics"];
    anyhow::ensure!(
        metrics.is_array(),
        "the daemon is of an older version, which has no metrics: restart it, or ask it with weir status --json"
    );
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_daemon_has_no_metrics_and_that_is_an_error() {
        let error = metrics_of(&serde_json::json!({"jails": []})).unwrap_err();
        assert!(error.to_string().contains("of an older version"), "{error}");
        let status = serde_json::json!({"metrics": [{"name": "weir_info"}]});
        assert_eq!(metrics_of(&status).unwrap(), &status["metrics"]);
    }
}

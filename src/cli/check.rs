//! `weir check`

use serde_json::json;
use weir_daemon::config::Config;
use weir_enforce::Choice;

use super::{Answer, Common, show};

/// Check the configuration as start and reload do
///
/// Names every mistake with file, line, key and what is allowed there. Exit
/// code 0 if the file is good, 1 if it is not.
#[derive(clap::Args)]
pub struct Args {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let (config, errors) = match Config::load(&common.config) {
        Ok(config) => (Some(config), Vec::new()),
        Err(errors) => (None, errors.0),
    };
    let mut warnings = config
        .as_ref()
        .map_or(Vec::new(), |config| config.warnings.clone());
    if let Some(geofence) = config.as_ref().and_then(|c| c.geofence.as_ref()) {
        warnings.extend(weir_daemon::geo::complaints(geofence));
    }
    if args.json {
        show::json(&json!({
            "file": common.config.display().to_string(),
            "good": errors.is_empty(),
            "errors": errors
                .iter()
                .map(|e| json!({
                    "file": e.file.display().to_string(),
                    "line": e.line,
                    "message": e.message,
                }))
                .collect::<Vec<_>>(),
            "warnings": warnings,
            "interfaces": config.as_ref().map(|c| &c.enforcement.interfaces),
            "backend": config.as_ref().map(|c| c.enforcement.backend.name()),
            "calibrated": config
                .as_ref()
                .and_then(|c| Some(&c.enforcement.advice.calibration.as_ref()?.day)),
            "jails": config
                .as_ref()
                .map(|c| c.jails.iter().map(|j| &j.name).collect::<Vec<_>>()),
        }))?;
    } else {
        for error in &errors {
            show::line(weir_daemon::escape(&error.to_string()))?;
        }
        for warning in &warnings {
            show::line(format!("warning: {}", weir_daemon::escape(warning)))?;
        }
        if let Some(config) = &config {
            let jails: Vec<_> = config
                .jails
                .iter()
                .map(|jail| format!("{} ({})", jail.name, jail.source))
                .collect();
            show::line(format!(
                "{} is good: backend {}{}, interfaces {}, jails: {}",
                common.config.display(),
                config.enforcement.backend.name(),
                auto_goes_by(config),
                join(&config.enforcement.interfaces),
                weir_daemon::escape(&join(&jails)),
            ))?;
        }
    }
    Ok(match errors.is_empty() {
        true => Answer::Done,
        false => Answer::No,
    })
}

/// What `auto` chooses by.
fn auto_goes_by(config: &Config) -> String {
    if config.enforcement.backend != Choice::Auto {
        return String::new();
    }
    match &config.enforcement.advice.calibration {
        Some(calibration) => format!(" (calibrated {})", weir_daemon::escape(&calibration.day)),
        None => " (not calibrated: by the driver)".to_owned(),
    }
}

fn join(words: &[String]) -> String {
    match words {
        [] => "none".to_owned(),
        words => words.join(", "),
    }
}

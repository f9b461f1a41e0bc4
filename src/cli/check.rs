//! `weir check`

use std::path::{Path, PathBuf};

use serde_json::json;
use weir_core::Prefix;
use weir_daemon::{
    access::lists,
    balance::{self, config::Emergency},
    config::Config,
    counted,
    identity::{self, AppConfig, SshLogin, Verdict},
    jails,
    token::conduits,
    watch,
};
use weir_enforce::{BackendChoice, FLOW_BYTES};
use weir_token::config::{Requirement, Scope};

use super::{Common, ExitAnswer, show, status};

/// Check the configuration as start and reload do
///
/// Names every mistake with file, line, key and what is allowed there, and what of a
/// sound file this host cannot do as it is: a geofence's database without countries,
/// a state_dir that cannot be written, a pin_root that is no BPF file system, an
/// interface that the backend's hook is not for, rules about programs that would shut out
/// the SSH login in which it runs. It counts in what `weir pool add` and `weir real add` have
/// added, and warns of what of it would not be in force. The keys of tokens can be looked at by
/// root alone: it says so to anybody else. Exit code 0 if all is well, 1 if the file is sound but
/// not all of it can be used, or could be looked at, 2 if it has mistakes, as `weir reload`.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file, as --config names it
    file: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The configuration that is named without --config.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let (config, errors) = match Config::load_with_added(&common.config) {
        Ok(config) => (Some(config), Vec::new()),
        Err(errors) => (None, errors.0),
    };
    let warnings = config.iter().flat_map(|config| {
        let complaints = config.added.complaints();
        config.warnings.iter().cloned().chain(complaints)
    });
    let warnings: Vec<_> = warnings.collect();
    let trial = config.as_ref().map(weir_daemon::trial).unwrap_or_default();
    let (mut problems, unseen) = (trial.problems, trial.unseen);
    if let Some(app) = config.as_ref().and_then(|config| config.app.as_ref())
        && let Some(login) = SshLogin::of_this_process()
    {
        problems.extend(identity::shuts_out(app, &login));
    }
    if args.json {
        let names = |pick: fn(&Config) -> Vec<&str>| config.as_ref().map(pick);
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
            "problems": problems,
            "unseen": unseen,
            "warnings": warnings,
            "interfaces": config.as_ref().map(|c| &c.enforcement.interfaces),
            "backend": config.as_ref().map(|c| c.enforcement.backend.name()),
            "calibrated": config
                .as_ref()
                .and_then(|c| Some(&c.enforcement.advice.calibration.as_ref()?.day)),
            "jails": names(|c| c.jails.iter().map(|j| j.name.as_str()).collect()),
            "watches": names(|c| c.watches.iter().map(|w| w.name.as_str()).collect()),
            "lists": names(|c| c.lists.iter().map(|l| l.name.as_str()).collect()),
            "sinks": names(|c| c.sinks.iter().map(|s| s.name.as_str()).collect()),
            "geofence": names(|c| {
                let geofence = c.geofence.iter();
                geofence.flat_map(|g| &g.fences).map(|fence| fence.name.as_str()).collect()
            }),
            "tarpit": names(|c| {
                let tarpit = c.tarpit.iter();
                tarpit.flat_map(|t| &t.typed).map(String::as_str).collect()
            }),
            "pools": names(|c| {
                let pools = c.balance.iter().flat_map(|b| &b.pools);
                pools.map(|pool| pool.name.as_str()).collect()
            }),
            "vrrp": names(|c| c.routers.iter().map(|r| r.name.as_str()).collect()),
            "app": config.as_ref().and_then(|c| Some(app_json(c.app.as_ref()?))),
            "token_requirements": config.as_ref().and_then(|c| {
                let requirements = c.token.as_ref()?.requirements.iter();
                Some(requirements.map(requirement_json).collect::<Vec<_>>())
            }),
            "conduits": config.as_ref().and_then(|c| Some(conduits(c.token.as_ref()?))),
            "decoy": names(|c| {
                let decoy = c.decoy.iter();
                decoy.flat_map(|d| &d.typed).map(String::as_str).collect()
            }),
        }))?;
    } else {
        for error in &errors {
            show::line(weir_daemon::escape(&error.to_string()))?;
        }
        for problem in &problems {
            show::wrapped(format!("problem: {}", weir_daemon::escape(problem)))?;
        }
        for place in &unseen {
            show::wrapped(format!("not looked at: {}", weir_daemon::escape(place)))?;
        }
        for warning in &warnings {
            show::wrapped(format!("warning: {}", weir_daemon::escape(warning)))?;
        }
        if let Some(config) = &config {
            let verdict = match (problems.is_empty(), unseen.is_empty()) {
                (true, true) => "configuration OK",
                (true, false) => "no mistakes, but not all that it needs could be looked at",
                (false, _) => "sound, but not all of it can be used here",
            };
            show::line(format!("{}: {verdict}", common.config.display()))?;
            summary(config)?;
        }
    }
    Ok(
        match (errors.is_empty(), problems.is_empty() && unseen.is_empty()) {
            (true, true) => ExitAnswer::Done,
            (true, false) => ExitAnswer::No,
            (false, _) => ExitAnswer::Mistaken,
        },
    )
}

/// Prints what the configuration makes the daemon do; what it does not mention is left out.
fn summary(config: &Config) -> std::io::Result<()> {
    let enforcement = &config.enforcement;
    let auto = if enforcement.auto { " (auto)" } else { "" };
    let mut lines = vec![(
        "backend",
        vec![format!(
            "{}{}, interfaces {}{auto}",
            enforcement.backend.name(),
            auto_goes_by(config),
            join(&enforcement.interfaces)
        )],
    )];
    let jail = |jail: &jails::JailConfig| format!("{} ({})", jail.name, jail.source);
    lines.push(("jails", config.jails.iter().map(jail).collect()));
    let watch = |watch: &watch::config::WatchConfig| {
        format!("{} ({})", watch.name, watch.command.join(" "))
    };
    lines.push(("watches", config.watches.iter().map(watch).collect()));
    let list = |list: &lists::config::ListConfig| {
        let action = match list.action {
            lists::ListAction::Deny => "deny",
            lists::ListAction::Allow => "allow",
        };
        format!("{} ({action}, {})", list.name, list.source)
    };
    lines.push(("lists", config.lists.iter().map(list).collect()));
    if let Some(geofence) = &config.geofence {
        let rules = geofence.fences.iter().map(|fence| fence.name.clone());
        let database = match &geofence.database {
            Some(path) => path.display().to_string(),
            None => "built-in".to_owned(),
        };
        let mut parts = vec![format!("database {database}")];
        if let Some(path) = &geofence.asn_database {
            parts.push(format!("ASN database {}", path.display()));
        }
        parts.push(format!("rules {}", join(&rules.collect::<Vec<_>>())));
        lines.push(("geofence", parts));
    }
    if let Some(decoy) = &config.decoy {
        lines.push(("decoy ports", decoy.typed.clone()));
    }
    if let Some(tarpit) = &config.tarpit {
        lines.push(("tarpit ports", tarpit.typed.clone()));
        let addresses = tarpit.addresses.iter();
        let addresses = addresses.map(|prefix| prefix.to_string());
        lines.push(("tarpit addresses", addresses.collect()));
        let dark = tarpit.dark.iter().map(|prefix| prefix.to_string());
        lines.push(("dark addresses", dark.collect()));
    }
    if let Some(balance) = config.balance.as_ref().filter(|b| b.interface.is_some()) {
        let kib = u64::from(balance.flows) * u64::from(FLOW_BYTES) / 1024;
        let memory = match kib < 1024 {
            true => format!("{kib} KiB"),
            false => format!("{} MiB", kib / 1024),
        };
        let room = format!(
            "{} remembered, in {memory} of the kernel's memory",
            balance.flows
        );
        lines.push(("flows", vec![room]));
    }
    for pool in config.balance.iter().flat_map(|balance| &balance.pools) {
        lines.push(("pool", vec![serves(pool)]));
    }
    let routers = config.routers.iter().map(|router| {
        let vips: Vec<_> = router.vips.iter().map(ToString::to_string).collect();
        let (id, priority) = (router.id, router.settings.priority);
        let (name, vips) = (&router.name, join(&vips));
        format!(
            "{name} (id {id} on {}, priority {priority}, {vips})",
            router.interface
        )
    });
    lines.push(("virtual routers", routers.collect()));
    if let Some(app) = &config.app {
        lines.push(("programs", rules_about_programs(app)));
    }
    let tokens = config.token.as_ref().map(conduits).unwrap_or_default();
    let shown = tokens.iter().map(|to| status::token_conduit(&json!(to)));
    lines.push(("tokens", shown.collect()));
    let wanted = config.token.iter().flat_map(|token| &token.requirements);
    lines.push(("tokens wanted", wanted.map(wants_token).collect()));
    let sinks = config.sinks.iter();
    let sinks = sinks.map(|sink| format!("{} ({})", sink.name, sink.target()));
    lines.push(("sinks", sinks.collect()));
    for (what, parts) in lines {
        if !parts.is_empty() || what == "jails" {
            show::wrapped(format!("  {what}: {}", weir_daemon::escape(&join(&parts))))?;
        }
    }
    Ok(())
}

/// `[app]` in parts of a line: how many rules say what, and what holds where none does.
fn rules_about_programs(app: &AppConfig) -> Vec<String> {
    let mut parts = vec![counted(app.rules.len() as u64, "rule", "rules")];
    for (word, verdict) in Verdict::ALL {
        let rules = app.rules.iter().filter(|rule| rule.verdict == verdict);
        match rules.count() {
            0 => (),
            count => parts.push(format!("{count} {word}")),
        }
    }
    parts.push(format!("default {}", app.default.name()));
    parts.push(format!("unknown programs {}", app.unknown.name()));
    let cgroup = app.cgroup.as_ref();
    parts.push(match cgroup {
        Some(cgroup) => format!("in {}", cgroup.display()),
        None => "every process".to_owned(),
    });
    if let Some(level) = identity::level(app) {
        parts.push(format!("level {level}"));
    }
    parts
}

fn app_json(app: &AppConfig) -> serde_json::Value {
    let rules = app.rules.iter();
    let rules = rules.map(|rule| {
        let peer: Vec<_> = rule.peer.iter().map(ToString::to_string).collect();
        json!({ "name": &*rule.name, "verdict": rule.verdict.name(), "peer": peer })
    });
    json!({
        "default": app.default.name(),
        "unknown": app.unknown.name(),
        "level": identity::level(app),
        "cgroup": app.cgroup.as_ref().map(|path| path.display().to_string()),
        "rules": rules.collect::<Vec<_>>(),
    })
}

/// Which ports want a token, of whom, and what becomes of packets without.
fn wants_token(requirement: &Requirement) -> String {
    let list = |all: Vec<String>| join(&all);
    let to = { requirement.to.iter() }
        .map(|to| list(to.iter().map(ToString::to_string).collect()))
        .map(|to| format!(" of {to}, forwarded"));
    let from = { requirement.from.iter() }
        .map(|from| list(from.iter().map(ToString::to_string).collect()))
        .map(|from| format!(" from {from}"));
    let by = match requirement.scope {
        Scope::Flow => String::new(),
        Scope::Payload => ", each segment".to_owned(),
        Scope::Daf => ", each segment by DAF".to_owned(),
    };
    let programs = match requirement.aggregates.len() {
        0 => String::new(),
        programs => format!(", {}", counted(programs as u64, "program", "programs")),
    };
    format!(
        "{} ({}{}{}{by}{programs}{})",
        requirement.name,
        list(requirement.ports.iter().map(ToString::to_string).collect()),
        to.collect::<String>(),
        from.collect::<String>(),
        match requirement.drops {
            true => "",
            false => ", only logged: nothing is dropped",
        },
    )
}

fn requirement_json(requirement: &Requirement) -> serde_json::Value {
    let texts = |all: &[Prefix]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "name": requirement.name,
        "ports": requirement.ports.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "from": requirement.from.as_deref().map(texts),
        "to": requirement.to.as_deref().map(texts),
        "aggregate": requirement.aggregates.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "mode": if requirement.drops { "require" } else { "log" },
        "scope": requirement.scope.word(),
    })
}

/// Virtual addresses of a pool that are named in its line.
const MOST_SHOWN: usize = 16;

/// A pool in one line: where its clients connect, and who answers them.
fn serves(pool: &balance::config::PoolConfig) -> String {
    let vips = pool.vips.iter().take(MOST_SHOWN).map(ToString::to_string);
    let mut vips: Vec<_> = vips.collect();
    match pool.vips.len().saturating_sub(MOST_SHOWN) {
        0 => (),
        more => vips.push(format!("{more} more")),
    }
    let ports = pool.ports.iter();
    let ports: Vec<_> = ports.map(ToString::to_string).collect();
    let reals: Vec<_> = pool.reals.iter().map(|r| r.address.to_string()).collect();
    let by = match pool.forward.name() {
        "l2" => String::new(),
        other => format!(" by {other}"),
    };
    let emergency = match &pool.emergency {
        None => String::new(),
        Some(Emergency::Pool(name)) => format!(", in an emergency pool {name}"),
        Some(Emergency::Reals(reals)) => {
            let reals: Vec<_> = reals.iter().map(|r| r.address.to_string()).collect();
            format!(", in an emergency {}", join(&reals))
        }
    };
    format!(
        "{} ({} of {}, reals {}{by}{emergency})",
        pool.name,
        join(&ports),
        join(&vips),
        join(&reals),
    )
}

/// The basis on which `auto` chooses, in words.
fn auto_goes_by(config: &Config) -> String {
    if config.enforcement.backend != BackendChoice::Auto {
        return String::new();
    }
    match &config.enforcement.advice.calibration {
        Some(calibration) => format!(" (calibrated {})", calibration.day),
        None => " (not calibrated: by the driver)".to_owned(),
    }
}

fn join(words: &[String]) -> String {
    match words {
        [] => "none".to_owned(),
        words => words.join(", "),
    }
}

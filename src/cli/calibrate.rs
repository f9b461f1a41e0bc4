//! `weir calibrate`

use std::{
    collections::BTreeSet,
    io::Write,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_calibrate::{CalibrateError, Figures, Plan, Spread, result_file::SeenInterface};
use weir_daemon::config::{Config, DEFAULT_STATE_DIR};
use weir_enforce::hook_selection::Advice;

use super::{Common, ExitAnswer, show};

/// Measure what each hook costs here, for backend = "auto" to choose by
///
/// Between network namespaces that end with it, weir floods each hook with
/// banned and innocent packets of IPv4 and IPv6 and sends TCP through it, in
/// rounds until the figures are sure or the time is over. No packet leaves this
/// host. The result goes to calibration.json in the state directory, with this
/// kernel, processor and day; a running daemon takes it on at `weir reload`. A
/// busy host takes longer and is less sure than an idle one.
///
/// Of real interfaces it notes driver, MTU, queues, offloads and programs
/// without touching them, and advises what stands in the way of native XDP: of
/// those in the configuration, or of those named.
#[derive(clap::Args)]
pub struct Args {
    /// Look at this interface, too; may be given several times
    #[arg(long, value_name = "IF")]
    interface: Vec<String>,
    /// Try on the named interfaces which hooks attach, with a program that
    /// passes everything: for native XDP many drivers reset the link, which
    /// interrupts traffic for up to some seconds
    #[arg(long, requires = "interface")]
    attach: bool,
    /// Stop after so long, even if the figures have not settled
    #[arg(long, value_name = "N", default_value_t = 45, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The same as --seconds 12: more noise
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    if let Some(missing) = weir_netlab::missing(&[]) {
        anyhow::bail!("cannot calibrate: {missing}");
    }
    // A configuration with a mistake is no reason not to measure.
    let config = Config::load(&common.config).ok();
    let state_dir = config
        .as_ref()
        .map_or_else(|| PathBuf::from(DEFAULT_STATE_DIR), |c| c.state_dir.clone());
    let prefer = config.as_ref().map(|c| c.enforcement.advice.prefer);
    let configured = config.map_or_else(Vec::new, |c| c.enforcement.interfaces);
    let kernel = weir_calibrate::Machine::this().kernel;
    let mut interfaces = Vec::new();
    let names: BTreeSet<_> = configured.iter().chain(&args.interface).collect();
    for name in names {
        let mut seen = weir_calibrate::interface::look(name, &kernel)?;
        if args.attach && args.interface.contains(name) {
            weir_calibrate::interface::attach(&mut seen)?;
        }
        interfaces.push(seen);
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot handle signals")?;
    }
    let plan = match args.quick {
        true => Plan::QUICK,
        false => Plan {
            time: Duration::from_secs(args.seconds),
        },
    };
    let mut progress = |what: &str| {
        // Nobody is left to tell if this fails.
        let _ = writeln!(std::io::stderr(), "{what}");
    };
    let measured = weir_calibrate::measure(&plan, &stop, &mut progress);
    let mut figures = match measured {
        // A call of the kernel's that the signal ended.
        Err(_) if stop.load(std::sync::atomic::Ordering::Relaxed) => {
            return Err(CalibrateError::Interrupted.into());
        }
        measured => measured?,
    };
    figures.interfaces = interfaces;
    weir_calibrate::save(&state_dir, &figures).with_context(|| {
        format!(
            "cannot write {}",
            state_dir.join(weir_calibrate::FILE).display()
        )
    })?;
    if args.json {
        show::json(&serde_json::to_value(&figures)?)?;
    } else {
        let advice = Advice {
            prefer: prefer.unwrap_or_default(),
            calibration: Some(figures.advice()),
        };
        print(&figures, &advice)?;
        show::line(format!(
            "written to {}; a running daemon takes it on at `weir reload`",
            state_dir.join(weir_calibrate::FILE).display()
        ))?;
    }
    Ok(ExitAnswer::Done)
}

fn print(figures: &Figures, advice: &Advice) -> anyhow::Result<()> {
    show::line(format!(
        "kernel {}, {}, between namespaces on {}",
        figures.machine.kernel, figures.machine.cpu, figures.driver
    ))?;
    let run = &figures.run;
    show::line(format!(
        "{} rounds in {} s; other programs had {:.0} % of the processors, the hypervisor took {:.0} %",
        run.rounds, run.seconds, run.company.others, run.company.stolen
    ))?;
    let ns = |s: &Spread| format!("{:.0} ({:.0}-{:.0})", s.median, s.low, s.high);
    // Differences: the noise may take them below zero.
    let more = |s: &Spread| format!("{:+.0} ({:+.0} to {:+.0})", s.median, s.low, s.high);
    let one = |s: &Spread| format!("{:.0}", s.median);
    let gbit = |s: &Spread| format!("{:.1}", s.median);
    let base = &figures.baseline;
    let mut rows = vec![vec![
        "none".to_owned(),
        ns(&base.unwanted_ns),
        one(&base.unwanted_ns_ipv4),
        one(&base.unwanted_ns_ipv6),
        "1.00".to_owned(),
        ns(&base.innocent_ns),
        gbit(&base.tcp_gbit),
        String::new(),
    ]];
    for hook in &figures.hooks {
        let cell = |text: Option<String>| text.unwrap_or_default();
        let mut row = vec![hook.hook.clone()];
        match &hook.refused {
            Some(why) => row.push(format!("refused: {}", weir_daemon::escape(why))),
            None => row.extend([
                cell(hook.drop_ns.as_ref().map(ns)),
                cell(hook.drop_ns_ipv4.as_ref().map(one)),
                cell(hook.drop_ns_ipv6.as_ref().map(one)),
                cell(hook.drop_ratio.map(|s| format!("{:.2}", s.median))),
                cell(hook.innocent_ns.as_ref().map(more)),
                cell(hook.tcp_gbit.as_ref().map(gbit)),
                cell(hook.tcp_loss.as_ref().map(more)),
            ]),
        }
        rows.push(row);
    }
    show::table(
        &[
            "HOOK",
            "DROP ns",
            "IPv4",
            "IPv6",
            "OF NONE",
            "INNOCENT ns",
            "TCP Gbit/s",
            "TCP LOST %",
        ],
        &rows,
    )?;
    if !run.settled {
        show::line(
            "figures have not settled: bounds are wide, and hooks may look alike that are not; \
             a calmer host or --seconds tells more",
        )?;
    }
    for seen in &figures.interfaces {
        one_interface(seen)?;
        if let Some(why) = weir_calibrate::interface::choice(&seen.name, advice) {
            show::line(format!("  {}", weir_daemon::escape(&why)))?;
        }
    }
    Ok(())
}

fn one_interface(seen: &SeenInterface) -> anyhow::Result<()> {
    let native = match (seen.native_xdp, seen.native_frags) {
        (None, _) => "native XDP cannot be told (kernel 6.3)",
        (Some(false), _) => "no native XDP",
        (Some(true), Some(true)) => "native XDP, jumbo frames too",
        (Some(true), _) => "native XDP",
    };
    let driver = match seen.driver.as_str() {
        "" => "no driver".to_owned(),
        driver => format!("driver {}", weir_daemon::escape(driver)),
    };
    let mtu = seen
        .mtu
        .map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
    show::line(format!("{}: {driver}, {native}{mtu}", seen.name))?;
    for program in &seen.programs {
        show::line(format!("  there is {}", weir_daemon::escape(program)))?;
    }
    if !seen.offloads.is_empty() || seen.queues.is_some() {
        let queues = seen
            .queues
            .map(|[now, most]| format!("{now} of {most} receive queues"));
        let offloads = seen.offloads.iter().map(|name| format!("{name} on"));
        let facts: Vec<_> = queues.into_iter().chain(offloads).collect();
        show::line(format!("  {}", facts.join(", ")))?;
    }
    for trial in &seen.tried {
        let outcome = match &trial.refused {
            None => "attaches".to_owned(),
            Some(why) => format!("refused: {}", weir_daemon::escape(why)),
        };
        show::line(format!("  {}: {outcome}", trial.hook))?;
    }
    for advice in &seen.advice {
        show::line(format!("  advice: {}", weir_daemon::escape(advice)))?;
    }
    Ok(())
}

//! `weir calibrate`

use std::{
    collections::BTreeSet,
    io::Write,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_daemon::{
    calibrate::{self, CalibrateError, Figures, Plan, stored::SeenInterface, stored::Spread},
    config::Config,
};

use super::{Answer, Common, show};

/// Measure what each hook costs here, for backend = "auto" to choose by
///
/// Between network namespaces that end with it, weir floods each hook with
/// banned and innocent packets and sends a TCP stream through it, for some 25
/// seconds. No packet leaves this host. The result goes to calibration.json in
/// the state directory, with this kernel, processor and day; a running daemon
/// takes it on at `weir reload`. A busy host measures worse than an idle one.
///
/// Of real interfaces it notes driver, MTU and programs without touching
/// them: of those in the configuration, or of those named.
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
    /// Measure for some 7 seconds only, with more noise
    #[arg(long)]
    quick: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    if let Some(missing) = weir_lab::missing(&[]) {
        anyhow::bail!("cannot calibrate: {missing}");
    }
    // A configuration with a mistake is no reason not to measure.
    let config = Config::load(&common.config).ok();
    let state_dir = config
        .as_ref()
        .map_or_else(|| PathBuf::from("/var/lib/weir"), |c| c.state_dir.clone());
    let configured = config.map_or_else(Vec::new, |c| c.enforcement.interfaces);
    let kernel = calibrate::Machine::this().kernel;
    let mut interfaces = Vec::new();
    let names: BTreeSet<_> = configured.iter().chain(&args.interface).collect();
    for name in names {
        let mut seen = calibrate::interface::look(name, &kernel)?;
        if args.attach && args.interface.contains(name) {
            calibrate::interface::attach(&mut seen)?;
        }
        interfaces.push(seen);
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot handle signals")?;
    }
    let plan = if args.quick { Plan::QUICK } else { Plan::FULL };
    let mut progress = |what: &str| {
        // Nobody is left to tell if this fails.
        let _ = writeln!(std::io::stderr(), "{what}");
    };
    let measured = calibrate::measure(&plan, &stop, &mut progress);
    let mut figures = match measured {
        // A call of the kernel's that the signal ended.
        Err(_) if stop.load(std::sync::atomic::Ordering::Relaxed) => {
            return Err(CalibrateError::Interrupted.into());
        }
        measured => measured?,
    };
    figures.interfaces = interfaces;
    calibrate::save(&state_dir, &figures)
        .with_context(|| format!("cannot write {}", state_dir.join(calibrate::FILE).display()))?;
    if args.json {
        show::json(&serde_json::to_value(&figures)?)?;
    } else {
        print(&figures)?;
        show::line(format!(
            "written to {}; a running daemon takes it on at `weir reload`",
            state_dir.join(calibrate::FILE).display()
        ))?;
    }
    Ok(Answer::Done)
}

fn print(figures: &Figures) -> anyhow::Result<()> {
    show::line(format!(
        "kernel {}, {}, between namespaces on {}",
        figures.machine.kernel, figures.machine.cpu, figures.driver
    ))?;
    let ns = |s: &Spread| format!("{:.0} ({:.0}-{:.0})", s.median, s.min, s.max);
    // Differences: the noise may take them below zero.
    let more = |s: &Spread| format!("{:+.0} ({:+.0} to {:+.0})", s.median, s.min, s.max);
    let gbit = |s: &Spread| format!("{:.1} ({:.1}-{:.1})", s.median, s.min, s.max);
    let cpu = |s: &Spread| format!("{:.3}", s.median);
    let base = &figures.baseline;
    let mut rows = vec![vec![
        "none".to_owned(),
        ns(&base.unwanted_ns),
        "1.00".to_owned(),
        ns(&base.innocent_ns),
        gbit(&base.tcp.gbit),
        cpu(&base.tcp.cpu_per_gb),
        String::new(),
    ]];
    for hook in &figures.hooks {
        let cell = |text: Option<String>| text.unwrap_or_default();
        let mut row = vec![hook.hook.clone()];
        match &hook.refused {
            Some(why) => row.push(format!("refused: {}", weir_daemon::escape(why))),
            None => row.extend([
                cell(hook.drop_ns.as_ref().map(ns)),
                cell(hook.drop_ratio.map(|s| format!("{:.2}", s.median))),
                cell(hook.innocent_ns.as_ref().map(more)),
                cell(hook.tcp.map(|tcp| gbit(&tcp.gbit))),
                cell(hook.tcp.map(|tcp| cpu(&tcp.cpu_per_gb))),
                cell(hook.tcp_loss.as_ref().map(more)),
            ]),
        }
        rows.push(row);
    }
    show::table(
        &[
            "HOOK",
            "DROP ns",
            "OF NONE",
            "INNOCENT ns",
            "TCP Gbit/s",
            "CPU s/GB",
            "TCP LOST %",
        ],
        &rows,
    )?;
    figures.interfaces.iter().try_for_each(one_interface)
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
    let kind = match seen.ethernet {
        true => "",
        false => ", no Ethernet frames: weir cannot protect it yet",
    };
    show::line(format!("{}: {driver}, {native}{mtu}{kind}", seen.name))?;
    for program in &seen.programs {
        show::line(format!("  there is {}", weir_daemon::escape(program)))?;
    }
    for trial in &seen.tried {
        let outcome = match &trial.refused {
            None => "attaches".to_owned(),
            Some(why) => format!("refused: {}", weir_daemon::escape(why)),
        };
        show::line(format!("  {}: {outcome}", trial.hook))?;
    }
    Ok(())
}

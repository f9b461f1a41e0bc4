//! What the watcher sees: lines with the time since the start, and a summary.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// The terminal, and what the summary will say.
pub struct Screen {
    start: Instant,
    colour: bool,
    stop: Arc<AtomicBool>,
    checked: usize,
    notes: Vec<(String, String)>,
}

impl Screen {
    /// `stop` is set by Ctrl-C.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self {
            start: Instant::now(),
            colour,
            stop,
            checked: 0,
            notes: Vec::new(),
        }
    }

    fn line(&self, code: &str, mark: &str, text: &str) {
        let (on, off) = if self.colour {
            (code, "\x1b[0m")
        } else {
            ("", "")
        };
        let seconds = self.start.elapsed().as_secs_f64();
        let mut out = std::io::stdout().lock();
        // A closed pipe ends nothing: the checks go on.
        let _ = writeln!(out, "{seconds:5.1} s {on}{mark} {text}{off}");
    }

    /// Something happens.
    pub fn say(&self, text: &str) {
        self.line("", " ", text);
    }

    /// A claim that was checked.
    pub fn good(&mut self, text: &str) {
        self.checked += 1;
        self.line("\x1b[32m", "✓", text);
    }

    /// A new part begins.
    pub fn chapter(&self, title: &str) {
        println!();
        self.line("\x1b[1m", "—", title);
    }

    /// A command and its output.
    pub fn quote(&self, command: &str, output: &str) {
        self.line("\x1b[1m", "$", command);
        for line in output.lines() {
            println!("          {line}");
        }
    }

    /// A figure for the summary.
    pub fn note(&mut self, what: &str, value: &str) {
        self.notes.push((what.to_owned(), value.to_owned()));
    }

    /// An error once Ctrl-C was pressed.
    pub fn check_stop(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// All went well.
    pub fn summary(&self) {
        println!(
            "\nIn {:.0} s, {} claims checked, all true:",
            self.start.elapsed().as_secs_f64(),
            self.checked
        );
        println!(
            "  - attackers over IPv4 and IPv6 were banned after their failures and dropped in the kernel"
        );
        println!("  - customers were served throughout");
        println!(
            "  - SIGKILL of the daemon let nobody in; bans and remaining times survived the restart"
        );
        println!("  - weir why explained a ban, weir unban lifted it and only it");
        for (what, value) in &self.notes {
            println!("  {what}: {value}");
        }
        println!("Everything made for this is removed. To protect this host: see the README.");
    }

    /// Something was not as it should be.
    pub fn failed(&self, why: &str) {
        self.line("\x1b[31m", "✗", why);
        println!("\nThe demo failed: {why}");
    }
}

//! What the watcher sees: lines with the time since the start, and a summary.

use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

/// The terminal, and what the summary will say.
pub struct Screen {
    start: Instant,
    colour: bool,
    checked: usize,
    claims: Vec<&'static str>,
    notes: Vec<(String, String)>,
}

impl Screen {
    /// Colours on a terminal that has them, unless NO_COLOR says no.
    pub fn new() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = std::io::stdout().is_terminal()
            && set("NO_COLOR").is_none()
            && set("TERM").is_some_and(|term| term != "dumb");
        Self {
            start: Instant::now(),
            colour,
            checked: 0,
            claims: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A closed pipe ends nothing: the checks go on.
    fn plain(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    fn line(&self, code: &str, mark: &str, text: &str) {
        let (on, off) = if self.colour && !code.is_empty() {
            (code, "\x1b[0m")
        } else {
            ("", "")
        };
        let seconds = self.start.elapsed().as_secs_f64();
        self.plain(&format!("{seconds:5.1} s {on}{mark} {text}{off}"));
    }

    /// Prints what happens now, as a line of the story.
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
        self.plain("");
        self.line("\x1b[1m", "—", title);
    }

    /// A command and its output.
    pub fn quote(&self, command: &str, output: &str) {
        self.line("\x1b[1m", "$", command);
        for line in output.lines() {
            self.plain(&format!("          {line}"));
        }
    }

    /// What the summary says was shown, beside what every run shows.
    pub fn claim(&mut self, claim: &'static str) {
        self.claims.push(claim);
    }

    /// A figure for the summary.
    pub fn note(&mut self, what: &str, value: &str) {
        self.notes.push((what.to_owned(), value.to_owned()));
    }

    /// Prints the summary of a run without an error.
    pub fn summary(&self) {
        self.plain(&format!(
            "\nIn {:.0} s, {} claims checked, all true:\n\
             \x20 - attackers over IPv4 and IPv6 were banned after their failures and dropped in the kernel\n\
             \x20 - customers were served throughout\n\
             \x20 - SIGKILL of the daemon let nobody in; bans and their ends survived the restart\n\
             \x20 - a pool lost a server and no customer of the other one\n\
             \x20 - weir why explained a ban, weir unban lifted it and only it",
            self.start.elapsed().as_secs_f64(),
            self.checked
        ));
        for claim in &self.claims {
            self.plain(&format!("  - {claim}"));
        }
        for (what, value) in &self.notes {
            self.plain(&format!("  {what}: {value}"));
        }
        self.plain("Everything made for this is removed. To protect this host: see the README.");
    }

    /// Something was not as it should be.
    pub fn failed(&self, why: &str) {
        self.line("\x1b[31m", "✗", why);
        self.plain("\nThe demo failed; everything made for it is removed.");
    }
}

//! What is written: sets filled beside those that are there, and the rules that
//! change over to them.

use std::{fmt::Write, time::Instant};

use weir_bpf::clock;

use super::{
    Ipset, KernelState, check_names, counters, failed,
    rules::{self, Asked, RESTORE, SAVE},
    sets::{self, SetUse},
};
use crate::{
    Error, command,
    firewall::{Counted, Desired, Firewall},
    nft::iptables,
};

impl Ipset {
    /// The interfaces as rules shall name them now.
    pub(super) fn look_at_devices(&self, kernel: &mut KernelState) -> Result<Vec<String>, Error> {
        let configured = self.desired().settings.interfaces.clone();
        kernel.devices.look(&configured)
    }

    fn restore_sets(&self, lines: &str) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        command::run("ipset", &["-exist", "restore"], lines)
            .map(|_| ())
            .map_err(failed("change the sets of ipset"))
    }

    /// Writes our chains, and the jump to them if it is not there.
    pub(super) fn put_rules(&self, kernel: &mut KernelState) -> Result<(), Error> {
        let names = match self.look_at_devices(kernel) {
            // Where nobody can look, the names in force stay; `tend` looks again.
            Err(error) if kernel.attached => {
                tracing::debug!("{error}; the rules keep the interfaces that they name");
                kernel.names.clone()
            }
            looked => looked?,
        };
        check_names(&names)?;
        let counted = counters(&self.base, &kernel.carried)?;
        for family in [0, 1] {
            let saved = command::run(SAVE[family], &["-t", "raw"], "")
                .map_err(failed("read the rules of iptables"))?;
            let (there, ours) = (
                iptables::are_there(family, rules::PLACE),
                rules::made(&saved, &self.base),
            );
            let text = {
                let desired = self.desired();
                let bans: Vec<_> = kernel
                    .sets
                    .iter()
                    .copied()
                    .filter(|bans| bans.family == family)
                    .collect();
                let asked = Asked {
                    base: &self.base,
                    interfaces: &names,
                    bans: &bans,
                    scopes: &kernel.scopes,
                    lists: &kernel.classes.lists,
                    list_generation: kernel.lists,
                    counted: match family {
                        0 => &counted,
                        _ => &Counted::new(),
                    },
                    observe: desired.settings.observe,
                    made: [0, 1].map(|at| ours[at] || !there[at]),
                };
                rules::write(&asked, family)
            };
            command::run(RESTORE[family], &["--noflush"], &text)
                .map_err(failed("write the rules of iptables"))?;
            if family == 0 {
                kernel.carried.clone_from(&counted);
            }
            let jump = rules::jump(&self.base);
            if !saved.lines().any(|line| line == format!("-A {jump}")) {
                let insert = format!("*raw\n-I {jump}\nCOMMIT\n");
                command::run(RESTORE[family], &["--noflush"], &insert)
                    .map_err(failed("write the rules of iptables"))?;
            }
            kernel.written[family] = text;
        }
        // Not before: what was refused is tried again.
        kernel.names = names;
        Ok(())
    }

    /// The set that is filled before it is exchanged for another one.
    pub(super) fn aside(&self) -> String {
        format!("{}.new", self.base)
    }

    /// A set of prefixes, filled aside and exchanged whole.
    fn put_prefixes(&self, set: &str, family: usize, prefixes: &[String]) -> Result<(), Error> {
        let aside = self.aside();
        let mut lines = String::new();
        sets::create_prefixes(&mut lines, set, family);
        sets::create_prefixes(&mut lines, &aside, family);
        let _ = writeln!(lines, "flush {aside}");
        for prefix in prefixes {
            let _ = writeln!(lines, "add {aside} {prefix}");
        }
        let _ = write!(lines, "swap {aside} {set}\ndestroy {aside}\n");
        self.restore_sets(&lines)
    }

    pub(super) fn put_allow_sets(&self) -> Result<(), Error> {
        let allow = self.desired().allow.clone();
        let all = sets::prefixes(allow.v4().iter().copied(), allow.v6().iter().copied());
        for (family, prefixes) in all.iter().enumerate() {
            self.put_prefixes(&rules::allow_set(&self.base, family), family, prefixes)?;
        }
        Ok(())
    }

    /// The lists in sets that no rule asks yet.
    pub(super) fn put_lists(&self, kernel: &mut KernelState) -> Result<(), Error> {
        let generation = self.free_generation(SetUse::List)?;
        let classes = self.desired().classes.clone();
        for bit in 0..classes.lists.len() {
            let listed = |class: u16| {
                let class = classes.classes.get(usize::from(class));
                class.is_some_and(|class| class.lists >> bit & 1 == 1)
            };
            let v4 = classes.v4.iter().filter(|span| listed(span.value));
            let v6 = classes.v6.iter().filter(|span| listed(span.value));
            let all = sets::prefixes(
                v4.map(|span| (span.first, span.last)),
                v6.map(|span| (span.first, span.last)),
            );
            for (family, prefixes) in all.iter().enumerate() {
                let set = rules::list_set(&self.base, generation, bit, family);
                self.put_prefixes(&set, family, prefixes)?;
            }
        }
        (kernel.lists, kernel.classes) = (generation, classes);
        Ok(())
    }

    /// Everything anew, in sets beside those that are there: the rules change
    /// over to them in one transaction a family.
    pub(super) fn rebuild(&self, kernel: &mut KernelState) -> Result<(), Error> {
        kernel.broken = true;
        let before = self.sets_there()?;
        let put = self.put_sets_and_rules(kernel);
        if put.is_err() {
            self.tidy_after_failure(kernel, &before);
        }
        put?;
        kernel.broken = false;
        kernel.attached = true;
        kernel.suspended = clock::suspended();
        kernel.prolonged = Instant::now();
        self.tidy(kernel);
        Ok(())
    }

    fn put_sets_and_rules(&self, kernel: &mut KernelState) -> Result<(), Error> {
        kernel.generation = self.free_generation(SetUse::Bans)?;
        let (lines, _) = {
            let mut desired = self.desired();
            desired.pending.clear();
            kernel.sets.clear();
            kernel.scopes.clear();
            let Desired { bans, allow, .. } = &*desired;
            let all = bans.all().map(|(subject, _)| (subject, false));
            kernel.put_bans(&self.base, all, bans, allow)
        };
        self.restore_sets(&lines)?;
        self.put_allow_sets()?;
        self.put_lists(kernel)?;
        self.put_rules(kernel)
    }

    pub(super) fn is_disturbed(&self, kernel: &KernelState) -> Result<bool, Error> {
        for family in [0, 1] {
            let saved = command::run(SAVE[family], &["-t", "raw"], "")
                .map_err(failed("read the rules of iptables"))?;
            if !rules::is_whole(&saved, &self.base, &kernel.written[family]) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells the kernel about the bans that are pending.
    pub(super) fn put_pending_into(&self, kernel: &mut KernelState) -> Result<(), Error> {
        if kernel.broken {
            return self.rebuild(kernel);
        }
        if !kernel.attached {
            return Ok(());
        }
        let before = kernel.sets.len();
        let (lines, deletes) = {
            let mut desired = self.desired();
            let pending = std::mem::take(&mut desired.pending);
            let Desired { bans, allow, .. } = &*desired;
            kernel.put_bans(&self.base, pending.into_iter(), bans, allow)
        };
        let put = self.restore_sets(&lines).and_then(|()| {
            if kernel.sets.len() > before {
                self.put_rules(kernel)?;
            }
            // A ban leaves its set when packets ask the one that it is in now.
            self.restore_sets(&deletes)
        });
        put.or_else(|error| {
            tracing::debug!("{error}; writing everything again");
            self.rebuild(kernel)
        })
    }
}

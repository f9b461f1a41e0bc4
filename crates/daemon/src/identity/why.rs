//! Who a process is, and which rules are about it; or why nobody can say.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use weir_identity::Digest;

use super::{Apps, State, objects::NoDigest};

/// Why a process may or may not.
#[derive(Debug, Clone, Serialize)]
pub struct WhyProgram {
    /// The process that was asked about.
    pub pid: u32,
    /// As the rules see it.
    pub program: weir_identity::Program,
    /// The SHA-256 of the whole.
    pub aggregate: Option<Digest>,
    /// How many sockets of IPv4 and IPv6 it has; `None`: its descriptors cannot be read.
    pub sockets: Option<usize>,
    /// It runs in the control group in which rules hold.
    pub is_judged: bool,
    /// The kernel knows it.
    pub is_known: bool,
    /// Not all of its files were read within two seconds: these have no SHA-256 here, and rules
    /// that ask for it are not met.
    pub gave_up: bool,
    /// What the walk over its mappings took, in microseconds.
    pub walk_us: f64,
    /// Each rule in its order, and whether it is about the program.
    pub rules: Vec<RuleAbout>,
    /// Where none of them holds.
    pub default: &'static str,
}

/// A rule, and whether it is about a program.
#[derive(Debug, Clone, Serialize)]
pub struct RuleAbout {
    /// The name in the configuration.
    pub name: Arc<str>,
    /// The verdict of the rule, in the configuration's word.
    pub verdict: &'static str,
    /// The program meets the conditions of the rule.
    pub is_met: bool,
}

/// Why nobody can say who a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoProgram {
    /// Nobody has that number, or nobody any more.
    #[error("there is no process {0}")]
    Gone(u32),
    /// The kernel's own.
    #[error(
        "{0} is a thread of the kernel: it has no program, and what the kernel sends by itself is not judged by [app]"
    )]
    KernelThread(u32),
    /// It is one of several threads of a process.
    #[error("{0} is a thread of process {1}: rules are about processes, ask for {1}")]
    Thread(u32, u32),
    /// It has ended, and its parent has not asked how.
    #[error("process {0} has ended: it has no program any more (a zombie)")]
    Zombie(u32),
    /// Even root may not read which files it has mapped.
    #[error("the mappings of process {0} cannot be read ({1}): nobody can say who it is")]
    Unreadable(u32, std::io::ErrorKind),
    /// The process changes its mappings all the time.
    #[error("process {0} changes its mappings without a pause: ask again")]
    Restless(u32),
}

impl NoProgram {
    fn of(pid: u32) -> Self {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            return Self::Gone(pid);
        };
        let field = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim).unwrap_or_default()
        };
        match field("Tgid").parse() {
            Ok(process) if process != pid => return Self::Thread(pid, process),
            _ => (),
        }
        if field("State").starts_with(['Z', 'X']) {
            Self::Zombie(pid)
        } else if field("VmSize").is_empty() {
            // Who has no address space, and lives.
            Self::KernelThread(pid)
        } else if let Err(error) = fs::read(format!("/proc/{pid}/maps")) {
            Self::Unreadable(pid, error.kind())
        } else {
            Self::Restless(pid)
        }
    }
}

/// So long processes are looked at for an answer: programs that are asked about meanwhile wait.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 65_536;
/// Where the kernel lists sockets, by kind, with their inodes.
const TABLES: [&str; 8] = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6"];

/// The sockets of IPv4 and IPv6 that a process has open.
fn sockets(pid: u32) -> Option<usize> {
    let proc = Path::new("/proc").join(pid.to_string());
    let links = fs::read_dir(proc.join("fd")).ok()?.flatten();
    let inodes: BTreeSet<u64> = links
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect();
    if inodes.is_empty() {
        return Some(0);
    }
    let mut found = BTreeSet::new();
    for table in TABLES {
        let text = fs::read_to_string(proc.join("net").join(table)).unwrap_or_default();
        let listed = text.lines().skip(1).filter_map(|line| {
            let inode = line.split_ascii_whitespace().nth(9)?;
            inode.parse::<u64>().ok()
        });
        found.extend(listed.filter(|inode| inodes.contains(inode)));
    }
    // A socket that is neither bound nor connected is in no table.
    Some(found.len())
}

impl Apps {
    /// Who a process is, and which rules are about it; `None`: there is no `[app]`.
    ///
    /// # Errors
    /// The kernel refuses to look. The other answer says why there is no program.
    pub fn why(&self, pid: u32) -> Result<Option<Result<WhyProgram, NoProgram>>, weir_bpf::Error> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else {
            return Ok(None);
        };
        let Some((seen, mut read)) = state.within(ANSWERS_WITHIN, |state| state.read(pid))? else {
            return Ok(Some(Err(NoProgram::of(pid))));
        };
        let mut gave_up = matches!(read.without, Some((_, NoDigest::Later)));
        // What it is was found when there was time.
        if gave_up && let Some(known) = state.programs.by_key(&seen.key) {
            gave_up = matches!(known.read.without, Some((_, NoDigest::Later)));
            read.program.clone_from(&known.read.program);
        }
        let State {
            policy,
            cgroup,
            programs,
            ..
        } = state;
        let rules = policy.rules.iter().map(|rule| RuleAbout {
            name: rule.name.clone(),
            verdict: rule.verdict.name(),
            is_met: rule.is_about(&read.program),
        });
        let below = cgroup.below_root();
        let is_judged = below == "/"
            || read.program.cgroup == below
            || read.program.cgroup.starts_with(&format!("{below}/"));
        Ok(Some(Ok(WhyProgram {
            pid,
            aggregate: read.program.aggregate(),
            sockets: sockets(pid),
            is_judged,
            is_known: programs.has(&seen.key),
            gave_up,
            walk_us: seen.walk_ns as f64 / 1000.0,
            rules: rules.collect(),
            default: policy.default.name(),
            program: read.program,
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, process::Command, thread};

    use super::*;

    #[test]
    fn who_has_no_program_is_told_why() {
        assert_eq!(NoProgram::of(u32::MAX), NoProgram::Gone(u32::MAX));
        let own = std::process::id();
        let thread = thread::spawn(|| {
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (id, NoProgram::of(id))
        });
        let (id, answer) = thread.join().unwrap();
        assert_eq!(answer, NoProgram::Thread(id, own));
        let mut child = Command::new("true").spawn().unwrap();
        let begun = std::time::Instant::now();
        while NoProgram::of(child.id()) != NoProgram::Zombie(child.id()) {
            assert!(begun.elapsed().as_secs() < 10);
            thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        if let Ok(status) = fs::read_to_string("/proc/2/status")
            && status.contains("kthreadd")
        {
            assert_eq!(NoProgram::of(2), NoProgram::KernelThread(2));
        }
    }

    #[test]
    fn sockets_of_the_internet_are_counted() {
        let before = sockets(std::process::id()).unwrap();
        let listeners = ["127.0.0.1:0", "[::1]:0"].map(|at| TcpListener::bind(at).unwrap());
        // Other tests of this process have sockets, too.
        assert!(sockets(std::process::id()).unwrap() >= 2, "{before}");
        drop(listeners);
        assert_eq!(sockets(u32::MAX), None);
    }
}

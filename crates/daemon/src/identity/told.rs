//! What the kernel tells about programs, as everybody reads it, and as it is recorded
//! while weir learns.

use std::{fs, path::Path, sync::Arc};

use jiff::Timestamp;
use weir_bpf::identity::{DecidedBy, IdentityEvent, IdentityEventKind};
use weir_core::Prefix;
use weir_events::{Actor, Event, Kind};
use weir_identity::{
    Protocols, Unknown,
    decision::Flow,
    learn::{Observation, ProgramKey},
};

use super::{
    State,
    process::{self, script_file},
    programs::KnownProgram,
};
use crate::host::cgroup_of;

/// Is the event about a connection that is dropped until somebody says that it may pass?
pub(super) fn waits(event: &IdentityEvent) -> bool {
    event.kind == IdentityEventKind::Judged && !event.passes && event.by == DecidedBy::Default
}

impl State {
    /// What the holders of the socket have done; none: nobody knows who they are. `is_new`:
    /// is nothing recorded of this program yet?
    pub(super) fn observe(
        &self,
        event: &IdentityEvent,
        is_new: impl Fn(&ProgramKey) -> bool,
    ) -> Vec<Observation> {
        let known = event.holders.iter().flatten();
        let known = known.filter_map(|handle| self.programs.by_handle(*handle));
        let pending = match event.key.set {
            [0, 0] => None,
            // Somebody may have been told of since.
            _ => self.programs.by_key(&event.key),
        };
        let at = Timestamp::now().as_microsecond();
        let mut seen: Vec<Observation> = Vec::new();
        for holder in known.chain(pending) {
            let Some(program) = key_of(holder) else {
                continue;
            };
            if seen.iter().any(|other| other.program == program) {
                continue;
            }
            let parents = match is_new(&program) {
                true => process::parents(event.pid),
                false => Vec::new(),
            };
            let read = &holder.read.program;
            seen.push(Observation {
                at,
                is_at_path: holder.read.is_at_path,
                aggregate: read.aggregate(),
                package: read.package.clone(),
                parents: parents.into_iter().map(|(_, path)| path).collect(),
                cgroup: read.cgroup.clone(),
                uid: read.uid,
                is_denied: !event.passes,
                is_outward: event.is_out,
                protocol: Protocols(event.protocol),
                peer: event.peer.to_canonical(),
                port: event.port,
                program,
            });
        }
        seen
    }

    fn rule_name(&self, event: &IdentityEvent) -> Option<Arc<str>> {
        let DecidedBy::Rule(number) = event.by else {
            return None;
        };
        let place = self.policy.places.get(usize::from(number))?;
        Some(self.policy.rules[place.rule].name.clone())
    }

    /// The event as everybody reads it; `None`: nobody wants to know. `is_asked`: somebody
    /// is asked about it.
    pub(super) fn describe(&self, event: &IdentityEvent, is_asked: bool) -> Option<Event> {
        let rule = match event.by {
            DecidedBy::Rule(_) => self.rule_name(event)?.to_string(),
            DecidedBy::Default => "default".to_owned(),
            DecidedBy::Unknown => "unknown".to_owned(),
            DecidedBy::Kind => "kind of socket".to_owned(),
        };
        let is_cut = event.kind == IdentityEventKind::Cut;
        let is_denied =
            is_cut || event.kind == IdentityEventKind::Denied || (waits(event) && !is_asked);
        let program = event
            .holder
            .and_then(|handle| self.programs.by_handle(handle));
        let flow = Flow {
            is_outward: event.is_out,
            protocol: Protocols(event.protocol),
            peer: event.peer.to_canonical(),
            port: (event.port != 0).then_some(event.port),
            netns: event.netns,
        };
        let holders: Vec<_> = program
            .map(|program| program.read.program.clone())
            .into_iter()
            .collect();
        let logged = self.policy.logged(&holders, &flow).next();
        let is_learned =
            self.policy.unknown == Unknown::Learn && !matches!(event.by, DecidedBy::Rule(_));
        let rule = match logged {
            Some(log) if !is_denied => log.name.to_string(),
            None if !is_denied && !is_learned && !is_asked => return None,
            _ => rule,
        };
        let exe = program.and_then(|program| program.read.program.exe.clone());
        let path = match &exe {
            Some(exe) => exe.path.clone(),
            None => {
                let known = event.executable.and_then(|key| self.executables.path(key));
                let asked = || fs::read_link(format!("/proc/{}/exe", event.pid));
                known.map_or_else(|| asked().unwrap_or_default(), Path::to_owned)
            }
        };
        let peer = event.peer.to_canonical();
        let port = match event.port {
            0 => String::new(),
            port => format!(" port {port}"),
        };
        let way = match (is_cut, event.is_out) {
            (true, _) => "from",
            (false, true) => "to",
            (false, false) => "from",
        };
        let done = match (is_denied, self.observe, logged.is_some()) {
            _ if is_asked => "waits to be allowed",
            (true, ..) if is_cut => "cut off",
            (true, false, _) => "denied",
            (true, true, _) => "would be denied",
            (false, _, true) => "logged",
            (false, _, false) => "learned",
        };
        let told = format!(
            "{} (pid {}) {done} {way} {peer}{port}, {rule}",
            path.display(),
            event.pid
        );
        let mut out = Event::new(Kind::App, Timestamp::now(), told).about(Prefix::host(peer));
        out.actor = Some(Actor {
            path: path.to_string_lossy().into_owned(),
            sha256: exe
                .and_then(|exe| exe.digest)
                .map(|digest| digest.to_string()),
            aggregate: program
                .and_then(|program| program.read.program.aggregate())
                .map(|digest| digest.to_string()),
            pid: event.pid,
            uid: event.uid,
            parents: process::parents(event.pid)
                .into_iter()
                .map(|(pid, path)| format!("{pid} {path}"))
                .collect(),
            cgroup: cgroup_of(event.pid)
                .or_else(|| program.map(|program| program.read.program.cgroup.clone()))
                .unwrap_or_default(),
            rule,
            verdict: match (event.passes, is_cut) {
                (true, _) => "allow",
                _ if is_asked => "ask",
                (false, true) => "cut",
                (false, false) => "deny",
            },
            direction: if event.is_out { "out" } else { "in" },
            protocol: protocol_name(event.protocol),
            port: event.port,
        });
        Some(out)
    }
}

/// By what it is told apart from others while weir learns.
fn key_of(holder: &KnownProgram) -> Option<ProgramKey> {
    let program = &holder.read.program;
    let exe = program.exe.as_ref()?;
    Some(ProgramKey {
        path: exe.path.to_string_lossy().into_owned(),
        digest: exe.digest,
        script: script_file(program).map(|path| path.to_string_lossy().into_owned()),
    })
}

pub(super) fn protocol_name(protocol: u8) -> &'static str {
    let all = Protocols::ALL.into_iter();
    let mut fitting = all.filter(|(_, bit)| bit.0 == protocol);
    fitting.next().map_or("other", |(name, _)| name)
}

//! Who holds a socket, what the kernel has decided about it and by which rule, and what the
//! rules say of each holder by itself. Sockets of every network namespace, and of every
//! protocol, are found by the descriptors that processes have; those that nobody has a
//! descriptor of by the kernel's tables of TCP and UDP.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;
use weir_bpf::identity::{
    Decided, DecidedBy, Handle, Identity, ListedSocket, SocketFlow, SocketRecord,
};
use weir_identity::{
    Container, Digest, Object, Program, Protocols,
    decision::{DecidedBy as Says, Flow, Holder},
    policy::Policy,
    split_at_unit,
};

use super::{
    Apps, State,
    asked_socket::{AskedSocket, Fit},
    containers::group_of,
    namespaces,
    objects::NoDigest,
    programs::KnownProgram,
    why::ANSWERS_WITHIN,
};

/// Sockets that are told of; of more it is said how many there are.
const MAX_SOCKETS: usize = 64;
/// Descriptors of one socket, and processes in all, that are looked at.
const MAX_DESCRIPTORS: usize = 256;
const MAX_PROCESSES: usize = 256;
/// Flows of datagrams of all these sockets that are told of.
const MAX_FLOWS: usize = 256;

/// What is known of the sockets that were asked about.
#[derive(Debug, Clone, Serialize)]
pub struct WhySockets {
    /// What was asked about, as it is read.
    pub asked: String,
    /// At most 64.
    pub sockets: Vec<WhySocket>,
    /// So many more there are.
    pub left_out: usize,
    /// Not all processes were looked at within two seconds: programs of the others are those that
    /// the kernel knows, or not known.
    pub gave_up: bool,
    /// Where no rule holds.
    pub default: &'static str,
    /// Of a program that is not known yet, where a rule may be about it.
    pub unknown: &'static str,
}

/// A socket, its holders, and what rules say of it.
#[derive(Debug, Clone, Serialize)]
pub struct WhySocket {
    /// The kind of socket, in the configuration's word: `tcp`.
    pub protocol: &'static str,
    /// As ss(8) has it, in a word: `listening`, `established`.
    pub state: &'static str,
    /// The own address and port; of a raw socket the protocol stands for the port.
    pub local: SocketAddr,
    /// The peer; `None`: it is not connected.
    pub remote: Option<SocketAddr>,
    /// The number that `/proc/PID/fd` has; `None`: no process has a descriptor.
    pub inode: Option<u64>,
    /// The network namespace.
    pub netns: NetworkNamespace,
    /// The rules are asked about it; false: it is beyond the control group of `[app]`, or was
    /// there before, and no process has a descriptor.
    pub is_judged: bool,
    /// What the kernel has decided about the connection; `None`: nothing yet, or it is none.
    pub decided: Option<SocketVerdict>,
    /// `out`: the program has begun the connection, or begins flows; else `in`.
    pub direction: &'static str,
    /// What the rules say as things are, of all holders together; several where that depends on
    /// the peer, the last one for everybody else.
    pub rules: Vec<RuleForPeers>,
    /// Programs that have used it or may use it.
    pub holders: Vec<SocketHolder>,
    /// There are more holders than are remembered: they count as a program that is not known.
    pub is_crowded: bool,
    /// Flows of datagrams, with what the kernel has decided about each.
    pub flows: Vec<WhyFlow>,
    /// There are more.
    pub has_more_flows: bool,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkNamespace {
    /// The inode by which /proc/PID/ns/net shows the namespace.
    pub inode: u64,
    /// The daemon itself is in this namespace.
    pub is_own: bool,
    /// As ip-netns(8) calls it.
    pub name: Option<String>,
}

/// What the kernel has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketVerdict {
    /// `allow`, `deny` or `wait`.
    pub verdict: &'static str,
    /// The rule, `default` or `unknown`; `None`: one of rules that are in force no more.
    pub rule: Option<Arc<str>>,
    /// By the rules in force; else they are asked at the next packet.
    pub is_current: bool,
}

/// What a rule says, and of whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleForPeers {
    /// The name of the rule, `default` or `unknown`.
    pub rule: Arc<str>,
    /// The word of the configuration.
    pub verdict: &'static str,
    /// The rule is about every peer; else about those that it names.
    pub is_for_all: bool,
}

/// One program that holds a socket.
#[derive(Debug, Clone, Serialize)]
pub struct SocketHolder {
    /// The executable; `None`: it is not known who that is.
    pub exe: Option<Object>,
    /// The SHA-256 of the whole.
    pub aggregate: Option<Digest>,
    /// The package whose record has the executable, if a rule asks for packages.
    pub package: Option<String>,
    /// The effective user that runs the program.
    pub uid: Option<u32>,
    /// The control group.
    pub cgroup: String,
    /// The systemd unit, if the control group is one.
    pub unit: Option<String>,
    /// The number of the container, if the control group is one.
    pub container: Option<String>,
    /// Its labels, if a rule asks for containers.
    pub labels: Container,
    /// The processes that have a descriptor; none: they have ended, or closed it.
    pub processes: Vec<HoldingProcess>,
    /// The kernel counts it as a holder.
    pub is_noted: bool,
    /// What the rules say of it alone for what it begins.
    pub out: Vec<RuleForPeers>,
    /// What the rules say of it alone for what others begin.
    #[serde(rename = "in")]
    pub incoming: Vec<RuleForPeers>,
}

/// A process with descriptors of a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HoldingProcess {
    /// The number of the process.
    pub pid: u32,
    /// The numbers of its descriptors.
    pub descriptors: Vec<u32>,
}

/// A flow of datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhyFlow {
    /// The other side.
    pub peer: SocketAddr,
    /// `out`: the program has begun it; else `in`.
    pub direction: &'static str,
    /// What the kernel has decided.
    #[serde(flatten)]
    pub decided: SocketVerdict,
}

/// A socket, and who has descriptors of it.
struct Found {
    socket: ListedSocket,
    processes: BTreeMap<u32, BTreeSet<u32>>,
}

/// The sockets that fit, by their cookies, and those that are left out.
#[derive(Default)]
struct Finds {
    by_fit: BTreeMap<Fit, (BTreeMap<u64, Found>, BTreeSet<u64>)>,
}

impl Finds {
    fn add(&mut self, asked: &AskedSocket, socket: ListedSocket) {
        let Some(fit) = asked.fit(&socket) else {
            return;
        };
        let (found, left_out) = self.by_fit.entry(fit).or_default();
        if !found.contains_key(&socket.cookie) && found.len() == MAX_SOCKETS {
            left_out.insert(socket.cookie);
            return;
        }
        let descriptor = socket.descriptor;
        let one = found.entry(socket.cookie).or_insert_with(|| Found {
            socket,
            processes: BTreeMap::new(),
        });
        if let Some((pid, number)) = descriptor {
            let count: usize = one.processes.values().map(BTreeSet::len).sum();
            if count < MAX_DESCRIPTORS {
                one.processes.entry(pid).or_default().insert(number);
            }
        }
    }

    /// The sockets that fit best, and how many more there are.
    fn best(mut self) -> (Vec<Found>, usize) {
        let best = self.by_fit.pop_last();
        let (found, left_out) = best.map(|(_, best)| best).unwrap_or_default();
        (found.into_values().collect(), left_out.len())
    }
}

/// The sockets that are asked about, and how many there are beyond those.
fn find(identity: &Identity, asked: &AskedSocket) -> Result<(Vec<Found>, usize), weir_bpf::Error> {
    let mut finds = Finds::default();
    identity.descriptors(&mut |socket| finds.add(asked, socket))?;
    let finds = Mutex::new(finds);
    let listed = namespaces::in_each(|| {
        identity.sockets_here(&mut |socket| {
            let mut finds = finds.lock().unwrap_or_else(PoisonError::into_inner);
            finds.add(asked, socket);
        })
    });
    let found = finds.into_inner().unwrap_or_else(PoisonError::into_inner);
    let found = found.best();
    match listed {
        // Those with a descriptor are found.
        Err(error) if found.0.is_empty() => Err(error),
        _ => Ok(found),
    }
}

fn state_name(kind: Protocols, state: u8, is_connected: bool) -> &'static str {
    if kind != Protocols::TCP {
        return match is_connected {
            true => "connected",
            false => "not connected",
        };
    }
    match state {
        1 => "established",
        2 => "connecting (SYN-SENT)",
        3 | 12 => "being accepted (SYN-RECV)",
        4 => "closing (FIN-WAIT-1)",
        5 => "closing (FIN-WAIT-2)",
        6 => "closed (TIME-WAIT)",
        8 => "closed by the peer (CLOSE-WAIT)",
        9 => "closing (LAST-ACK)",
        10 => "listening",
        11 => "closing (CLOSING)",
        _ => "not connected",
    }
}

fn unit_of(cgroup: &str) -> Option<String> {
    // What is below it is whatever somebody calls it.
    let (own, _) = split_at_unit(cgroup);
    let mut parts = own.trim_end_matches('/').rsplit('/');
    let is_unit = |part: &&str| {
        [".service", ".scope", ".socket"]
            .iter()
            .any(|kind| part.ends_with(kind))
    };
    parts.find(is_unit).map(str::to_owned)
}

fn word(is_out: bool) -> &'static str {
    match is_out {
        true => "out",
        false => "in",
    }
}

fn name_of(policy: &Policy, by: Says) -> Arc<str> {
    match by {
        Says::Place(number) => {
            let place = policy.places.get(number);
            place.map_or_else(
                || "default".into(),
                |place| policy.rules[place.rule].name.clone(),
            )
        }
        Says::Default => "default".into(),
        Says::Unknown => "unknown".into(),
    }
}

fn rules_for(
    policy: &Policy,
    holders: &[Holder],
    about: &Found,
    is_outward: bool,
) -> Vec<RuleForPeers> {
    let socket = &about.socket;
    let kind = Protocols(socket.kind);
    let has_port = [Protocols::TCP, Protocols::UDP].contains(&kind);
    let is_connected = socket.peer.port() != 0;
    let port = match is_outward {
        true => socket.peer.port(),
        false => socket.own.port(),
    };
    let flow = Flow {
        is_outward,
        protocol: kind,
        peer: socket.peer.ip(),
        port: (has_port && (is_connected || !is_outward)).then_some(port),
        netns: socket.netns,
    };
    let decided = match is_connected {
        true => vec![(policy.decide(holders, &flow), true)],
        false => policy.decide_for_any_peer(holders, &flow),
    };
    let decided = decided
        .into_iter()
        .map(|(decision, is_for_all)| RuleForPeers {
            rule: name_of(policy, decision.by),
            verdict: decision.verdict.name(),
            is_for_all,
        });
    decided.collect()
}

/// The handle of a process's program, and who that is, as far as that is known.
type Read = (Option<Handle>, Option<Program>);

/// The processes that were looked at.
#[derive(Default)]
struct Reads {
    by_pid: BTreeMap<u32, Read>,
    /// There was no time for one, or for its files.
    gave_up: bool,
}

/// A holder, and by what the kernel knows it.
struct Held {
    program: Option<Program>,
    processes: Vec<HoldingProcess>,
    is_noted: bool,
}

impl State {
    fn verdict_of(&self, decided: Decided, epoch: u32) -> SocketVerdict {
        let is_current = decided.epoch == epoch;
        let rule = match decided.by {
            DecidedBy::Rule(number) => is_current
                .then(|| self.policy.places.get(usize::from(number)))
                .flatten()
                .map(|place| self.policy.rules[place.rule].name.clone()),
            DecidedBy::Default => Some("default".into()),
            DecidedBy::Unknown => Some("unknown".into()),
            DecidedBy::Kind => Some("kind of socket".into()),
        };
        SocketVerdict {
            verdict: match (decided.passes, decided.waits) {
                (true, _) => "allow",
                (false, true) => "wait",
                (false, false) => "deny",
            },
            rule,
            is_current,
        }
    }

    /// Who a process is, and by which handle the kernel knows it; nothing: it is gone, or too
    /// many were looked at. A server may have very many of the sockets.
    fn read_once(&mut self, pid: u32, reads: &mut Reads) -> Result<Read, weir_bpf::Error> {
        if let Some(read) = reads.by_pid.get(&pid) {
            return Ok(read.clone());
        }
        if reads.by_pid.len() == MAX_PROCESSES {
            return Ok((None, None));
        }
        if self.is_too_late() {
            reads.gave_up = true;
            return Ok((None, None));
        }
        let read = match self.read(pid)? {
            Some((seen, read)) => {
                let known = self.programs.by_key(&seen.key);
                let is_whole = !matches!(read.without, Some((_, NoDigest::Later)));
                reads.gave_up |= !is_whole;
                let program = match is_whole {
                    true => Some(read.program),
                    // What it is was found when there was time.
                    false => known.map(|known| known.read.program.clone()),
                };
                (known.map(KnownProgram::handle), program)
            }
            None => {
                reads.gave_up |= self.is_too_late();
                (None, None)
            }
        };
        reads.by_pid.insert(pid, read.clone());
        Ok(read)
    }

    /// The programs that hold it: of the processes that have descriptors, and those that the
    /// kernel has noted.
    fn held(&mut self, about: &Found, reads: &mut Reads) -> Result<Vec<Held>, weir_bpf::Error> {
        let mut held: Vec<(Option<Handle>, Held)> = Vec::new();
        for (pid, descriptors) in &about.processes {
            let process = HoldingProcess {
                pid: *pid,
                descriptors: descriptors.iter().copied().collect(),
            };
            let (handle, program) = self.read_once(*pid, reads)?;
            let same = held.iter_mut().find(|(other, one)| {
                one.program.is_some() && one.program == program
                    || handle.is_some() && *other == handle
            });
            match same {
                Some((_, one)) => one.processes.push(process),
                None => held.push((
                    handle,
                    Held {
                        program,
                        processes: vec![process],
                        is_noted: false,
                    },
                )),
            }
        }
        let Some(SocketRecord {
            holders, pending, ..
        }) = &about.socket.record
        else {
            return Ok(held.into_iter().map(|(_, held)| held).collect());
        };
        let pending = pending.map(|key| self.programs.by_key(&key).map(|known| known.handle()));
        let noted = holders.iter().map(|handle| Some(*handle)).chain(pending);
        for handle in noted {
            let known = handle.and_then(|handle| self.programs.by_handle(handle));
            let program = known.map(|known| known.read.program.clone());
            let same = held.iter_mut().find(|(other, one)| {
                handle.is_some() && *other == handle
                    // Two processes of one program have one handle, and users of their own.
                    || one.program.is_some()
                        && one.program.as_ref().map(whole) == program.as_ref().map(whole)
            });
            match same {
                Some((_, one)) => one.is_noted = true,
                None => held.push((
                    handle,
                    Held {
                        program,
                        processes: Vec::new(),
                        is_noted: true,
                    },
                )),
            }
        }
        Ok(held.into_iter().map(|(_, held)| held).collect())
    }

    fn why_socket(
        &mut self,
        about: &Found,
        flows: &[SocketFlow],
        reads: &mut Reads,
        names: &BTreeMap<u64, String>,
    ) -> Result<WhySocket, weir_bpf::Error> {
        let held = self.held(about, reads)?;
        let epoch = self.identity.epoch()?;
        let socket = &about.socket;
        let kind = Protocols(socket.kind);
        let record = socket.record.as_ref();
        let is_connected = socket.peer.port() != 0;
        let is_out = record.is_some_and(|record| record.is_out);
        let is_listening = kind == Protocols::TCP && socket.state == 10;
        let bits = |program: &Option<Program>| match program {
            Some(program) => Holder::Known(self.policy.met_by(program)),
            None => Holder::Unknown,
        };
        let mut all: Vec<_> = held.iter().map(|held| bits(&held.program)).collect();
        let is_crowded = record.is_some_and(|record| record.is_crowded);
        if is_crowded {
            all.push(Holder::Unknown);
        }
        let decided = record.and_then(|record| record.decided);
        let decided = decided.filter(|_| kind == Protocols::TCP && !is_listening);
        let holders = held.iter().map(|held| {
            let program = held.program.as_ref();
            let cgroup = program.map_or_else(String::new, |program| program.cgroup.clone());
            let alone = [bits(&held.program)];
            SocketHolder {
                exe: program.and_then(|program| program.exe.clone()),
                aggregate: program.and_then(Program::aggregate),
                package: program.and_then(|program| program.package.clone()),
                uid: program.map(|program| program.uid),
                unit: unit_of(&cgroup),
                container: group_of(&cgroup).map(|(_, id)| id.to_owned()),
                labels: program.map_or(Container::None, |program| program.container.clone()),
                cgroup,
                processes: held.processes.clone(),
                is_noted: held.is_noted,
                out: rules_for(&self.policy, &alone, about, true),
                incoming: rules_for(&self.policy, &alone, about, false),
            }
        });
        let inode = socket.netns;
        Ok(WhySocket {
            protocol: super::told::protocol_name(socket.kind),
            state: state_name(kind, socket.state, is_connected),
            local: socket.own,
            remote: is_connected.then_some(socket.peer),
            inode: socket.inode,
            netns: NetworkNamespace {
                inode,
                is_own: namespaces::own() == Some(inode),
                name: names.get(&inode).cloned(),
            },
            is_judged: record.is_some(),
            decided: decided.map(|decided| self.verdict_of(decided, epoch)),
            direction: word(is_out),
            rules: match record {
                Some(_) => rules_for(&self.policy, &all, about, is_out),
                None => Vec::new(),
            },
            holders: holders.collect(),
            is_crowded,
            flows: flows
                .iter()
                .map(|flow| WhyFlow {
                    peer: flow.peer,
                    direction: word(flow.is_out),
                    decided: self.verdict_of(flow.decided, epoch),
                })
                .collect(),
            has_more_flows: false,
        })
    }
}

/// By what two processes are one program.
fn whole(program: &Program) -> (Option<&Object>, Option<Digest>) {
    (program.exe.as_ref(), program.aggregate())
}

impl Apps {
    /// Who holds these sockets, and what was decided about each; `None`: there is no `[app]`.
    ///
    /// # Errors
    /// The kernel refuses to go through its sockets.
    pub fn why_sockets(&self, asked: &AskedSocket) -> Result<Option<WhySockets>, weir_bpf::Error> {
        let identity = self.state().as_ref().map(|state| state.identity.clone());
        let Some(identity) = identity else {
            return Ok(None);
        };
        // Without the lock: there may be any number.
        let (found, left_out) = find(&identity, asked)?;
        let cookies = found
            .iter()
            .filter(|found| found.socket.kind != Protocols::TCP.0)
            .map(|found| found.socket.cookie);
        let cookies: Vec<_> = cookies.collect();
        let (flows, has_more_flows) = match cookies.is_empty() {
            true => (Vec::new(), false),
            false => identity.flows_of(&cookies, MAX_FLOWS),
        };
        let names = namespaces::names();
        let mut guard = self.state();
        let Some(state) = &mut *guard else {
            return Ok(None);
        };
        let mut reads = Reads::default();
        let sockets = state.within(ANSWERS_WITHIN, |state| {
            let sockets = found.iter().map(|found| {
                let cookie = found.socket.cookie;
                let own = flows.iter().filter(|(of, _)| *of == cookie);
                let own: Vec<_> = own.map(|(_, flow)| flow.clone()).collect();
                let mut why = state.why_socket(found, &own, &mut reads, &names)?;
                why.has_more_flows = has_more_flows && cookies.contains(&cookie);
                Ok(why)
            });
            sockets.collect::<Result<Vec<_>, weir_bpf::Error>>()
        })?;
        Ok(Some(WhySockets {
            asked: asked.to_string(),
            sockets,
            left_out,
            gave_up: reads.gave_up,
            default: state.policy.default.name(),
            unknown: state.policy.unknown.name(),
        }))
    }
}

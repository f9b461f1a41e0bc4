//! The kernel's decision against the reference one (`weir_identity::decision`): random rules,
//! sockets with one and two holders that are known, known by their executable or not at all,
//! and real packets in both directions, IPv4 and IPv6.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Lines, Write},
    net::{IpAddr, SocketAddr, UdpSocket},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use weir_bpf::identity::{
    self as kernel, Executable, ExecutableBits, Handle, Policy as KernelPolicy, Unknown, Verdict,
};
use weir_core::{Prefix, geofence::Direction};
use weir_identity::{
    Protocols, Verdict as Said,
    decision::{DecidedBy, Flow, Holder},
    policy::{self, Networks, Place, Policy, RuleBits},
};
use weir_netlab::{Child, Namespace, Net};
use weir_testkit::agents::BIND;

use super::{LONG, TestCgroup, policy};

const PYTHON: &str = "/usr/bin/python3";
/// So many random sets of rules, and packets for each.
const POLICIES: u64 = 250;
const FLOWS: usize = 24;

const PEERS: [&str; 6] = [
    "127.0.1.1",
    "127.0.1.2",
    "127.0.2.1",
    "fd00:5::1:1",
    "fd00:5::1:2",
    "fd00:5::2:1",
];
const NETWORKS: [&str; 9] = [
    "127.0.1.0/24",
    "127.0.2.0/24",
    "127.0.1.1/32",
    "0.0.0.0/0",
    "fd00:5::1:0/112",
    "fd00:5::2:0/112",
    "fd00:5::1:1/128",
    "::/0",
    "192.0.2.0/24",
];
const PORTS: std::ops::Range<u16> = 4001..4009;

/// Makes a socket for each line, has the other program send on it as well if there are two
/// holders, and says whether it may send, or receives what has been sent to it.
const AGENT: &str = r#"
import array, socket, subprocess, sys
other, helper = sys.argv[1:3]
a, b = socket.socketpair()
second = subprocess.Popen([other, '-c', helper, str(b.fileno())], pass_fds=[b.fileno()])
print(second.pid, flush=True)
for line in sys.stdin:
    way, kind, peer, port, two, wait = line.split()
    v6 = ':' in peer
    s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    s.setblocking(False)
    if way == 'in': bind(s, int(port))
    if two == 'two':
        to = '::1' if v6 else '127.0.0.1'
        a.sendmsg([to.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno()]))])
        a.recv(1)
    if way == 'in':
        print('bound', flush=True); sys.stdin.readline(); s.settimeout(float(wait))
        try: print('passed' if s.recv(9) == b'asked' else 'other', flush=True)
        except TimeoutError: print('denied', flush=True)
    else:
        try: s.connect((peer, int(port))) if kind == 'tcp' else s.sendto(b'x', (peer, int(port))); print('passed', flush=True)
        except OSError as e: print({errno.EPERM: 'denied', errno.EINPROGRESS: 'passed', errno.ECONNREFUSED: 'passed'}.get(e.errno, e), flush=True)
    s.close()
"#;

const HELPER: &str = r#"
import array, socket, sys
b = socket.socket(fileno=int(sys.argv[1]))
while True:
    told, passed, _, _ = b.recvmsg(100, 100)
    if not told: break
    s = socket.socket(fileno=array.array('i', passed[0][2][:4])[0])
    try: s.sendto(b'h', (told.decode(), 9))
    except OSError: pass
    s.close(); b.send(b'.')
"#;

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn port(&mut self) -> u16 {
        PORTS.start + self.below(PORTS.len()) as u16
    }

    fn networks(&mut self) -> Option<Networks> {
        let count = self.below(4);
        let prefixes: Vec<Prefix> = (0..count)
            .map(|_| self.one(&NETWORKS).parse().unwrap())
            .collect();
        (count > 0).then(|| Networks {
            prefixes: prefixes.into(),
            outside: self.below(4) == 0,
        })
    }

    fn place(&mut self, netns: u64) -> Place {
        let ports = (0..self.below(3)).map(|_| {
            let low = self.port();
            (low, low + self.below(3) as u16)
        });
        Place {
            rule: 0,
            ports: ports.collect(),
            verdict: *self.one(&[Said::Allow, Said::Allow, Said::Drop, Said::Reject]),
            has_who: self.below(4) > 0,
            direction: *self.one(&[Direction::Both, Direction::In, Direction::Out]),
            protocols: Protocols(*self.one(&[0, 0, 1, 2, 3, 4])),
            to: self.networks(),
            from: self.networks(),
            netns: *self.one(&[None, None, None, Some(netns), Some(netns + 1)]),
        }
    }

    /// What one meets of these places; who meets one that asks for nothing is everybody.
    fn bits(&mut self, places: &[Place]) -> RuleBits {
        let all = places.iter().enumerate();
        let met = all.filter(|(_, place)| !place.has_who || self.below(2) == 0);
        met.map(|(number, _)| number).collect()
    }
}

/// As the daemon gives them to the kernel.
fn rule_of(place: &Place) -> kernel::Rule {
    let networks = |networks: &Option<Networks>| {
        networks.as_ref().map(|networks| kernel::Networks {
            prefixes: networks.prefixes.clone(),
            outside: networks.outside,
        })
    };
    kernel::Rule {
        verdict: verdict_of(place.verdict),
        has_who: place.has_who,
        is_out: place.direction != Direction::In,
        is_in: place.direction != Direction::Out,
        protocols: place.protocols.0,
        ports: place.ports.clone(),
        outward: networks(&place.to),
        inward: networks(&place.from),
        netns: place.netns.unwrap_or(0),
    }
}

fn verdict_of(verdict: Said) -> Verdict {
    match verdict {
        Said::Allow | Said::Log => Verdict::Allow,
        Said::Drop => Verdict::Drop,
        Said::Reject => Verdict::Reject,
    }
}

fn kernel_bits(bits: &RuleBits) -> kernel::RuleBits {
    bits.iter().collect()
}

/// One of the two programs, as the kernel has it.
struct TestProgram {
    handle: Handle,
    executable: Executable,
}

struct Agent {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

fn begin(group: &TestCgroup, space: &Namespace, other: &str) -> Agent {
    let mut command = group.command(PYTHON, &["-c", &[BIND, AGENT].concat(), other, HELPER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = space.spawn(command).unwrap();
    Agent {
        input: child.inner().stdin.take().unwrap(),
        lines: BufReader::new(child.inner().stdout.take().unwrap()).lines(),
        child,
    }
}

/// What the test does with one socket.
struct Trial {
    is_out: bool,
    is_tcp: bool,
    peer: &'static str,
    port: u16,
    has_two: bool,
}

impl Trial {
    fn random(random: &mut Random) -> Self {
        let is_out = random.below(3) > 0;
        let is_tcp = is_out && random.below(4) == 0;
        Self {
            is_out,
            is_tcp,
            peer: PEERS[random.below(PEERS.len())],
            port: random.port(),
            has_two: !is_tcp && random.below(2) == 0,
        }
    }

    /// Whether the packet passes. `expected`: what to wait for.
    fn passes(
        &self,
        agent: &mut Agent,
        senders: &BTreeMap<&str, UdpSocket>,
        expected: bool,
    ) -> bool {
        let way = if self.is_out { "out" } else { "in" };
        let kind = if self.is_tcp { "tcp" } else { "udp" };
        let two = if self.has_two { "two" } else { "one" };
        let (peer, port) = (self.peer, self.port);
        // A packet over loopback is there at once, unless the processor is busy.
        let wait = if expected { "2" } else { "0.004" };
        agent.say(&format!("{way} {kind} {peer} {port} {two} {wait}"));
        if !self.is_out {
            assert_eq!(agent.line(), "bound");
            let to = if peer.contains(':') {
                "::1"
            } else {
                "127.0.0.1"
            };
            let to: IpAddr = to.parse().unwrap();
            let sent = senders[peer].send_to(b"asked", SocketAddr::new(to, port));
            sent.unwrap();
            agent.say("");
        }
        match agent.line().as_str() {
            "passed" => true,
            "denied" => false,
            other => panic!("{way} {kind} {peer} {port} {two}: {other}"),
        }
    }
}

#[test]
fn root_the_kernel_decides_as_the_reference_does() {
    let Some(mut group) = TestCgroup::new("reference", &policy(Vec::new()), &[]) else {
        return;
    };
    let net = Net::new().unwrap();
    let space = net.namespace("identity").unwrap();
    space.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let six = PEERS.iter().filter(|peer| peer.contains(':'));
    let six: Vec<_> = six.map(|peer| peer.parse().unwrap()).collect();
    space.add_to_loopback(&six).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other").to_str().unwrap().to_owned();
    // The same program in another file, which no child of another test has open.
    let copied = Command::new("sh")
        .args([
            "-c",
            "cp \"$1\" \"$2\" && echo >> \"$2\"",
            "sh",
            PYTHON,
            &other,
        ])
        .status();
    assert!(copied.unwrap().success());
    let mut agent = begin(&group, &space, &other);
    let pids = [agent.child.pid(), agent.line().parse().unwrap()];
    let senders: BTreeMap<_, _> = PEERS
        .iter()
        .map(|peer| {
            let addr: IpAddr = peer.parse().unwrap();
            let socket = space.enter(|| UdpSocket::bind((addr, 0)).unwrap());
            (*peer, socket.unwrap())
        })
        .collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    // Both send, and are told to the kernel: from then on nobody tells it more.
    let until = Instant::now() + LONG;
    let named = |group: &TestCgroup| {
        let named: BTreeMap<_, _> = group.identity.named().into_iter().collect();
        pids.map(|pid| {
            let seen = group.identity.look_at(pid).unwrap().unwrap();
            Some(TestProgram {
                handle: *named.get(&seen.key)?,
                executable: seen.executable.unwrap(),
            })
        })
    };
    loop {
        let first = Trial {
            is_out: true,
            is_tcp: false,
            peer: PEERS[0],
            port: PORTS.start,
            has_two: true,
        };
        first.passes(&mut agent, &senders, false);
        if named(&group).iter().all(Option::is_some) {
            break;
        }
        assert!(Instant::now() < until, "they do not become known");
    }
    group.stop_telling();
    // Only now: who was asked about twice has another handle by the second answer.
    let programs = named(&group).map(|program| program.expect("both are known"));
    let netns = std::fs::read_link(format!("/proc/{}/ns/net", pids[0])).unwrap();
    let netns = netns
        .to_str()
        .unwrap()
        .trim_matches(|c: char| !c.is_ascii_digit());
    let netns: u64 = netns.parse().unwrap();

    let (mut seen, mut passed) = (BTreeMap::<_, u32>::new(), 0);
    for number in 0..POLICIES {
        // Some have rules in several words of bits.
        let count: usize = *random.one(&[1, 3, 6, 6, 70, 200]);
        let mut places: Vec<_> = (0..count).map(|_| random.place(netns)).collect();
        // Where there are several words the last ones decide: the others are for nobody here.
        if let Some(others) = count.checked_sub(6).filter(|_| count > 64) {
            let elsewhere = places[..others].iter_mut();
            elsewhere.for_each(|place| place.netns = Some(netns + 1));
        }
        let reference = Policy {
            rules: Vec::new(),
            places,
            logs: Vec::new(),
            default: *random.one(&[Said::Allow, Said::Drop, Said::Reject]),
            asks: false,
            unknown: *random.one(&[
                weir_identity::Unknown::Allow,
                weir_identity::Unknown::Learn,
                weir_identity::Unknown::Drop,
            ]),
            unresolved: Vec::new(),
        };
        let in_kernel = KernelPolicy {
            rules: reference.places.iter().map(rule_of).collect(),
            default: verdict_of(reference.default),
            unknown: match reference.unknown {
                weir_identity::Unknown::Allow => Unknown::Allow,
                weir_identity::Unknown::Learn => Unknown::Learn,
                weir_identity::Unknown::Drop => Unknown::Drop,
            },
            ..policy(Vec::new())
        };
        // How each of the two is known.
        let (mut known, mut executables) = (Vec::new(), Vec::new());
        let holders = programs.each_ref().map(|program| {
            let bits = random.bits(&reference.places);
            match random.below(4) {
                0 => Holder::Unknown,
                1 => {
                    let mut may = bits;
                    random
                        .bits(&reference.places)
                        .iter()
                        .for_each(|n| may.insert(n));
                    let both = ExecutableBits {
                        meets: kernel_bits(&bits),
                        may: kernel_bits(&may),
                    };
                    executables.push((program.executable, both));
                    Holder::Executable(policy::ExecutableBits { meets: bits, may })
                }
                _ => {
                    known.push((program.handle, kernel_bits(&bits)));
                    Holder::Known(bits)
                }
            }
        });
        let put = group.identity.put_policy(&in_kernel, &known, &executables);
        put.unwrap();
        for nth in 0..FLOWS {
            let trial = Trial::random(&mut random);
            let flow = Flow {
                is_outward: trial.is_out,
                protocol: if trial.is_tcp {
                    Protocols::TCP
                } else {
                    Protocols::UDP
                },
                peer: trial.peer.parse().unwrap(),
                port: Some(trial.port),
                netns,
            };
            // Of several who are not known the kernel remembers one, which has used the
            // socket last: who made it and sends, or else who has sent in between.
            let is_known = |holder: &Holder| matches!(holder, Holder::Known(_));
            let of_flow = match (trial.has_two, holders.each_ref().map(is_known)) {
                (false, _) => vec![holders[0]],
                (true, [false, false]) if trial.is_out => vec![holders[0], Holder::Unknown],
                (true, [false, false]) => vec![Holder::Unknown, holders[1]],
                (true, _) => holders.to_vec(),
            };
            let decision = reference.decide(&of_flow, &flow);
            // What waits to be known may connect, and none of its packets leaves.
            let waits = decision.by == DecidedBy::Unknown && decision.verdict != Said::Allow;
            if trial.is_tcp && waits {
                continue;
            }
            let expected = decision.verdict == Said::Allow;
            let passes = trial.passes(&mut agent, &senders, expected);
            // What differs once, and not again, is about the moment and not about the rules.
            let again = (passes != expected).then(|| {
                let before = group.identity.counts().unwrap();
                let again = trial.passes(&mut agent, &senders, expected);
                let seen = group.identity.look_at(pids[0]).unwrap();
                let after = group.identity.counts().unwrap();
                format!("{again}, of {seen:?}, counts {before:?}, then {after:?}")
            });
            assert_eq!(
                passes, expected,
                "policy {number}, flow {nth}: {flow:?} of {of_flow:?}, again {again:?}: {decision:?} by {reference:#?}"
            );
            let by = match decision.by {
                DecidedBy::Place(place) if place >= 64 => "a rule of a later word",
                DecidedBy::Place(_) => "a rule",
                DecidedBy::Default => "default",
                DecidedBy::Unknown => "unknown",
            };
            *seen.entry((by, passes)).or_default() += 1;
            passed += u32::from(passes);
        }
    }
    println!("{seen:?}");
    assert!(passed > 500, "{seen:?}");
    for by in ["a rule", "a rule of a later word", "default", "unknown"] {
        for passes in [true, false] {
            assert!(
                seen.contains_key(&(by, passes)),
                "no {by}, {passes}: {seen:?}"
            );
        }
    }
}

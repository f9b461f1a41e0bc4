//! Random programs against the reference decision (`weir_identity::decision`): processes with
//! random sets of small libraries, users and control groups, which load and unload some on the
//! way; random rules in a real weir.toml, about who and where; sockets of TCP and UDP with one
//! or two holders, in both directions, IPv4 and IPv6. What a process is made of is read here
//! from /proc, and not asked of weir.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
};

use app_host::{Running, TestHost, sha256};
use common::{skipped, soon};
use weir_core::{
    PortRange, Prefix, Protocol, balance::acl::Who, geo::GeoTable, geofence::Direction,
};
use weir_identity::{
    AppConfig, CgroupPattern, Condition, Criterion, Digest, Level, Object, Peer, Peers, Program,
    Protocols, Rule, Unknown, Upgrades, Verdict, Where,
    decision::{DecidedBy, Flow, Holder},
    policy::{Policy, Resolve},
};

const PYTHON: &str = "/usr/bin/python3";
/// Of what is drawn, unless WEIR_TEST_SEED is another number.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const POLICIES: usize = 50;
const FLOWS: usize = 24;
const LIBRARIES: usize = 8;
const AGENTS: usize = 8;
const USERS: [u32; 3] = [0, 65534, 4711];
const GROUPS: [&str; 2] = ["a", "b"];

const PEERS: [&str; 6] = [
    "127.0.1.1",
    "127.0.1.2",
    "127.0.2.1",
    "fd00:5::1:1",
    "fd00:5::1:2",
    "fd00:5::2:1",
];
const NETWORKS: [&str; 8] = [
    "127.0.1.0/24",
    "127.0.2.0/24",
    "127.0.1.1/32",
    "0.0.0.0/0",
    "fd00:5::1:0/112",
    "fd00:5::1:1/128",
    "::/0",
    "192.0.2.0/24",
];
const PORTS: std::ops::Range<u16> = 4001..4009;

/// Does as it is told, a line each: loads and unloads libraries, makes one socket at a time,
/// hands it to another agent, and sends or receives on it.
const AGENT: &str = r#"
import _ctypes, array, os, socket, sys
own, user = sys.argv[1:3]
mail = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); mail.bind(own); os.chmod(own, 0o777)
os.setgid(int(user)); os.setuid(int(user))
loaded, s = {}, None
def did(what):
    try: what(); return 'passed'
    except OSError as e: return {errno.EPERM: 'denied', errno.EINPROGRESS: 'passed', errno.ECONNREFUSED: 'passed'}.get(e.errno, str(e))
print('there', flush=True)
for line in sys.stdin:
    what, *args = line.split()
    told = 'done'
    if what == 'load': loaded[args[0]] = _ctypes.dlopen(args[0], 2)
    elif what == 'unload': _ctypes.dlclose(loaded.pop(args[0]))
    elif what == 'make':
        s = socket.socket(socket.AF_INET6 if args[1] == '6' else socket.AF_INET, socket.SOCK_STREAM if args[0] == 'tcp' else socket.SOCK_DGRAM)
        s.setblocking(False)
        if len(args) > 2: bind(s, int(args[2]))
    elif what == 'give': mail.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno()]))], 0, args[0])
    elif what == 'use':
        _, fds, _, _ = socket.recv_fds(mail, 9, 1); t = socket.socket(fileno=fds[0])
        did(lambda: t.sendto(b'h', (args[0], 9))); t.close()
    elif what == 'connect': told = did(lambda: s.connect((args[0], int(args[1]))))
    elif what == 'send': told = did(lambda: s.sendto(b'x', (args[0], int(args[1]))))
    elif what == 'hear':
        s.settimeout(float(args[0]))
        try: told = 'passed' if s.recv(9) == b'asked' else 'other'
        except TimeoutError: told = 'denied'
    elif what == 'close': s.close()
    print(told, flush=True)
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

    fn some<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let count = 1 + self.below(4);
        (0..count).map(|_| self.one(all).clone()).collect()
    }

    fn port(&mut self) -> u16 {
        PORTS.start + self.below(PORTS.len()) as u16
    }
}

/// Nothing is named that would have to be looked up.
#[derive(Default)]
struct Nobody(GeoTable);

impl Resolve for Nobody {
    fn places(&self) -> &GeoTable {
        &self.0
    }
    fn list(&self, _: &str) -> Option<&[Prefix]> {
        None
    }
    fn addresses(&self, _: &str) -> Option<&[IpAddr]> {
        None
    }
    fn netns(&self, _: &Path) -> Option<u64> {
        None
    }
}

struct Agent {
    running: Running,
    pid: u32,
    mail: PathBuf,
    user: u32,
    group: String,
    loaded: Vec<usize>,
    program: Program,
}

impl Agent {
    fn tell(&mut self, line: &str) -> String {
        self.running.say(line);
        self.running.line()
    }

    fn does(&mut self, line: &str) {
        let told = self.tell(line);
        assert_eq!(told, "done", "{line}");
    }
}

/// Digests of files, each computed once.
#[derive(Default)]
struct Files(BTreeMap<PathBuf, Digest>);

impl Files {
    fn digest(&mut self, path: &Path) -> Digest {
        let text = path.to_str().unwrap();
        let digest = self.0.entry(path.to_owned());
        *digest.or_insert_with(|| sha256(text).parse().unwrap())
    }

    /// Who a process is, by its mappings.
    fn program(&mut self, pid: u32, user: u32, cgroup: &str) -> Program {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mapped = maps.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let perms = fields.nth(1)?;
            let inode = fields.nth(2)?;
            let path = fields.next()?;
            (perms.contains('x') && inode != "0").then(|| PathBuf::from(path))
        });
        let mut paths: Vec<PathBuf> = mapped.collect();
        paths.sort();
        paths.dedup();
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        let mut object = |path: &PathBuf| Object {
            path: path.clone(),
            digest: Some(self.digest(path)),
        };
        Program {
            exe: Some(object(&exe)),
            objects: paths.iter().map(&mut object).collect(),
            uid: user,
            cgroup: cgroup.to_owned(),
            ..Program::default()
        }
    }
}

fn list(values: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<_> = values
        .into_iter()
        .map(|value| format!("{value:?}"))
        .collect();
    format!("[{}]", quoted.join(", "))
}

/// What random rules are made of.
struct Stock {
    executables: Vec<Digest>,
    objects: Vec<Digest>,
    aggregates: Vec<Digest>,
    groups: Vec<String>,
}

impl Stock {
    /// One condition of each kind at most, as a rule has them, with its key and value.
    fn who(&self, random: &mut Random) -> (Vec<Condition>, String) {
        let (mut who, mut text, mut not) = (Vec::new(), String::new(), Vec::new());
        let mut kinds = vec![0, 1, 1, 2, 3, 4];
        for _ in 0..random.below(3) {
            let kind = kinds.remove(random.below(kinds.len()));
            kinds.retain(|other| *other != kind);
            let (key, value, criterion) = match kind {
                0 => {
                    let all = random.some(&self.executables);
                    let text = list(all.iter().map(Digest::to_string));
                    ("exe", text, Criterion::Exe(all))
                }
                1 => {
                    let all = random.some(&self.objects);
                    let text = list(all.iter().map(Digest::to_string));
                    ("object", text, Criterion::Object(all))
                }
                2 => {
                    let all = random.some(&self.aggregates);
                    let text = list(all.iter().map(Digest::to_string));
                    ("aggregate", text, Criterion::Aggregate(all))
                }
                3 => {
                    let all = random.some(&USERS);
                    let text = list(all.iter().map(u32::to_string));
                    ("user", text, Criterion::User(all))
                }
                _ => {
                    let all = random.some(&self.groups);
                    let text = list(all.iter().cloned());
                    let all = all.iter().map(|group| CgroupPattern::new(group).unwrap());
                    ("cgroup", text, Criterion::Cgroup(all.collect()))
                }
            };
            let is_negated = random.below(4) == 0;
            if is_negated {
                not.push(key.to_owned());
            }
            text.push_str(&format!("{key} = {value}\n"));
            who.push(Condition {
                is_negated,
                criterion,
            });
        }
        if !not.is_empty() {
            text.push_str(&format!("not = {}\n", list(not)));
        }
        (who, text)
    }

    fn rule(&self, random: &mut Random, number: usize) -> (Rule, String) {
        let verdict = *random.one(&[
            Verdict::Allow,
            Verdict::Allow,
            Verdict::Drop,
            Verdict::Reject,
        ]);
        let (who, mut text) = self.who(random);
        let mut peers = |random: &mut Random, key: &str| {
            if random.below(3) > 0 {
                return None;
            }
            let networks = random.some(&NETWORKS);
            let all = networks.iter().map(|network| (*network).to_owned());
            text.push_str(&format!("{key} = {}\n", list(all)));
            let entries = networks
                .iter()
                .map(|network| Peer::Known(Who::Prefix(network.parse().unwrap())));
            Some(Peers {
                is_negated: false,
                entries: entries.collect(),
            })
        };
        let (to, from) = (peers(random, "to"), peers(random, "from"));
        let direction = match (&to, &from) {
            (Some(_), None) => Direction::Out,
            (None, Some(_)) => Direction::In,
            (Some(_), Some(_)) => Direction::Both,
            (None, None) => {
                let direction = *random.one(&[Direction::Both, Direction::In, Direction::Out]);
                text.push_str(&format!("direction = {:?}\n", direction.name()));
                direction
            }
        };
        let (mut protocols, mut ports) = (Protocols::default(), Vec::new());
        match random.below(4) {
            0 => {
                let (name, kind) = *random.one(&Protocols::ALL[..2]);
                text.push_str(&format!("protocols = [{name:?}]\n"));
                protocols = kind;
            }
            1 | 2 => {
                for _ in 0..1 + random.below(2) {
                    let low = random.port();
                    ports.push(PortRange {
                        protocol: *random.one(&[Protocol::Tcp, Protocol::Udp]),
                        low,
                        high: low + random.below(3) as u16,
                    });
                }
                // As they are read: in order, and joined.
                let shown = ports.iter().map(ToString::to_string);
                text.push_str(&format!("ports = {}\n", list(shown)));
            }
            _ => (),
        }
        let name = format!("r{number}");
        let text = format!("[app.rules.{name}]\nverdict = {:?}\n{text}", verdict.name());
        let rule = Rule {
            name: name.into(),
            verdict,
            who,
            place: Where {
                direction,
                protocols,
                ports,
                to,
                from,
                netns: None,
            },
            peer: Vec::new(),
        };
        (rule, text)
    }
}

struct World {
    host: TestHost,
    agents: Vec<Agent>,
    libraries: Vec<PathBuf>,
    files: Files,
}

impl World {
    fn new() -> Option<Self> {
        if skipped(&["cc"]) {
            return None;
        }
        let host = TestHost::new("random", "default = \"drop\"\nunknown = \"drop\"\n")?;
        let six = PEERS.iter().filter(|peer| peer.contains(':'));
        let six: Vec<_> = six.map(|peer| peer.parse().unwrap()).collect();
        host.space.add_to_loopback(&six).unwrap();
        let dir = host.host.path("world");
        fs::create_dir(&dir).unwrap();
        // Other users go there, too.
        for path in [host.host.dir.path(), &dir] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(path, mode).unwrap();
        }
        let libraries: Vec<_> = (0..LIBRARIES)
            .map(|number| {
                let library = dir.join(format!("lib{number}.so"));
                let source = dir.join(format!("lib{number}.c"));
                fs::write(
                    &source,
                    format!("int weir_test_{number}(void) {{ return {number}; }}\n"),
                )
                .unwrap();
                let mut command = Command::new("cc");
                command
                    .args(["-shared", "-fPIC", "-o"])
                    .arg(&library)
                    .arg(&source);
                assert!(command.status().unwrap().success());
                library
            })
            .collect();
        // The same program in other files.
        let executables = ["one", "two"].map(|name| host.copy(PYTHON, &format!("world/{name}")));
        let all = [PYTHON.to_owned()].into_iter().chain(executables);
        let all: Vec<_> = all.collect();
        for group in GROUPS {
            fs::create_dir(host.cgroup.join(group)).unwrap();
        }
        let agents = (0..AGENTS).map(|number| {
            let mail = dir.join(format!("{number}.sock"));
            let (user, group) = (USERS[number % 3], GROUPS[number % 2]);
            let enter = format!(
                "echo 0 > {}/cgroup.procs && exec \"$@\"",
                host.cgroup.join(group).display()
            );
            let user_text = user.to_string();
            let mut running = host.begin(&[
                "sh",
                "-c",
                &enter,
                "sh",
                &all[number / 2 % 3],
                "-c",
                &[weir_testkit::agents::BIND, AGENT].concat(),
                mail.to_str().unwrap(),
                &user_text,
            ]);
            assert_eq!(running.line(), "there");
            Agent {
                running,
                pid: 0,
                mail,
                user,
                group: format!("/{}/{group}", host.instance),
                loaded: Vec::new(),
                program: Program::default(),
            }
        });
        let mut agents: Vec<_> = agents.collect();
        // By the sockets that they have: the shell has become the program.
        for group in GROUPS {
            let procs = fs::read_to_string(host.cgroup.join(group).join("cgroup.procs")).unwrap();
            for pid in procs.lines() {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
                let line = String::from_utf8_lossy(&line).into_owned();
                let of = |agent: &&mut Agent| line.contains(agent.mail.to_str().unwrap());
                agents.iter_mut().find(of).unwrap().pid = pid.parse().unwrap();
            }
        }
        let mut world = Self {
            host,
            agents,
            libraries,
            files: Files::default(),
        };
        for number in 0..AGENTS {
            world.read(number);
        }
        Some(world)
    }

    fn read(&mut self, number: usize) {
        let agent = &mut self.agents[number];
        agent.program = self.files.program(agent.pid, agent.user, &agent.group);
    }

    /// Loads or unloads libraries of some agents.
    fn change(&mut self, random: &mut Random) {
        for number in 0..AGENTS {
            for _ in 0..random.below(3) {
                let library = random.below(LIBRARIES);
                let agent = &mut self.agents[number];
                let path = self.libraries[library].to_str().unwrap();
                match agent.loaded.iter().position(|one| *one == library) {
                    Some(at) => {
                        agent.loaded.remove(at);
                        agent.does(&format!("unload {path}"));
                    }
                    None => {
                        agent.loaded.push(library);
                        agent.does(&format!("load {path}"));
                    }
                }
            }
            self.read(number);
        }
    }

    /// Each agent sends something, so that the kernel asks who it is, until weir has said so.
    fn until_known(&mut self) {
        for agent in &mut self.agents {
            let pid = agent.pid.to_string();
            soon("an agent to be known", || {
                agent.does("make udp 4");
                agent.tell("send 127.0.0.1 9");
                agent.does("close");
                let (_, said) = self.host.host.ask(&["app", "why", &pid, "--json"]);
                let why: serde_json::Value = serde_json::from_str(&said).ok()?;
                let whole = agent.program.aggregate().unwrap().to_string();
                assert_eq!(why["aggregate"], whole, "{said}");
                (why["is_known"] == true).then_some(())
            });
        }
    }
}

/// A socket that one or two agents use, and where a packet of it goes.
#[derive(Debug)]
struct Trial {
    is_out: bool,
    is_tcp: bool,
    peer: &'static str,
    port: u16,
    first: usize,
    second: Option<usize>,
}

impl Trial {
    fn random(random: &mut Random) -> Self {
        let is_out = random.below(3) > 0;
        let is_tcp = is_out && random.below(3) == 0;
        let first = random.below(AGENTS);
        let second = random.below(AGENTS);
        Self {
            is_out,
            is_tcp,
            peer: PEERS[random.below(PEERS.len())],
            port: random.port(),
            first,
            // A connection that is not there yet cannot be sent on.
            second: (!is_tcp && second != first).then_some(second),
        }
    }

    fn passes(
        &self,
        world: &mut World,
        senders: &BTreeMap<&str, UdpSocket>,
        expected: bool,
    ) -> bool {
        let is_v6 = self.peer.contains(':');
        let (family, own) = match is_v6 {
            true => ("6", "::1"),
            false => ("4", "127.0.0.1"),
        };
        let kind = if self.is_tcp { "tcp" } else { "udp" };
        let bound = match self.is_out {
            true => String::new(),
            false => format!(" {}", self.port),
        };
        let agents = &mut world.agents;
        agents[self.first].does(&format!("make {kind} {family}{bound}"));
        if let Some(second) = self.second {
            let mail = agents[second].mail.display().to_string();
            agents[self.first].does(&format!("give {mail}"));
            agents[second].does(&format!("use {own}"));
        }
        let first = &mut agents[self.first];
        let told = match (self.is_out, self.is_tcp) {
            (true, true) => first.tell(&format!("connect {} {}", self.peer, self.port)),
            (true, false) => first.tell(&format!("send {} {}", self.peer, self.port)),
            (false, _) => {
                let to = SocketAddr::new(own.parse().unwrap(), self.port);
                senders[self.peer].send_to(b"asked", to).unwrap();
                // Over loopback it is there at once, unless the processor is busy.
                let wait = if expected { "2" } else { "0.004" };
                first.tell(&format!("hear {wait}"))
            }
        };
        first.does("close");
        match told.as_str() {
            "passed" => true,
            "denied" => false,
            other => panic!("{self:?}: {other}"),
        }
    }
}

#[test]
fn root_random_programs_are_judged_as_the_reference_does() {
    let Some(mut world) = World::new() else {
        return;
    };
    let senders: BTreeMap<_, _> = PEERS
        .iter()
        .map(|peer| {
            let addr: IpAddr = peer.parse().unwrap();
            let socket = world
                .host
                .space
                .enter(|| UdpSocket::bind((addr, 0)).unwrap());
            (*peer, socket.unwrap())
        })
        .collect();
    let seed = std::env::var("WEIR_TEST_SEED").ok();
    let seed = seed.map_or(SEED, |seed| seed.parse().unwrap());
    let mut random = Random(seed);
    println!("WEIR_TEST_SEED={seed}");
    let netns = fs::metadata(format!("/proc/{}/ns/net", world.agents[0].pid)).unwrap();
    let netns = std::os::unix::fs::MetadataExt::ino(&netns);
    let mut seen = BTreeMap::<_, u32>::new();
    for number in 0..POLICIES {
        let aggregates = world
            .agents
            .iter()
            .map(|agent| agent.program.aggregate().unwrap());
        let executables = world
            .agents
            .iter()
            .filter_map(|agent| agent.program.exe.as_ref()?.digest);
        let stock = Stock {
            executables: executables.collect(),
            objects: world
                .libraries
                .iter()
                .map(|library| world.files.0.get(library).copied())
                .map(|known| known.unwrap_or(Digest([7; 32])))
                .collect(),
            aggregates: aggregates.collect(),
            groups: GROUPS
                .iter()
                .map(|group| format!("/{}/{group}", world.host.instance))
                .collect(),
        };
        let count = *random.one(&[1, 3, 6, 12]);
        let rules: Vec<_> = (0..count).map(|n| stock.rule(&mut random, n)).collect();
        let default = *random.one(&[Verdict::Allow, Verdict::Drop, Verdict::Reject]);
        let texts: String = rules.iter().map(|(_, text)| text.as_str()).collect();
        let text = format!(
            "default = {:?}\nunknown = \"drop\"\n{texts}",
            default.name()
        );
        let config = AppConfig {
            default,
            unknown: Unknown::Drop,
            prompt_timeout: None,
            level: Level::Auto,
            cgroup: None,
            private_names: Vec::new(),
            container_sockets: Vec::new(),
            container_bundles: Vec::new(),
            upgrades: Upgrades::Tell,
            rules: rules.into_iter().map(|(rule, _)| rule).collect(),
            rule_lines: Vec::new(),
        };
        let reference = Policy::compile(&config, &Nobody::default()).unwrap();
        world.host.configure(&text);
        world.host.host.done(&["reload"]);
        world.until_known();
        for nth in 0..FLOWS {
            // Midway some become other programs, to the same rules.
            if nth == FLOWS / 2 {
                world.change(&mut random);
                world.until_known();
            }
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
            let holders = [Some(trial.first), trial.second].into_iter().flatten();
            let holders: Vec<_> = holders
                .map(|one| Holder::Known(reference.met_by(&world.agents[one].program)))
                .collect();
            let decision = reference.decide(&holders, &flow);
            let expected = decision.verdict == Verdict::Allow;
            let passes = trial.passes(&mut world, &senders, expected);
            // What differs once, and not again, is about the moment and not about the rules.
            let again = (passes != expected).then(|| trial.passes(&mut world, &senders, expected));
            let met = holders.iter().map(|holder| match holder {
                Holder::Known(bits) => bits.iter().collect::<Vec<_>>(),
                _ => Vec::new(),
            });
            assert_eq!(
                passes,
                expected,
                "seed {seed}, policy {number}, flow {nth}: {trial:?}, again {again:?}: {decision:?} by\n{text}\nof holders that meet the places {:?}",
                met.collect::<Vec<_>>()
            );
            let by = match decision.by {
                DecidedBy::Place(place) => {
                    let rule = &reference.rules[reference.places[place].rule];
                    match rule.who.len() {
                        0 => "a rule about everybody",
                        1 => "a rule with one condition",
                        _ => "a rule with several conditions",
                    }
                }
                DecidedBy::Default => "default",
                DecidedBy::Unknown => "unknown",
            };
            *seen
                .entry((by, trial.second.is_some(), passes))
                .or_default() += 1;
        }
    }
    println!("{seen:?}");
    // Another draw may lack something.
    if seed != SEED {
        return;
    }
    for by in [
        "a rule about everybody",
        "a rule with one condition",
        "a rule with several conditions",
        "default",
    ] {
        for has_two in [true, false] {
            for passes in [true, false] {
                let at = (by, has_two, passes);
                assert!(seen.contains_key(&at), "no {at:?}: {seen:?}");
            }
        }
    }
}

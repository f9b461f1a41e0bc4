//! `compat = "daf"`: segments with signatures of DAF, and ports that want them. Two hosts with
//! a router between them, each with a daemon: curl and python3 ask, nginx and python3 answer,
//! and both sides sign.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use weir_bpf::identity::CgroupAt;
use weir_netlab::{Child, Namespace, Net, VethOpts};

use super::{
    common::{skipped, soon},
    lab::{Host, OPEN, PORT, nginx_conf},
    payload::{ASK, SERVE},
};

const CLIENT: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];
const SERVER: [&str; 2] = ["198.51.100.2", "2001:db8:2::2"];
/// Where python3 takes what is sent, and answers with a digest of it.
const DIGEST: u16 = 8082;
const KEY: &[u8] = b"a key of 32 bytes that DAF has..";
const SIZES: [usize; 8] = [0, 1, 55, 56, 64, 1_400, 100_000, 300_000];

struct Lab {
    _programs: Vec<Child>,
    client: Host,
    server: Host,
    router: Namespace,
    files: tempfile::TempDir,
    _net: Net,
}

impl Lab {
    fn new(name: &str) -> Option<Self> {
        if skipped(&[
            "curl",
            "/usr/bin/python3",
            "/usr/sbin/nginx",
            "ip",
            "tcpdump",
        ]) {
            return None;
        }
        if CgroupAt::mount_point().is_none() {
            eprintln!("skipped: control groups of version 2 (probe: /proc/self/mounts)");
            return None;
        }
        let net = Net::new().unwrap();
        let router = net.namespace("router").unwrap();
        let ends = [
            (CLIENT, ["192.0.2.254", "2001:db8:1::fe"]),
            (SERVER, ["198.51.100.254", "2001:db8:2::fe"]),
        ];
        let mut spaces = Vec::new();
        for (name, (own, ways)) in ["client", "server"].into_iter().zip(ends) {
            let space = net.namespace(name).unwrap();
            space.run("ip", &["link", "set", "lo", "up"]).unwrap();
            let with = |all: [&str; 2]| [format!("{}/24", all[0]), format!("{}/64", all[1])];
            let (own, of_router) = (with(own), with(ways));
            let opts = VethOpts::new(
                &own.each_ref().map(String::as_str),
                &of_router.each_ref().map(String::as_str),
            );
            net.veth(&space, "eth0", &router, name, opts.unwrap())
                .unwrap();
            space
                .ip(&ways.map(|way| format!("route add default via {way}")))
                .unwrap();
            spaces.push(space);
        }
        router.forward().unwrap();
        let files = tempfile::tempdir().unwrap();
        let conf = nginx_conf(files.path());
        for size in SIZES {
            let path = files.path().join(format!("www/{size}"));
            fs::write(path, content(size)).unwrap();
        }
        let server = Host::new(spaces.pop().unwrap(), &format!("{name}-s"));
        let client = Host::new(spaces.pop().unwrap(), &format!("{name}-c"));
        let programs = vec![
            server.spawn(&["/usr/sbin/nginx", "-c", conf.to_str().unwrap()]),
            server.spawn(&["/usr/bin/python3", "-c", SERVE, &DIGEST.to_string()]),
        ];
        let mut lab = Self {
            _programs: programs,
            client,
            server,
            router,
            files,
            _net: net,
        };
        for host in [&mut lab.client, &mut lab.server] {
            // Where its segments leave. A new mount namespace would not have bpffs.
            let inside = format!("--net={}", host.space.path().display());
            host.weir.under = ["nsenter", &inside, "--"].map(str::to_owned).to_vec();
            put_key(host, KEY);
        }
        Some(lab)
    }

    fn sign(&self) {
        sign(&self.client, SERVER[0], "");
    }

    /// The server signs what it answers, and wants signatures at both ports.
    fn require(&self, more: &str) {
        sign(
            &self.server,
            CLIENT[0],
            &format!(
                "[token.require.web]\nports = [\"{PORT}/tcp\", \"{DIGEST}/tcp\"]\ncompat = \"daf\"\n{more}"
            ),
        );
    }

    fn start(&mut self) {
        self.sign();
        self.client.weir.start();
        self.require("");
        self.server.weir.start();
    }

    /// What curl gets of this size; `None`: nothing.
    fn get(&self, address: &str, port: u16, size: usize) -> Option<Vec<u8>> {
        get(|words| self.client.run(words), address, port, size)
    }

    fn ask(&self, bytes: usize, answer: usize) -> String {
        self.ask_in(bytes, answer, 1, Path::new("/nowhere"))
    }

    /// In so many pieces, a moment between them until there is this file.
    fn ask_in(&self, bytes: usize, answer: usize, pieces: usize, hurry: &Path) -> String {
        let words = [usize::from(DIGEST), bytes, answer, pieces, 10].map(|word| word.to_string());
        let words: Vec<_> = [SERVER[0]]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .chain(hurry.to_str())
            .collect();
        self.client.python(ASK, &words).trim().to_owned()
    }
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn get(
    run: impl Fn(&[&str]) -> std::process::Output,
    address: &str,
    port: u16,
    size: usize,
) -> Option<Vec<u8>> {
    let at = match address.contains(':') {
        true => format!("http://[{address}]:{port}/{size}"),
        false => format!("http://{address}:{port}/{size}"),
    };
    let done = run(&["curl", "-sS", "-f", "--max-time", "3", &at]);
    done.status.success().then_some(done.stdout)
}

fn put_key(host: &Host, key: &[u8]) {
    let path = host.weir.path("daf");
    fs::write(&path, key).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn sign(host: &Host, to: &str, more: &str) {
    host.configure(&format!(
        "[token]\ncgroup = \"{{cgroup}}\"\ncompat = \"daf\"\ndaf_secret = \"{{dir}}/daf\"\nsign_to = [\"{to}\"]\n{more}"
    ));
}

fn segments(host: &Host) -> Value {
    host.token()["signing"]["segments"].clone()
}

/// A tcpdump on the router that writes what passes between it and the server.
fn tcpdump(lab: &Lab) -> (Child, PathBuf) {
    let (file, log) = (
        lab.files.path().join("daf.pcap"),
        lab.files.path().join("log"),
    );
    let mut command = Command::new("tcpdump");
    command
        .args([
            "-Z",
            "root",
            "-U",
            "--immediate-mode",
            "-s",
            "0",
            "-i",
            "server",
            "-w",
        ])
        .arg(&file)
        .args(["tcp", "and", "host", SERVER[0]])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let child = lab.router.spawn(command).unwrap();
    soon("tcpdump to listen", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("listening on").then_some(())
    });
    (child, file)
}

#[test]
fn root_signatures_of_daf_let_in_who_has_the_key_and_nobody_else() {
    let Some(mut lab) = Lab::new("daf") else {
        return;
    };
    lab.start();
    let (client, server) = (&lab.client, &lab.server);
    let (mut dump, file) = tcpdump(&lab);
    // First, while neither side has told the other that the path takes less.
    assert_eq!(lab.ask(400_000, 400_000), "right");
    for size in SIZES {
        let got = lab.get(SERVER[0], PORT, size);
        assert!(
            got == Some(content(size)),
            "{size}: {:?} {} {}",
            got.map(|got| got.len()),
            segments(client),
            server.token()
        );
    }
    dump.signal(2).unwrap();
    dump.wait(Duration::from_secs(20)).unwrap().unwrap();
    // The reference says the same of each segment, both ways.
    let key = client.weir.path("daf").display().to_string();
    let words = ["token", "verify", "--daf", &key, "--json"];
    let said = client
        .weir
        .done(&[&words[..], &[file.to_str().unwrap()]].concat());
    assert!(said.contains("\"valid\""), "{said}");
    for host in [client, server] {
        let of = segments(host);
        assert!(of["signed"].as_u64() > Some(100), "{of}");
        for reason in ["without_signer", "superpacket", "without_room", "broken"] {
            assert_eq!(of[reason], 0, "{of}");
        }
        // Full segments had to become shorter.
        assert!(of["too_big"].as_u64() > Some(0), "{of}");
    }
    assert!(server.outcome("valid") > 100);
    assert_eq!(server.token()["requirements"][0]["refused"], 0);
    let shown = server.weir.done(&["status"]);
    assert!(shown.contains("each segment by DAF"), "{shown}");
    assert!(shown.contains("each can be sent again"), "{shown}");
    assert!(!shown.contains("a key of 32"), "{shown}");

    // Who does not sign does not get in, and IPv6 has no such signature.
    let missing = server.outcome("missing");
    let from_router = |port| {
        let run = |words: &[&str]| lab.router.output(words[0], &words[1..]).unwrap();
        get(run, SERVER[0], port, 1)
    };
    assert_eq!(from_router(PORT), None);
    assert!(server.outcome("missing") > missing);
    assert_eq!(from_router(OPEN), Some(content(1)));
    let missing = server.outcome("missing");
    assert_eq!(lab.get(SERVER[1], PORT, 1), None);
    assert!(server.outcome("missing") > missing);
    assert_eq!(lab.get(SERVER[1], OPEN, 1), Some(content(1)));
    let why = server.weir.done(&["token", "why", CLIENT[1]]);
    assert!(why.contains("missing"), "{why}");

    // A path that takes less than the client's device: a router says so.
    for mtu in ["1400", "1280", "600"] {
        for (space, device) in [(&lab.router, "server"), (&server.space, "eth0")] {
            let set = ["link", "set", device, "mtu", mtu];
            space.run("ip", &set).unwrap();
        }
        assert_eq!(lab.ask(300_000, 300_000), "right", "{mtu}");
        assert_eq!(
            lab.get(SERVER[0], PORT, 100_000),
            Some(content(100_000)),
            "{mtu}"
        );
    }

    // Another key.
    put_key(client, b"another key of as many bytes....");
    client.weir.done(&["reload"]);
    let wrong = server.outcome("wrong-mac");
    assert_eq!(lab.get(SERVER[0], PORT, 1), None);
    assert!(server.outcome("wrong-mac") > wrong);
    assert_eq!(lab.get(SERVER[0], OPEN, 1), Some(content(1)));
    put_key(client, KEY);
    client.weir.done(&["reload"]);
    assert_eq!(lab.get(SERVER[0], PORT, 1), Some(content(1)));

    // Without daemons.
    lab.client.weir.end("KILL");
    lab.server.weir.end("KILL");
    assert_eq!(lab.ask(100_000, 100_000), "right");
    assert_eq!(from_router(PORT), None);
    lab.client.weir.start();
    lab.server.weir.start();
    assert_eq!(lab.ask(100_000, 100_000), "right");
}

/// A connection that makes superpackets when its segments begin to be signed makes none then.
#[test]
fn root_connections_that_were_there_go_on_with_signatures_of_daf() {
    let Some(mut lab) = Lab::new("dafold") else {
        return;
    };
    // Both sides are there, and neither signs.
    for host in [&mut lab.client, &mut lab.server] {
        host.configure("");
        host.weir.start();
    }
    let lab = &lab;
    // They last for minutes, unless they are let hurry: a reload may take long.
    let hurry = lab.files.path().join("hurry");
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| lab.ask_in(96_000_000, 10, 2_400, &hurry)))
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        lab.sign();
        lab.client.weir.done(&["reload"]);
        let is_going = asks.iter().all(|ask| !ask.is_finished());
        fs::write(&hurry, "").unwrap();
        assert!(is_going, "they were to last longer");
        for ask in asks {
            assert_eq!(ask.join().unwrap(), "right", "{}", segments(&lab.client));
        }
    });
    let of = segments(&lab.client);
    let supers = of["superpacket"].as_u64().unwrap();
    assert!((1..100).contains(&supers), "{of}");
    assert!(of["signed"].as_u64() > Some(1_000), "{of}");
}

/// A signature that is right opens no port that wants tokens.
#[test]
fn root_signatures_of_daf_are_nothing_where_they_are_not_configured() {
    let Some(mut lab) = Lab::new("dafno") else {
        return;
    };
    lab.start();
    assert_eq!(lab.get(SERVER[0], PORT, 1_400), Some(content(1_400)));
    lab.server.make_key();
    let valid = lab.server.outcome("valid");
    for more in ["", "scope = \"payload\"\n"] {
        lab.server.require(&"7".repeat(64), more);
        lab.server.weir.done(&["reload"]);
        let missing = lab.server.outcome("missing");
        assert_eq!(lab.get(SERVER[0], PORT, 1), None);
        assert!(
            lab.server.outcome("missing") > missing,
            "{}",
            lab.server.token()
        );
        assert_eq!(lab.server.outcome("valid"), valid);
    }
    // Nor does what was let in without it.
    lab.server.configure("");
    lab.server.weir.done(&["reload"]);
    assert_eq!(lab.get(SERVER[0], PORT, 1), Some(content(1)));
    lab.require("");
    lab.server.weir.done(&["reload"]);
    assert_eq!(lab.get(SERVER[0], PORT, 1), Some(content(1)));
    // What is not of the control group is not signed, and does not get in.
    let missing = lab.server.outcome("missing");
    let outside = |words: &[&str]| lab.client.space.output(words[0], &words[1..]).unwrap();
    assert_eq!(get(outside, SERVER[0], PORT, 1), None);
    assert!(lab.server.outcome("missing") > missing);
    assert_eq!(get(outside, SERVER[0], OPEN, 1), Some(content(1)));
    // A key that others can read is refused, and what was in force stays.
    let key = lab.server.weir.path("daf");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, said) = lab.server.weir.ask(&["reload"]);
    assert!(
        code != Some(0) && said.contains("its mode is 0644"),
        "{said}"
    );
    assert_eq!(lab.get(SERVER[0], PORT, 1), Some(content(1)));
    // The interface has its superpackets back once the section goes.
    let gso = |host: &Host| {
        let said = host
            .space
            .output("ip", &["-d", "-j", "link", "show", "eth0"]);
        let links: Value = serde_json::from_slice(&said.unwrap().stdout).unwrap();
        links[0]["gso_max_segs"].as_u64().unwrap()
    };
    assert_eq!(gso(&lab.client), 1);
    lab.client.configure("");
    lab.client.weir.done(&["reload"]);
    assert!(gso(&lab.client) > 1);
    assert_eq!(lab.get(SERVER[0], PORT, 1), None);
    assert_eq!(lab.get(SERVER[0], OPEN, 300_000), Some(content(300_000)));
}

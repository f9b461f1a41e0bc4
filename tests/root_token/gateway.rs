//! A gateway that lets only signed connections through with iptables, whose rules ask
//! weir's pinned match: both kinds of iptables, IPv4 and IPv6, with and without a daemon.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use weir_netlab::{Child, Namespace, Net, Side, Veth, VethOpts};

use super::{
    common::soon,
    frames,
    lab::{CURL_AND_PYTHON, Host, LongConnection, OPEN, PORT, cannot_run, nginx_conf, url},
};

const PROGRAMS: [&str; 6] = [
    "curl",
    "/usr/bin/python3",
    "/usr/sbin/nginx",
    "ip",
    "iptables-legacy",
    "iptables-nft",
];
/// The addresses behind the gateway, by family.
pub const SERVER: [&str; 2] = ["198.51.100.2", "2001:db8:1::2"];

/// A client that signs, a gateway, a server without weir, and somebody without weir.
pub struct Lab {
    _nginx: Child,
    pub client: Host,
    pub gateway: Host,
    pub server: Namespace,
    pub other: Namespace,
    /// The links of client, server and the other one to the gateway, where they have their names.
    pub links: [Veth; 3],
    _files: tempfile::TempDir,
    _net: Net,
}

impl Lab {
    /// `None`: what it takes is not here, or one of these programs.
    pub fn new(name: &str, programs: &[&str]) -> Option<Self> {
        if cannot_run(programs) {
            return None;
        }
        let net = Net::new().unwrap();
        let gateway = net.namespace("gateway").unwrap();
        gateway.forward().unwrap();
        // Networks of the client, the server, and somebody else: 1 is the gateway, 2 they.
        let networks = [
            ("client", "192.0.2", "2001:db8:0"),
            ("server", "198.51.100", "2001:db8:1"),
            ("other", "203.0.113", "2001:db8:2"),
        ];
        let spaces = networks.map(|(name, v4, v6)| {
            let space = net.namespace(name).unwrap();
            let at = |n: u8| [format!("{v4}.{n}/24"), format!("{v6}::{n}/64")];
            let (of_gateway, own) = (at(1), at(2));
            let opts = VethOpts::new(
                &own.each_ref().map(String::as_str),
                &of_gateway.each_ref().map(String::as_str),
            );
            let link = net.veth(&space, "eth0", &gateway, name, opts.unwrap());
            space
                .ip(&[
                    format!("route add default via {v4}.1"),
                    format!("route add ::/0 via {v6}::1"),
                ])
                .unwrap();
            (space, link.unwrap())
        });
        let [(client, of_client), (server, of_server), (other, of_other)] = spaces;
        let files = tempfile::tempdir().unwrap();
        let conf = nginx_conf(files.path());
        let mut nginx = Command::new("/usr/sbin/nginx");
        nginx
            .args(["-c", conf.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let lab = Self {
            _nginx: server.spawn(nginx).unwrap(),
            client: Host::new(client, &format!("{name}-c")),
            gateway: Host::new(gateway, &format!("{name}-g")),
            server,
            other,
            links: [of_client, of_server, of_other],
            _files: files,
            _net: net,
        };
        lab.client.make_key();
        Some(lab)
    }

    /// The commands of the guide for this iptables, with the addresses and the instance of
    /// here in the place of those there.
    fn rules(&self, kind: &str) -> Vec<Vec<String>> {
        let guide = fs::read_to_string("docs/guide/token.md").unwrap();
        let commands = guide.lines().filter_map(|line| {
            let (name, rest) = line.split_once(" -A FORWARD ")?;
            let family = ["iptables", "ip6tables"].iter().position(|n| n == &name)?;
            let rest = rest
                .replace("198.51.100.7", SERVER[0])
                .replace("2001:db8:7::7", SERVER[1])
                .replace(
                    "/weir/default/",
                    &format!("/weir/{}/", self.gateway.instance),
                );
            let words = rest.split(' ').map(str::to_owned);
            let head = [format!("{}-{kind}", ["iptables", "ip6tables"][family])];
            Some(head.into_iter().chain(words).collect())
        });
        commands.collect()
    }

    fn iptables(&self, words: &[&str], rule: &[String]) {
        let (program, rest) = rule.split_first().unwrap();
        let words = [&["-w"], words].concat();
        let words = words.into_iter().chain(rest.iter().map(String::as_str));
        let words: Vec<_> = words.collect();
        self.gateway.space.run(program, &words).unwrap();
    }

    /// Only curl of the client gets to the port, and everybody to the other one.
    pub fn lets_only_curl_through(&self, when: &str) {
        for address in SERVER {
            assert_eq!(self.client.curl(address, PORT), "200", "{address} {when}");
            assert_eq!(
                self.client.connects(address, PORT),
                "TimeoutError",
                "{when}"
            );
            assert_eq!(self.client.connects(address, OPEN), "connected", "{when}");
            for (port, code) in [(PORT, 28), (OPEN, 0)] {
                let url = url(address, port);
                let words = ["--max-time", "2", "-s", "-o", "/dev/null", url.as_str()];
                let done = self.other.output("curl", &words).unwrap();
                assert_eq!(done.status.code(), Some(code), "{url} {when}");
            }
        }
    }
}

#[test]
fn root_iptables_on_a_gateway_lets_only_signed_connections_through() {
    let Some(mut lab) = Lab::new("gate", &PROGRAMS) else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let client = &lab.client;
    let curl = client.known_curl(SERVER[0]);
    let python = client.known_python(SERVER[0]);
    lab.gateway.copy_keys(client);
    lab.gateway.require(&curl, "");
    lab.gateway.weir.start();
    let shown = lab.gateway.weir.done(&["status"]);
    assert!(shown.contains("--object-pinned"), "{shown}");
    for kind in ["legacy", "nft"] {
        let rules = lab.rules(kind);
        assert_eq!(rules.len(), 6, "the guide has three rules for each family");
        for rule in &rules {
            lab.iptables(&["-A", "FORWARD"], rule);
        }
        lab.lets_only_curl_through(kind);
        for name in ["valid", "not-named", "missing"] {
            assert!(lab.gateway.outcome(name) > 0, "{name} {kind}");
        }
        // What curl has sent proves nothing when it comes again.
        let capture = frames::Capture::begin(&lab.client.space, PORT);
        assert_eq!(lab.client.curl(SERVER[0], PORT), "200");
        let captured = frames::Syn::read(&capture.end());
        let before = lab.gateway.outcome("replayed");
        let macs = (lab.links[0].mac(Side::A), lab.links[0].mac(Side::B));
        frames::send(&lab.client.space, &captured.frame(macs));
        soon("the replay", || {
            (lab.gateway.outcome("replayed") > before).then_some(())
        });

        // A download goes on, and everything stays so, without a daemon and with the next.
        let mut long = LongConnection::begin(&lab.client, SERVER[0], kind);
        lab.gateway.weir.end("KILL");
        lab.lets_only_curl_through("without a daemon");
        lab.gateway.weir.start();

        // The rules follow what is required.
        lab.gateway.require(&python, "");
        lab.gateway.weir.done(&["reload"]);
        assert_eq!(lab.client.connects(SERVER[1], PORT), "connected");
        assert_eq!(lab.client.curl(SERVER[1], PORT), "000");
        lab.gateway.require(&curl, "");
        lab.gateway.weir.done(&["reload"]);
        long.goes_on("after reloads");
        drop(long);

        // Without connection tracking the match knows later segments itself.
        for rule in &rules {
            if rule.iter().any(|word| word == "conntrack") {
                lab.iptables(&["-D", "FORWARD"], rule);
            }
        }
        lab.lets_only_curl_through("without connection tracking");
        for program in ["iptables", "ip6tables"] {
            lab.iptables(&["-F", "FORWARD"], &[format!("{program}-{kind}")]);
        }
    }

    // The pin is what iptables needs for a new rule; one that is there matches nothing
    // without weir, and goes by its number.
    let rules = lab.rules("nft");
    for rule in &rules {
        lab.iptables(&["-A", "FORWARD"], rule);
    }
    soon("curl to get through", || {
        (lab.client.curl(SERVER[0], PORT) == "200").then_some(())
    });
    lab.gateway.weir.end("KILL");
    let told = lab.gateway.weir.done(&["detach"]);
    assert!(told.contains("they match nothing now"), "{told}");
    let pins = Path::new("/sys/fs/bpf/weir").join(&lab.gateway.instance);
    assert!(!pins.join("token-iptables").exists());
    assert_eq!(lab.client.curl(SERVER[0], PORT), "000");
    for program in ["iptables-nft", "ip6tables-nft"] {
        for number in ["3", "1"] {
            lab.iptables(&["-D", "FORWARD", number], &[program.to_owned()]);
        }
    }
    for address in SERVER {
        assert_eq!(lab.client.curl(address, PORT), "200");
    }
}

//! A gateway that runs weir itself: what it forwards to a server without weir passes with a token
//! only, IPv4 and IPv6, with and without its daemon.

use std::{
    fs,
    net::IpAddr,
    path::Path,
    process::{Command, Stdio},
};

use weir_bpf::{
    attachment::{Hook, Link},
    generator::Generator,
};
use weir_netlab::Side;

use super::{
    common::soon,
    frames,
    gateway::{Lab, SERVER},
    lab::{CURL_AND_PYTHON, LongConnection, OPEN, PORT, PROGRAMS, SERVE_DIGESTS},
};

/// Where datagrams are answered.
const DATAGRAMS: u16 = 9200;

/// The lab of the gateway with iptables, whose daemon sees the gateway's interfaces.
pub fn lab(name: &str) -> Option<Lab> {
    let mut lab = Lab::new(name, &PROGRAMS)?;
    // A new mount namespace would not have bpffs.
    let inside = format!("--net={}", lab.gateway.space.path().display());
    lab.gateway.weir.under = ["nsenter", &inside, "--"].map(str::to_owned).to_vec();
    Some(lab)
}

/// What the gateway wants of these programs, with more of `[token.forward]` and of the
/// requirement.
fn require(lab: &Lab, aggregate: &str, more: &str, of_requirement: &str) {
    lab.gateway.configure(&format!(
        "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n\
         [token.forward]\ninterfaces = [\"client\", \"other\"]\n{more}\
         [token.forward.require.web]\nto = [\"198.51.100.0/24\", \"2001:db8:1::/64\"]\n\
         ports = [\"{PORT}/tcp\", \"{PORT}/udp\"]\naggregate = \"{aggregate}\"\n{of_requirement}"
    ));
}

/// The aggregates of curl and python3 on the client, which signs.
pub fn known(lab: &Lab) -> [String; 2] {
    let client = &lab.client;
    [client.known_curl(SERVER[0]), client.known_python(SERVER[0])]
}

#[test]
fn root_a_gateway_forwards_signed_connections_only() {
    let Some(mut lab) = lab("fwd") else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, python] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    require(&lab, &curl, "", "");
    lab.gateway.weir.start();
    lab.lets_only_curl_through("at the start");
    for name in ["valid", "proven", "not-named", "missing"] {
        assert!(lab.gateway.outcome(name) > 0, "{name}");
    }
    let forward = &lab.gateway.token()["forward"];
    assert_eq!(
        forward["interfaces"],
        serde_json::json!(["client", "other"])
    );
    assert!(
        forward["connections"]["flows"].as_u64() >= Some(2),
        "{forward}"
    );
    let shown = lab.gateway.weir.done(&["status"]);
    assert!(
        shown.contains("forwarded packets judged at client other: "),
        "{shown}"
    );
    let metrics = lab.gateway.weir.done(&["metrics"]);
    let line = "weir_token_packets_total{requirement=\"forward.web\",outcome=\"missing\"}";
    assert!(metrics.contains(line), "{metrics}");

    // What curl has sent proves nothing when it comes again, also from a second host.
    for address in SERVER {
        let capture = frames::Capture::begin(&lab.client.space, PORT);
        assert_eq!(lab.client.curl(address, PORT), "200");
        let captured = frames::Syn::read(&capture.end());
        let here = &lab.links[2];
        let macs = (here.mac(Side::A), here.mac(Side::B));
        let other: IpAddr = match captured.source.0 {
            IpAddr::V4(_) => "203.0.113.2".parse().unwrap(),
            IpAddr::V6(_) => "2001:db8:2::2".parse().unwrap(),
        };
        let of_other = frames::Syn {
            source: (other, captured.source.1),
            ..captured.clone()
        };
        for (reason, syn) in [("replayed", &captured), ("wrong-mac", &of_other)] {
            let before = lab.gateway.outcome(reason);
            frames::send(&lab.other, &syn.frame(macs));
            soon(reason, || {
                (lab.gateway.outcome(reason) > before).then_some(())
            });
        }
        // A later segment of a connection that there is not.
        let before = lab.gateway.outcome("no-flow");
        frames::send(&lab.other, &of_other.segment(macs, frames::ACK));
        soon("no-flow", || {
            (lab.gateway.outcome("no-flow") > before).then_some(())
        });
        let why = lab.gateway.weir.done(&["token", "why", &other.to_string()]);
        assert!(
            why.contains("wrong-mac") && why.contains("no-flow"),
            "{why}"
        );
    }

    // A download goes on, and everything stays so, without a daemon and with the next.
    let mut long = LongConnection::begin(&lab.client, SERVER[1], "long");
    lab.gateway.weir.end("KILL");
    lab.lets_only_curl_through("without a daemon");
    lab.gateway.weir.start();
    lab.lets_only_curl_through("with the next daemon");
    long.goes_on("with the next daemon");
    require(&lab, &python, "", "");
    lab.gateway.weir.done(&["reload"]);
    assert_eq!(lab.client.connects(SERVER[1], PORT), "connected");
    assert_eq!(lab.client.curl(SERVER[1], PORT), "000");
    require(&lab, &curl, "", "");
    lab.gateway.weir.done(&["reload"]);
    long.goes_on("after reloads");
    drop(long);

    // What is refused at a reload takes nothing away.
    require(&lab, &curl, "", "");
    let good = fs::read_to_string(lab.gateway.weir.path("weir.toml")).unwrap();
    let bad = good.replace("/keys\"", "/nowhere\"");
    fs::write(lab.gateway.weir.path("weir.toml"), bad).unwrap();
    assert_ne!(lab.gateway.weir.ask(&["reload"]).0, Some(0));
    lab.lets_only_curl_through("after a reload that was refused");
    fs::write(lab.gateway.weir.path("weir.toml"), good).unwrap();

    // Only counted.
    require(&lab, &curl, "", "mode = \"log\"\n");
    lab.gateway.weir.done(&["reload"]);
    let before = lab.gateway.outcome("not-named");
    assert_eq!(lab.client.connects(SERVER[0], PORT), "connected");
    assert!(lab.gateway.outcome("not-named") > before);

    // Nothing stays.
    require(&lab, &curl, "", "");
    lab.gateway.weir.done(&["reload"]);
    assert_eq!(lab.client.connects(SERVER[0], PORT), "TimeoutError");
    lab.gateway.weir.end("KILL");
    lab.gateway.weir.done(&["detach"]);
    for address in SERVER {
        assert_eq!(lab.client.connects(address, PORT), "connected");
    }
    let pins = Path::new("/sys/fs/bpf/weir").join(&lab.gateway.instance);
    assert!(!pins.exists() || fs::read_dir(pins).unwrap().next().is_none());
}

/// A start that does not come to its end changes nothing of what the kernel judges by: nobody runs
/// who could tell.
#[cfg(feature = "fault-points")]
#[test]
fn root_a_start_of_a_gateway_that_is_refused_changes_no_requirement() {
    let Some(mut lab) = lab("refuse") else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, _] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    let refusals = lab.gateway.weir.path("refusals");
    let told = format!("WEIR_FAULT_REFUSE={}", refusals.display());
    lab.gateway.weir.under.extend(["env".to_owned(), told]);
    require(&lab, &curl, "", "");
    lab.gateway.weir.start();
    lab.lets_only_curl_through("at the start");
    lab.gateway.weir.end("KILL");
    require(&lab, &curl, "", "mode = \"log\"\n");
    fs::write(&refusals, "token-gateway\n").unwrap();
    let (code, said) = lab.gateway.weir.ask(&["daemon"]);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("load the programs of a gateway"), "{said}");
    lab.lets_only_curl_through("after a start that was refused");
    fs::write(&refusals, "").unwrap();
    lab.gateway.weir.start();
    assert_eq!(lab.client.connects(SERVER[0], PORT), "connected");
}

/// Sends a datagram from one socket until there is an answer, at most so often.
const DATAGRAM: &str = "
import socket, sys
address, port, tries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
for n in range(tries):
    try: s.sendto(b'hello', (address, port)); s.recv(100); print('answer'); break
    except OSError: pass
else: print('silence')
";

#[test]
fn root_a_gateway_takes_tokens_from_wherever_they_stand() {
    let Some(mut lab) = lab("conduits") else {
        return;
    };
    // It signs where its packets leave.
    let inside = format!("--net={}", lab.client.space.path().display());
    lab.client.weir.under = ["nsenter", &inside, "--"].map(str::to_owned).to_vec();
    let mut serve = Command::new("/usr/bin/python3");
    serve.args(["-c", SERVE_DIGESTS, &DATAGRAMS.to_string()]);
    let _serve = lab.server.spawn(serve).unwrap();
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, python] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    let sign = |lab: &Lab, more: &str| {
        lab.client.configure(&format!(
            "[app]\ncgroup = \"{{cgroup}}\"\n{CURL_AND_PYTHON}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = {SERVER:?}\n{more}"
        ));
        lab.client.weir.done(&["reload"]);
    };
    for hook in ["tc", "xdp"] {
        let of_hook = format!("hook = \"{hook}\"\n");
        // In the IP header.
        require(&lab, &curl, &of_hook, "");
        if hook == "tc" {
            lab.gateway.weir.start();
        } else {
            lab.gateway.weir.done(&["reload"]);
        }
        sign(&lab, "conduits = [\"ip-option\"]\n");
        lab.lets_only_curl_through("by options of IP");

        // In each segment; what has one in its SYN alone does not get through.
        let aggregate = format!("aggregate = \"{curl}\"\n");
        let config = fs::read_to_string(lab.gateway.weir.path("weir.toml")).unwrap();
        let with_udp = format!(", \"{PORT}/udp\"");
        let each = config
            .replace(&with_udp, "")
            .replace(&aggregate, &format!("{aggregate}scope = \"payload\"\n"));
        fs::write(lab.gateway.weir.path("weir.toml"), each).unwrap();
        lab.gateway.weir.done(&["reload"]);
        assert_eq!(lab.client.curl(SERVER[0], PORT), "000");
        sign(&lab, "scope = \"payload\"\n");
        lab.lets_only_curl_through("by each segment");

        // In datagrams.
        lab.gateway.configure(&format!(
            "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n\
             [token.forward]\ninterfaces = [\"client\", \"other\"]\n{of_hook}\
             [token.forward.require.echo]\nto = [\"198.51.100.0/24\", \"2001:db8:1::/64\"]\n\
             ports = [\"{DATAGRAMS}/udp\"]\naggregate = \"{python}\"\n"
        ));
        lab.gateway.weir.done(&["reload"]);
        sign(&lab, &format!("sign_udp_to = {SERVER:?}\n"));
        let port = DATAGRAMS.to_string();
        for address in SERVER {
            let said = lab.client.python(DATAGRAM, &[address, &port, "5"]);
            assert_eq!(said.trim(), "answer", "{hook} {address}");
            let words = ["-c", DATAGRAM, address, &port, "2"];
            let done = lab.other.output("/usr/bin/python3", &words).unwrap();
            assert_eq!(done.stdout, b"silence\n", "{hook} {address}");
        }
        for name in ["valid", "missing"] {
            assert!(lab.gateway.outcome(name) > 1, "{hook} {name}");
        }
    }
}

#[test]
fn root_each_interface_of_a_gateway_has_the_cheapest_hook_that_it_carries() {
    let Some(mut lab) = lab("auto") else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, _] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    // Somebody else's program is at one of them, before the daemon is.
    let space = &lab.gateway.space;
    let (generator, index) = (Generator::load().unwrap(), space.ifindex("other").unwrap());
    let attached = space.enter(|| Link::attach(generator.accept(), index, Hook::Xdp));
    let theirs = attached.unwrap().unwrap();
    require(&lab, &curl, "hook = \"auto\"\n", "");
    lab.gateway.weir.start();
    let hooks = |lab: &Lab| {
        let hooks = lab.gateway.token()["forward"]["hooks"].clone();
        let hooks = hooks.as_array().unwrap().iter();
        let texts = hooks.map(|at| {
            let [interface, hook, reason] =
                ["interface", "hook", "reason"].map(|of| at[of].as_str().unwrap_or("-").to_owned());
            (format!("{interface} {hook}"), reason)
        });
        texts.unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (where_judged, reasons) = hooks(&lab);
    assert_eq!(where_judged, ["client xdp", "other tc"], "{reasons:?}");
    let native = "the driver has it, and no other program is there";
    assert_eq!(reasons[0], native);
    assert!(
        reasons[1].contains("another program is there: id "),
        "{reasons:?}"
    );
    let shown = lab.gateway.weir.done(&["status"]);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        format!("client by xdp, {native}"),
        format!("other by tc, {}", reasons[1]),
    ] {
        assert!(shown.contains(&text), "{shown}");
    }
    // It is a choice, and nothing is wrong; the log has it.
    let alerts = lab.gateway.weir.alerts();
    assert!(!alerts.contains("another program"), "{alerts}");
    let log = lab.gateway.weir.said();
    assert!(
        log.contains("[token.forward]: tc judges at other: ")
            && log.contains("[token.forward]: xdp judges at client: "),
        "{log}"
    );
    lab.lets_only_curl_through("by XDP and tc");
    for name in ["valid", "proven", "not-named", "missing"] {
        assert!(lab.gateway.outcome(name) > 0, "{name}");
    }

    // It goes, and the driver takes over.
    theirs.detach();
    soon("the driver", || {
        (hooks(&lab).0 == ["client xdp", "other xdp"]).then_some(())
    });
    assert_eq!(hooks(&lab).1, [native, native]);
    lab.lets_only_curl_through("by XDP");

    // What the configuration names needs no reason.
    require(&lab, &curl, "hook = \"tc\"\n", "");
    lab.gateway.weir.done(&["reload"]);
    let (where_judged, reasons) = hooks(&lab);
    assert_eq!(where_judged, ["client tc", "other tc"]);
    assert_eq!(reasons, ["-", "-"]);
    lab.lets_only_curl_through("by tc");
}

/// A connection on which something is asked for, before and after.
const PERSISTENT: &str = "
import socket, sys, time, os
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)
ask = b'HEAD / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'
c.send(ask)
assert c.recv(4096).startswith(b'HTTP/1.1 200')
open(sys.argv[3] + '.ready', 'w').close()
while not os.path.exists(sys.argv[3] + '.go'): time.sleep(.02)
c.settimeout(3)
c.send(ask)
try: said = c.recv(4096)[:12].decode()
except OSError as e: said = type(e).__name__
open(sys.argv[3] + '.tmp', 'w').write(said)
os.rename(sys.argv[3] + '.tmp', sys.argv[3])
";

#[test]
fn root_connections_that_were_there_before_pass_or_do_not() {
    let Some(mut lab) = lab("before") else {
        return;
    };
    lab.gateway.copy_keys(&lab.client);
    let nobody = "11".repeat(32);
    for (established, outcome, said) in [
        ("drop", "no-flow", "TimeoutError"),
        ("pass", "free", "HTTP/1.1 200"),
    ] {
        let begun: Vec<_> = SERVER
            .into_iter()
            .enumerate()
            .map(|(n, address)| {
                let file = lab.client.weir.path(&format!("{established}{n}"));
                let name = file.display().to_string();
                let mut command = Command::new("/usr/bin/python3");
                command
                    .args(["-c", PERSISTENT, address, &PORT.to_string(), &name])
                    .stdin(Stdio::null());
                let child = lab.other.spawn(command).unwrap();
                soon("the connection", || {
                    fs::metadata(format!("{name}.ready")).ok()
                });
                (child, name)
            })
            .collect();
        let more = format!("established = \"{established}\"\n");
        require(&lab, &nobody, &more, "");
        lab.gateway.weir.start();
        let before = lab.gateway.outcome(outcome);
        for (_, name) in &begun {
            fs::write(format!("{name}.go"), "").unwrap();
        }
        for (_, name) in &begun {
            let told = soon("what is said", || fs::read_to_string(name).ok());
            assert_eq!(told, said, "{established}");
        }
        assert!(lab.gateway.outcome(outcome) > before, "{established}");
        // None begins anew.
        assert_eq!(lab.client.connects(SERVER[0], PORT), "TimeoutError");
        lab.gateway.weir.end("KILL");
        lab.gateway.weir.done(&["detach"]);
    }
}

/// The program goes with its interface: without a daemon nobody covers the one that has its name
/// then, and `weir status` says so.
#[test]
fn root_an_interface_that_is_made_anew_without_a_daemon_is_named() {
    let Some(mut lab) = lab("anew") else {
        return;
    };
    lab.gateway.copy_keys(&lab.client);
    let nobody = "11".repeat(32);
    for hook in ["tc", "xdp"] {
        let hook = format!("hook = \"{hook}\"\n");
        let strip = "[token.strip]\ninterfaces = [\"client\", \"other\"]\n";
        require(&lab, &nobody, &hook, strip);
        lab.gateway.weir.start();
        lab.gateway.weir.end("KILL");
        let (code, text) = lab.gateway.weir.ask(&["status"]);
        assert_eq!(code, Some(2), "{text}");
        assert!(!text.contains("unguarded"), "{text}");
        let anew = ["del client", "add client type veth peer name of-client"];
        let up = ["set client up", "set of-client up"];
        let anew = anew.into_iter().chain(up);
        let anew: Vec<_> = anew.map(|words| format!("link {words}")).collect();
        lab.gateway.space.ip(&anew).unwrap();
        let (code, text) = lab.gateway.weir.ask(&["status"]);
        assert_eq!(code, Some(2), "{text}");
        for table in ["[token.forward]", "[token.strip]"] {
            let told = format!("client is unguarded: no program of {table} is there");
            let words: Vec<_> = text.split_whitespace().collect();
            assert!(words.join(" ").contains(&told), "no {told} in {text}");
        }
        let status = lab.gateway.weir.json(&["status"]);
        let of = |table: &str| serde_json::json!({ "table": table, "interface": "client" });
        let wanted = [of("[token.forward]"), of("[token.strip]")];
        assert_eq!(status["unguarded"], serde_json::json!(wanted));
        // The next daemon covers it, and what it leaves is there.
        lab.gateway.weir.start();
        lab.gateway.weir.end("KILL");
        let status = lab.gateway.weir.json(&["status"]);
        assert_eq!(status["unguarded"], serde_json::json!([]), "{status}");
        lab.gateway.weir.done(&["detach"]);
    }
}

#[test]
fn root_a_gateway_judges_in_the_driver_or_says_why_not() {
    let Some(mut lab) = lab("driver") else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, _] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    require(&lab, &curl, "hook = \"xdp\"\n", "");
    lab.gateway.weir.start();
    let hooks = |lab: &Lab| lab.gateway.token()["forward"]["by_xdp"].clone();
    assert_eq!(hooks(&lab), serde_json::json!(["client", "other"]));
    lab.lets_only_curl_through("by XDP");
    for name in ["valid", "proven", "not-named", "missing"] {
        assert!(lab.gateway.outcome(name) > 0, "{name}");
    }
    lab.gateway.weir.end("KILL");
    lab.lets_only_curl_through("by XDP without a daemon");
    lab.gateway.weir.start();

    // One hook after the other, while a download goes on.
    let mut long = LongConnection::begin(&lab.client, SERVER[0], "long");
    require(&lab, &curl, "", "");
    lab.gateway.weir.done(&["reload"]);
    assert_eq!(hooks(&lab), serde_json::json!([]));
    lab.lets_only_curl_through("by tc");
    long.goes_on("by tc");
    drop(long);

    // Where the place is taken, tc judges, and an alert names what is there.
    let space = &lab.gateway.space;
    let (generator, index) = (Generator::load().unwrap(), space.ifindex("client").unwrap());
    let attached = space.enter(|| Link::attach(generator.accept(), index, Hook::Xdp));
    let theirs = attached.unwrap().unwrap();
    require(&lab, &curl, "hook = \"xdp\"\n", "");
    lab.gateway.weir.done(&["reload"]);
    let alerts = lab.gateway.weir.alerts();
    assert!(
        alerts.contains("client: ") && alerts.contains("another program is there"),
        "{alerts}"
    );
    assert_eq!(hooks(&lab), serde_json::json!(["other"]));
    lab.lets_only_curl_through("by XDP and tc");
    theirs.detach();
    soon("the place", || {
        (hooks(&lab) == serde_json::json!(["client", "other"])).then_some(())
    });
    lab.lets_only_curl_through("by XDP again");
    lab.gateway.weir.end("KILL");
    lab.gateway.weir.done(&["detach"]);
    assert_eq!(lab.client.connects(SERVER[0], PORT), "connected");
}

/// The kernel takes off the tags of VLAN 0 one after the other, the later ones behind tc.
#[test]
fn root_no_tags_get_a_packet_by_a_gateway() {
    let Some(mut lab) = lab("tags") else {
        return;
    };
    lab.client.start_signing(CURL_AND_PYTHON, SERVER);
    let [curl, _] = known(&lab);
    lab.gateway.copy_keys(&lab.client);
    require(&lab, &curl, "", "");
    lab.gateway.weir.start();
    let here = &lab.links[2];
    let macs = (here.mac(Side::A), here.mac(Side::B));
    for hook in ["tc", "xdp"] {
        require(&lab, &curl, &format!("hook = \"{hook}\"\n"), "");
        lab.gateway.weir.done(&["reload"]);
        for tags in 1..=3 {
            for (address, from) in SERVER.iter().zip(["203.0.113.2", "2001:db8:2::2"]) {
                let syn = |port| {
                    let syn = frames::Syn {
                        source: (from.parse().unwrap(), 40_000 + tags as u16),
                        dest: (address.parse().unwrap(), port),
                        isn: 7,
                        options: Vec::new(),
                    };
                    let frame = syn.frame(macs);
                    let tags = [0x81, 0, 0, 0].repeat(tags);
                    [&frame[..12], &tags, &frame[12..]].concat()
                };
                let told = format!("{hook} {tags} {address}");
                // What needs no token arrives in this form.
                let arrives = frames::Capture::begin(&lab.server, OPEN);
                frames::send(&lab.other, &syn(OPEN));
                assert_eq!(frames::Syn::read(&arrives.end()).dest.1, OPEN, "{told}");
                let before = lab.gateway.outcome("missing");
                frames::send(&lab.other, &syn(PORT));
                soon(&told, || {
                    (lab.gateway.outcome("missing") > before).then_some(())
                });
            }
        }
    }
}

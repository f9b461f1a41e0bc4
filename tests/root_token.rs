//! Tokens between hosts: curl on one proves to another what it is, which lets it to a port
//! where nobody else gets in. Each host is a network namespace with a control group, a
//! daemon and keys of its own; nginx serves, curl and python3 ask, by IPv4 and IPv6.

#[path = "root_token/app_rules.rs"]
mod app_rules;
#[path = "root_token/captures.rs"]
mod captures;
mod common;
#[path = "root_token/conditions.rs"]
mod conditions;
#[path = "root_token/conduits.rs"]
mod conduits;
#[path = "root_token/core_dump.rs"]
mod core_dump;
#[path = "root_token/daf.rs"]
mod daf;
#[path = "root_token/datagrams.rs"]
mod datagrams;
#[path = "common/dumps.rs"]
mod dumps;
#[path = "root_token/forward.rs"]
mod forward;
#[path = "root_token/frames.rs"]
mod frames;
#[path = "root_token/gateway.rs"]
mod gateway;
#[path = "root_token/gateway_kinds.rs"]
mod gateway_kinds;
#[path = "root_token/group.rs"]
mod group;
#[path = "root_token/lab.rs"]
mod lab;
#[path = "root_token/paths.rs"]
mod paths;
#[path = "root_token/payload.rs"]
mod payload;
#[path = "common/plain.rs"]
mod plain;
#[path = "root_token/same_port.rs"]
mod same_port;
#[path = "root_token/strip.rs"]
mod strip;

use std::{fs, net::IpAddr, path::Path};

use common::soon;
use frames::Syn;
use lab::{CURL_AND_PYTHON, Lab, LongConnection, OPEN, PORT, SERVER, url};
use weir_netlab::Side;
use weir_token::{EXID, KeyId, TokenOption, epoch_at, key_file::Key};

/// A connection that sends a half request, changes, and sends the other half.
const CHANGE: &str = "
import os, socket, sys
address, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for n in range(5):
    try: c = socket.create_connection((address, port), 4); break
    except OSError: pass
else: sys.exit('never connected')
c.send(b'GET / HTTP/1.0\\r\\n')
if mode == 'library': import ctypes
end = b'\\r\\n'
if mode == 'child':
    os.set_inheritable(c.fileno(), True)
    os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'printf \"\\\\r\\\\n\" >&%d' % c.fileno()])
else: c.send(end)
c.settimeout(2)
try: print('answer' if c.recv(100).startswith(b'HTTP/1.1 200') else 'end')
except TimeoutError: print('silence')
";

#[test]
fn root_curl_proves_what_it_is_and_nobody_else_gets_in() {
    let Some(mut lab) = Lab::new("first") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.start_server(&curl);
    let (client, server) = (&lab.client, &lab.server);
    for address in SERVER {
        soon("curl to get in", || {
            (client.curl(address, PORT) == "200").then_some(())
        });
        assert_eq!(client.curl(address, PORT), "200");
        soon("python to be known", || {
            (client.connects(address, OPEN) == "connected").then_some(())
        });
        // It signs as well, as what it is.
        let (refused, signed) = (server.outcome("not-named"), client.signing("signed"));
        assert_eq!(client.connects(address, PORT), "TimeoutError");
        assert!(
            server.outcome("not-named") > refused,
            "{} {} {}",
            server.token(),
            client.token(),
            client.weir.json(&["app", "list", "--programs"])
        );
        assert!(client.signing("signed") > signed);
        // Who has no weir has no token: on another host, and on the server itself.
        let missing = server.outcome("missing");
        let at = url(address, PORT);
        for space in [&lab.other, &server.space] {
            let words = ["--max-time", "2", "-s", at.as_str()];
            assert_eq!(
                space.output("curl", &words).unwrap().status.code(),
                Some(28)
            );
        }
        assert!(server.outcome("missing") >= missing + 2);
        assert_eq!(
            lab.other
                .output("curl", &["-s", &url(address, OPEN)])
                .unwrap()
                .status
                .code(),
            Some(0)
        );
    }
    assert!(server.outcome("valid") >= 4 && server.outcome("proven") >= 4);
    assert!(server.token()["requirements"][0]["refused"].as_u64() > Some(4));
    let shown = server.weir.done(&["status"]);
    assert!(shown.contains("web 8080/tcp: "), "{shown}");

    // No secret is anywhere but in its file.
    let file = fs::read_to_string(client.weir.path("keys/1.key")).unwrap();
    let (_, secret) = file.split_once("secret = \"").unwrap();
    let secret = &secret[..64];
    for host in [client, server] {
        let list = host.weir.done(&["token", "key", "list"]);
        assert!(list.contains("signs"), "{list}");
        let metrics = host.weir.done(&["metrics"]);
        assert!(metrics.contains("weir_token_"), "{metrics}");
        let status = host.weir.json(&["status"]).to_string();
        for text in [&list, &metrics, &status, &host.weir.said()] {
            assert!(!text.contains(&secret[..16]), "{text}");
        }
    }

    // Without daemons.
    lab.client.weir.end("KILL");
    lab.server.weir.end("KILL");
    for address in SERVER {
        assert_eq!(lab.client.curl(address, PORT), "200");
        assert_eq!(lab.client.connects(address, PORT), "TimeoutError");
        assert_eq!(lab.client.connects(address, OPEN), "connected");
    }
    lab.client.weir.start();
    lab.server.weir.start();
    for address in SERVER {
        soon("curl after the restart", || {
            (lab.client.curl(address, PORT) == "200").then_some(())
        });
        assert_eq!(lab.client.connects(address, PORT), "TimeoutError");
    }
    // Without the section everything is as it was before weir.
    lab.server.configure("");
    lab.server.weir.done(&["reload"]);
    assert_eq!(lab.client.connects(SERVER[0], PORT), "connected");

    // Nor does anything of it stay behind.
    let before = lab.client.signing("signed");
    assert_eq!(lab.client.curl(SERVER[0], OPEN), "200");
    assert!(lab.client.signing("signed") > before);
    lab.client.weir.end("KILL");
    let told = lab.client.weir.done(&["detach"]);
    assert!(told.contains("([token])"), "{told}");
    let pins = Path::new("/sys/fs/bpf/weir").join(&lab.client.instance);
    assert!(
        !pins
            .join(format!("token-{}", weir_bpf::abi::TOKEN_ABI))
            .exists()
    );
}

#[test]
fn root_what_holds_a_signed_connection_stays_what_signed() {
    let Some(mut lab) = Lab::new("change") else {
        return;
    };
    lab.start_client(&CURL_AND_PYTHON.replace("default = \"drop\"", "default = \"allow\""));
    let client = &lab.client;
    let python = soon("python to be known", || {
        client.python(CHANGE, &[SERVER[0], &OPEN.to_string(), "same"]);
        client.aggregate("python3")
    });
    lab.start_server(&python);
    let client = &lab.client;
    soon("python to get in", || {
        (client.connects(SERVER[0], PORT) == "connected").then_some(())
    });
    for address in SERVER {
        let run = |mode: &str| {
            let said = client.python(CHANGE, &[address, &PORT.to_string(), mode]);
            said.trim().to_owned()
        };
        // What others have left sends again for a while, and is counted.
        soon("a connection of one program", || {
            let changed = client.signing("changed");
            assert_eq!(run("same"), "answer", "{address}");
            (client.signing("changed") == changed).then_some(())
        });
        for mode in ["library", "child"] {
            let changed = client.signing("changed");
            assert_eq!(run(mode), "silence", "{mode} to {address}");
            assert!(client.signing("changed") > changed, "{mode}");
        }
    }
}

/// As the guide has it: a rule about curl and none about python3.
#[test]
fn root_connections_are_signed_where_nothing_is_denied() {
    let Some(mut lab) = Lab::new("allow") else {
        return;
    };
    lab.start_client(
        "default = \"allow\"\nunknown = \"learn\"\n[app.rules.curl]\nverdict = \"allow\"\npath = \"/usr/bin/curl\"\n",
    );
    let curl = lab.aggregate_of_curl();
    lab.start_server(&curl);
    for address in SERVER {
        soon("curl to get in", || {
            (lab.client.curl(address, PORT) == "200").then_some(())
        });
        assert_eq!(lab.client.connects(address, OPEN), "connected");
        let not_named = lab.server.outcome("not-named");
        soon("a token of python3", || {
            assert_eq!(lab.client.connects(address, PORT), "TimeoutError");
            (lab.server.outcome("not-named") > not_named).then_some(())
        });
    }
}

#[test]
fn root_tokens_of_others_are_refused_and_counted_by_reason() {
    let Some(mut lab) = Lab::new("replay") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.start_server(&curl);
    let server = &lab.server;
    let key = fs::read_to_string(lab.client.weir.path("keys/1.key")).unwrap();
    let key = Key::parse(&key).unwrap();
    let (id, secret) = (key.id, key.secret().unwrap());
    let identity = curl.parse().unwrap();
    let identity_key = secret.identity_key(id, &identity);
    let now = || {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        epoch_at(since.as_secs())
    };
    for (n, server_address) in SERVER.into_iter().enumerate() {
        let to: IpAddr = server_address.parse().unwrap();
        let sources: [[IpAddr; 2]; 2] = [
            ["192.0.2.1".parse().unwrap(), "192.0.2.3".parse().unwrap()],
            [
                "2001:db8::1".parse().unwrap(),
                "2001:db8::3".parse().unwrap(),
            ],
        ];
        let [client, other] = sources[n];
        let macs = (lab.veths[2].mac(Side::A), lab.veths[1].mac(Side::A));

        // What curl sends is taken from the wire: it is good once, from there.
        let capture = frames::Capture::begin(&server.space, PORT);
        soon("curl to get in", || {
            (lab.client.curl(server_address, PORT) == "200").then_some(())
        });
        let captured = Syn::read(&capture.end());
        assert_eq!(captured.source, (client, captured.source.1));
        let refused = |name: &str, syn: &Syn, macs| {
            let before = server.outcome(name);
            frames::send(&lab.other, &syn.frame(macs));
            soon(name, || (server.outcome(name) > before).then_some(()));
        };
        let valid = server.outcome("valid");
        refused("replayed", &captured, macs);
        refused(
            "wrong-mac",
            &Syn {
                source: (other, captured.source.1),
                ..captured.clone()
            },
            macs,
        );
        refused(
            "wrong-mac",
            &Syn {
                source: (client, captured.source.1 ^ 1),
                ..captured.clone()
            },
            macs,
        );
        refused(
            "wrong-mac",
            &Syn {
                isn: captured.isn ^ 1,
                ..captured.clone()
            },
            macs,
        );

        // Made with the key: good as it is, and refused for each thing that is wrong.
        let made = Syn {
            source: (other, 40_000),
            dest: (to, PORT),
            isn: 7,
            options: Vec::new(),
        };
        let signed = |epoch: u64| {
            let statement = made.statement(id, epoch);
            TokenOption {
                version: 1,
                key_id: id.number(),
                epoch: epoch as u16,
                tag: *identity.0.first_chunk().unwrap(),
                mac: statement.mac(&identity_key),
            }
        };
        let with = |options: &[u8]| Syn {
            options: options.to_vec(),
            ..made.clone()
        };
        let good = signed(now());
        assert_eq!(server.outcome("valid"), valid, "a replay was taken");
        refused("other-epoch", &with(&signed(now() - 3).bytes()), macs);
        refused("other-epoch", &with(&signed(now() + 3).bytes()), macs);
        refused("wrong-mac", &with(&signed(now() + 65_536).bytes()), macs);
        refused(
            "unknown-key",
            &with(&TokenOption { key_id: 2, ..good }.bytes()),
            macs,
        );
        refused(
            "other-version",
            &with(&TokenOption { version: 2, ..good }.bytes()),
            macs,
        );
        refused(
            "not-named",
            &with(
                &TokenOption {
                    tag: [9; 4],
                    ..good
                }
                .bytes(),
            ),
            macs,
        );
        refused(
            "wrong-mac",
            &with(
                &TokenOption {
                    mac: [9; 8],
                    ..good
                }
                .bytes(),
            ),
            macs,
        );
        refused("missing", &with(&[]), macs);
        refused("missing", &with(&[1; 40]), macs);
        let bytes = good.bytes();
        refused("malformed", &with(&bytes[..16]), macs);
        refused("malformed", &with(&[&bytes[..], &bytes[..]].concat()), macs);
        refused(
            "malformed",
            &with(&[254, 8, (EXID >> 8) as u8, EXID as u8, 1, 1, 0, 0]),
            macs,
        );
        refused("malformed", &with(&[254, 0, 0, 0]), macs);
        assert_eq!(server.outcome("valid"), valid, "a wrong token was taken");
        let before = server.outcome("valid");
        frames::send(&lab.other, &with(&bytes).frame(macs));
        soon("the good one", || {
            (server.outcome("valid") > before).then_some(())
        });
        // Who that was is told, by reason and address.
        let why = server.weir.json(&["token", "why", &other.to_string()]);
        let reasons: std::collections::BTreeSet<_> = why["packets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|packet| packet["reason"].as_str().unwrap())
            .collect();
        for name in [
            "malformed",
            "missing",
            "not-named",
            "other-epoch",
            "wrong-mac",
        ] {
            assert!(reasons.contains(name), "{name} {why}");
        }
        // The same by the verb that says why of everything.
        let other_packets = |why: &serde_json::Value| why["packets"].as_array().unwrap().len();
        let same = server.weir.json(&["why", "--token", &other.to_string()]);
        assert_eq!(other_packets(&same), other_packets(&why));
        let all = server.weir.json(&["why", "--token"]);
        assert!(other_packets(&all) >= other_packets(&same));
        let (code, told) = server.weir.ask(&["why", "--token", "192.0.2.0/24"]);
        assert!(code == Some(2) && told.contains("no prefix"), "{told}");
        let one = server
            .weir
            .done(&["token", "why", "--reason", "unknown-key"]);
        let line = one.lines().find(|line| line.contains(server_address));
        let line = line.unwrap_or_else(|| panic!("{one}"));
        assert!(
            line.contains("dropped") && line.contains(&curl[..8]),
            "{line}"
        );
        // A later segment of a flow without a SYN, as a guessed SYN cookie would be.
        let before = server.outcome("no-flow");
        let stray = Syn {
            source: (other, 41_000),
            ..made.clone()
        };
        frames::send(&lab.other, &stray.segment(macs, frames::ACK));
        soon("no-flow", || {
            (server.outcome("no-flow") > before).then_some(())
        });
    }
    assert_eq!(KeyId::MIN, id);
}

#[test]
fn root_keys_change_without_a_lost_connection() {
    let Some(mut lab) = Lab::new("rotation") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl_aggregate = lab.aggregate_of_curl();
    lab.start_server(&curl_aggregate);
    soon("curl to get in", || {
        (lab.client.curl(SERVER[0], PORT) == "200").then_some(())
    });
    // Slow, begun with the first key.
    let mut long = LongConnection::begin(&lab.client, SERVER[0], "long");
    let works = |what: &str| {
        for address in SERVER {
            assert_eq!(lab.client.curl(address, PORT), "200", "{what}");
        }
    };
    let keys = lab.client.keys();
    let far = ["--sign-from", "2100-01-01T00:00:00Z"];
    lab.client
        .weir
        .done(&[&["token", "key", "new", "--keys", &keys][..], &far].concat());
    let second = fs::read_to_string(lab.client.weir.path("keys/2.key")).unwrap();
    lab.server.copy_keys(&lab.client);
    lab.server.weir.done(&["reload"]);
    works("accepted by the server");
    // Now it may sign.
    let line = "sign_from = \"2100-01-01T00:00:00Z\"\n";
    fs::write(lab.client.weir.path("keys/2.key"), second.replace(line, "")).unwrap();
    lab.client.weir.done(&["reload"]);
    let used = |id: usize| lab.client.token()["keys"][id]["use"].clone();
    soon("the second key to sign", || {
        (used(1) == "signs").then_some(())
    });
    works("signed with the second key");
    let server_keys = lab.server.keys();
    // As long as the new one does not sign on the server, it is the last there.
    fs::copy(
        lab.client.weir.path("keys/2.key"),
        Path::new(&server_keys).join("2.key"),
    )
    .unwrap();
    lab.server
        .weir
        .done(&["token", "key", "retire", "1", "--keys", &server_keys]);
    lab.server.weir.done(&["reload"]);
    works("with the first key retired");
    // Who has it still gets nowhere.
    let unknown = lab.server.outcome("unknown-key");
    lab.client
        .weir
        .done(&["token", "key", "retire", "2", "--keys", &keys]);
    lab.client.weir.done(&["reload"]);
    assert_eq!(lab.client.curl(SERVER[0], PORT), "000");
    assert!(lab.server.outcome("unknown-key") > unknown);
    // The slow one has gone on all the time.
    long.goes_on("with all keys retired that it began with");
}

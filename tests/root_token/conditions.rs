//! Tokens where things are not as they should be: a path that strips options, small MTUs,
//! clocks that differ, IPv6 headers before TCP's, a flood of SYNs while keys are read anew.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use weir_netlab::Side;
use weir_token::{TokenOption, VERSION, epoch_at, key_file::Key};

use super::{
    common::soon,
    frames::{self, Syn},
    lab::{CURL_AND_PYTHON, Host, Lab, OPEN, PORT, SERVER, url},
};

/// A client that signs, and a server that wants tokens of curl.
fn lab(name: &str) -> Option<Lab> {
    let mut lab = Lab::new(name)?;
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.start_server(&curl);
    soon("curl to get in", || {
        (lab.client.curl(SERVER[0], PORT) == "200").then_some(())
    });
    Some(lab)
}

#[test]
fn root_a_path_that_strips_the_option_is_seen_on_both_sides() {
    let Some(lab) = lab("strip") else { return };
    let (client, server) = (&lab.client, &lab.server);
    // What a device on the way would do to it: the option becomes padding.
    for rule in [
        "add table inet strip",
        "add chain inet strip out { type filter hook output priority 0; }",
        "add rule inet strip out reset tcp option 254",
    ] {
        client.space.run("nft", &[rule]).unwrap();
    }
    for address in SERVER {
        let (signed, missing) = (client.signing("signed"), server.outcome("missing"));
        assert_eq!(client.curl(address, PORT), "000", "{address}");
        assert!(client.signing("signed") > signed, "{address}");
        assert!(server.outcome("missing") > missing, "{address}");
        assert_eq!(client.curl(address, OPEN), "200", "{address}");
    }
    for source in ["192.0.2.1", "2001:db8::1"] {
        let why = server.weir.done(&["token", "why", source]);
        assert!(why.contains(" missing "), "{why}");
        let words = ["token", "why", source, "--reason", "wrong-mac"];
        assert_eq!(server.weir.ask(&words).0, Some(1));
    }
    client
        .space
        .run("nft", &["delete table inet strip"])
        .unwrap();
    for address in SERVER {
        assert_eq!(client.curl(address, PORT), "200", "{address}");
    }
}

#[test]
fn root_tokens_pass_where_packets_are_small() {
    let Some(lab) = lab("mtu") else { return };
    // IPv6 needs 1280.
    for (mtu, addresses) in [("1280", &SERVER[..]), ("576", &SERVER[..1])] {
        for space in [&lab.client.space, &lab.server.space] {
            space.ip(&[format!("link set eth0 mtu {mtu}")]).unwrap();
        }
        for address in addresses {
            assert_eq!(lab.client.curl(address, PORT), "200", "{address} {mtu}");
        }
    }
    assert_eq!(lab.client.signing("without_room"), 0);
}

#[test]
fn root_a_clock_that_is_an_hour_behind_is_named() {
    let Some(mut lab) = lab("clock") else { return };
    lab.server.weir.end("KILL");
    // The daemon's time of day less its uptime is what the kernel goes by.
    let words = ["unshare", "--time", "--boottime", "3600", "--"];
    lab.server.weir.under = words.map(str::to_owned).to_vec();
    lab.server.weir.start();
    for address in SERVER {
        let before = lab.server.outcome("other-epoch");
        assert_eq!(lab.client.curl(address, PORT), "000", "{address}");
        assert!(lab.server.outcome("other-epoch") > before, "{address}");
    }
    lab.server.weir.end("KILL");
    lab.server.weir.under.clear();
    lab.server.weir.start();
    for address in SERVER {
        assert_eq!(lab.client.curl(address, PORT), "200", "{address}");
    }
}

/// With headers of these kinds before TCP's: hop-by-hop and destination options, and that of a
/// fragment which is the whole packet.
fn with_headers(frame: &[u8], kinds: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8 * kinds.len() as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    for kind in kinds.iter().rev() {
        let next = std::mem::replace(&mut frame[20], *kind);
        let header = match kind {
            44 => [next, 0, 0, 0, 0, 0, 0, 9],
            _ => [next, 0, 1, 4, 0, 0, 0, 0],
        };
        frame.splice(54..54, header);
    }
    frame
}

#[test]
fn root_a_token_counts_behind_ipv6_headers_and_for_its_whole_identity() {
    let Some(lab) = lab("headers") else { return };
    let server = &lab.server;
    let key = std::fs::read_to_string(lab.client.weir.path("keys/1.key")).unwrap();
    let key = Key::parse(&key).unwrap();
    let curl: weir_token::Digest = lab.client.aggregate("/curl").unwrap().parse().unwrap();
    // Another program whose digest begins as that of curl does, with the same secret.
    let mut other = curl;
    other.0[4] ^= 1;
    let macs = (lab.veths[2].mac(Side::A), lab.veths[1].mac(Side::A));
    let frame = |port: u16, identity: &weir_token::Digest| {
        let mut syn = Syn {
            source: ("2001:db8::3".parse().unwrap(), port),
            dest: (SERVER[1].parse().unwrap(), PORT),
            isn: 7,
            options: Vec::new(),
        };
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let statement = syn.statement(key.id, epoch_at(since.as_secs()));
        let identity_key = key.secret().unwrap().identity_key(key.id, identity);
        let token = TokenOption {
            version: VERSION,
            key_id: key.id.number(),
            epoch: statement.epoch as u16,
            tag: *identity.0.first_chunk().unwrap(),
            mac: statement.mac(&identity_key),
        };
        syn.options = token.bytes().to_vec();
        syn.frame(macs)
    };
    let sent = |frame: &[u8], outcome: &str| {
        let before = server.outcome(outcome);
        frames::send(&lab.other, frame);
        soon(outcome, || (server.outcome(outcome) > before).then_some(()));
    };
    for (port, kinds) in [
        (1, &[][..]),
        (2, &[60]),
        (3, &[0, 60]),
        (4, &[0, 60, 60, 60, 60, 60]),
        (5, &[44]),
        (6, &[0, 60, 44]),
        (7, &[44, 60]),
    ] {
        sent(&with_headers(&frame(41_000 + port, &curl), kinds), "valid");
    }
    sent(&frame(42_000, &other), "wrong-mac");
    sent(&with_headers(&frame(42_001, &other), &[60]), "wrong-mac");
    // One more than is gone through: nobody gets in that way.
    sent(
        &with_headers(&frame(43_000, &curl), &[0, 60, 60, 60, 60, 60, 60]),
        "malformed",
    );
}

/// The source of a packet stands in front of what cannot be read: so it is of the requirement
/// about this source, and not of the first one of its port.
#[test]
fn root_what_cannot_be_read_is_of_the_requirement_about_its_source() {
    let Some(mut lab) = Lab::new("unread") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.server.copy_keys(&lab.client);
    let of = |name: &str, from: &str, mode: &str| {
        format!(
            "[token.require.{name}]\nports = [\"{PORT}/tcp\"]\nfrom = [{from}]\n\
             aggregate = \"{curl}\"\nmode = \"{mode}\"\n"
        )
    };
    let here = "\"192.0.2.0/24\", \"2001:db8::/32\"";
    let configure = |server: &Host, of_others: &str, of_here: &str| {
        server.configure(&format!(
            "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n{}{}",
            of("first", "\"10.0.0.0/8\"", of_others),
            of("second", here, of_here),
        ));
    };
    configure(&lab.server, "log", "require");
    lab.server.weir.start();
    let server = &lab.server;
    let counts = |outcome: &str| {
        let token = server.token();
        [0, 1].map(|of| {
            let count = token["requirements"][of]["outcomes"][outcome].as_u64();
            count.unwrap_or_else(|| panic!("no {outcome} in {token}"))
        })
    };
    let macs = (lab.veths[2].mac(Side::A), lab.veths[1].mac(Side::A));
    let syn = |port: u16| {
        let syn = Syn {
            source: ("2001:db8::3".parse().unwrap(), port),
            dest: (SERVER[1].parse().unwrap(), PORT),
            isn: 7,
            options: Vec::new(),
        };
        syn.frame(macs)
    };
    let dropped = |frame: &[u8], outcome: &str| {
        let [others, before] = counts(outcome);
        frames::send(&lab.other, frame);
        let after = soon(outcome, || {
            let after = counts(outcome);
            (after[0] + after[1] > others + before).then_some(after)
        });
        assert_eq!(after, [others, before + 1], "{outcome}");
        let why = server.weir.json(&["token", "why", "--reason", outcome]);
        let packets = why["packets"].as_array().unwrap();
        assert!(packets.iter().all(|one| one["dropped"] == true), "{why}");
    };
    dropped(&with_headers(&syn(41_000), &[60; 7]), "malformed");
    dropped(&with_headers(&syn(41_001), &[44]), "missing");
    // The other way round it passes, and nothing of it counts as of the first one.
    configure(server, "require", "log");
    server.weir.done(&["reload"]);
    let [others, before] = counts("malformed");
    frames::send(&lab.other, &with_headers(&syn(41_002), &[60; 7]));
    let logged = [others, before + 1];
    soon("one to be logged", || {
        (counts("malformed") == logged).then_some(())
    });
}

/// Sends SYNs without a token from many ports until it is ended.
const FLOOD: &str = "
import socket, sys
frame = bytearray.fromhex(sys.argv[1]); s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth0', 0))
check = int.from_bytes(frame[50:52], 'big')
for n in range(200000):
    port = 1024 + n % 60000
    total = (check ^ 0xffff) + (1024 ^ 0xffff) + port
    total = (total & 0xffff) + (total >> 16); total = (total & 0xffff) + (total >> 16)
    frame[34:36] = port.to_bytes(2, 'big'); frame[50:52] = (total ^ 0xffff).to_bytes(2, 'big')
    try: s.send(frame)
    except OSError: pass
";

#[test]
fn root_keys_are_read_anew_under_a_flood_of_syns() {
    let Some(lab) = lab("flood") else { return };
    let server = &lab.server;
    let macs = (lab.veths[2].mac(Side::A), lab.veths[1].mac(Side::A));
    let syn = Syn {
        source: ("192.0.2.3".parse().unwrap(), 1024),
        dest: (SERVER[0].parse().unwrap(), PORT),
        isn: 7,
        options: Vec::new(),
    };
    let hex = hex::encode(syn.frame(macs));
    let before = server.outcome("missing");
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-c", FLOOD, &hex])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut flood = lab.other.spawn(command).unwrap();
    soon("the flood", || {
        (server.outcome("missing") > before + 100).then_some(())
    });
    thread::scope(|scope| {
        // Nobody without a token gets in while it changes.
        let tried = scope.spawn(|| {
            (0..5)
                .map(|_| {
                    let url = format!("http://{}:{PORT}/", SERVER[0]);
                    let words = ["-s", "-o", "/dev/null", "--max-time", "1", &url];
                    lab.other.output("curl", &words).unwrap().status.code()
                })
                .collect::<Vec<_>>()
        });
        for round in 0..10 {
            server.weir.done(&["reload"]);
            assert_eq!(lab.client.curl(SERVER[round % 2], PORT), "200", "{round}");
        }
        assert_eq!(tried.join().unwrap(), [Some(28); 5]);
    });
    let _ = flood.inner().kill();
    let _ = flood.wait(Duration::from_secs(10));
    // The ports whose checksums were right reached the socket.
    assert!(
        server.outcome("missing") > before + 1000,
        "{}",
        server.token()
    );
    let why = server
        .weir
        .json(&["token", "why", "192.0.2.3", "--reason", "missing"]);
    assert_eq!(why["packets"].as_array().unwrap().len(), 64);
    assert!(
        why["reasons"]["missing"]["not_kept"].as_u64() > Some(900),
        "{why}"
    );
}

/// `mode = "log"`: all connections pass, and what would not is counted, and told by its reason.
#[test]
fn root_a_port_that_only_logs_lets_all_connections_in_and_counts() {
    let Some(mut lab) = Lab::new("log") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.server.copy_keys(&lab.client);
    lab.server.require(&curl, "mode = \"log\"\n");
    lab.server.weir.start();
    lab.client.known_python(SERVER[0]);
    let (client, server) = (&lab.client, &lab.server);
    soon("python to sign", || {
        client.connects(SERVER[0], PORT);
        (server.outcome("not-named") > 0).then_some(())
    });
    let by_other = |address: &str| {
        let url = url(address, PORT);
        let words = ["-s", "-o", "/dev/null", "--max-time", "3", &url];
        lab.other.output("curl", &words).unwrap().status.code()
    };
    for address in SERVER {
        let count = |reason: &str| server.outcome(reason);
        let before = ["valid", "not-named", "missing"].map(count);
        assert_eq!(client.curl(address, PORT), "200", "{address}");
        assert_eq!(client.connects(address, PORT), "connected", "{address}");
        assert_eq!(by_other(address), Some(0), "{address}");
        let after = ["valid", "not-named", "missing"].map(count);
        for (n, reason) in ["valid", "not-named", "missing"].iter().enumerate() {
            assert!(
                after[n] > before[n],
                "{address} {reason}: {}",
                server.token()
            );
        }
    }
    let why = server.weir.json(&["token", "why", "--reason", "missing"]);
    let packets = why["packets"].as_array().unwrap();
    assert!(!packets.is_empty());
    assert!(
        packets.iter().all(|packet| packet["dropped"] == false),
        "{why}"
    );
    assert!(server.weir.done(&["token", "why"]).contains("passed (log)"));
    // A reload without it, and nobody else gets in.
    server.require(&curl, "");
    server.weir.done(&["reload"]);
    for address in SERVER {
        assert_eq!(client.curl(address, PORT), "200", "{address}");
        assert_eq!(client.connects(address, PORT), "TimeoutError", "{address}");
        assert_eq!(by_other(address), Some(28), "{address}");
    }
    // And back.
    server.require(&curl, "mode = \"log\"\n");
    server.weir.done(&["reload"]);
    for address in SERVER {
        assert_eq!(by_other(address), Some(0), "{address}");
    }
}

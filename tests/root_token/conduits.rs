//! Where tokens stand that go over a router: where the configuration has them, or where
//! `weir options probe` has found that the path lets them pass. The router strips IP options
//! and IPv6 destination options, and then options of TCP as well; curl asks nginx behind it.

use std::fs;

use serde_json::Value;
use weir_token::verify::Segment;

use super::{
    common::{skipped, soon},
    datagrams::{self, Lab, SERVER},
    frames,
    lab::{OPEN, PORT, nginx_conf},
};

/// Writes NOP over a token in an IPv4 header, and PadN over one in IPv6 destination options,
/// where a probe has it and where a token is.
const STRIP_IP: &str = "
        ip hdrlength 10 @nh,160,8 30 @nh,160,32 set 0x01010101 @nh,192,32 set 0x01010101 @nh,224,32 set 0x01010101 @nh,256,32 set 0x01010101 @nh,288,32 set 0x01010101
        meta nfproto ipv6 @nh,48,8 60 @nh,336,8 0x1e @nh,336,16 set 0x0112
        meta nfproto ipv6 @nh,48,8 60 @nh,352,8 0x1e @nh,352,16 set 0x0112
";
const STRIP_TCP: &str = "
        tcp option 254 exists reset tcp option 254
";

/// What happens to what comes from the client.
fn filter(lab: &Lab, rules: &str) {
    let file = lab.client.weir.path("rules.nft");
    let text = format!(
        "table inet path {{}}\ndelete table inet path\ntable inet path {{\n chain forward {{\n type filter hook forward priority 0\n iifname != client accept\n{rules} }}\n}}\n"
    );
    fs::write(&file, text).unwrap();
    let words = ["-f", file.to_str().unwrap()];
    lab.router.run("nft", &words).unwrap();
}

/// Measures into this file.
fn probe(lab: &Lab, name: &str) {
    let [client, server] = [&lab.client.space, &lab.server.space].map(|space| space.name());
    let sites = [
        format!("west=netns:{client}"),
        format!("east=netns:{server}/{}", SERVER.join(",")),
    ];
    let file = lab.client.weir.path(name);
    let mut words = vec!["options", "probe", &sites[0], &sites[1]];
    words.extend(["--resume", file.to_str().unwrap(), "--carrier", "tcp,udp"]);
    for option in ["ip:30/20", "dst:0x1e/20", "tcp:254/20"] {
        words.extend(["--option", option]);
    }
    lab.client.weir.done(&words);
}

fn configure(lab: &Lab, more: &str) {
    configure_with(
        lab,
        &format!("conduits = [\"ip-option\", \"tcp-option\"]\n{more}"),
    );
}

fn configure_with(lab: &Lab, more: &str) {
    lab.client.configure(&format!(
        "[app]\ncgroup = \"{{cgroup}}\"\ndefault = \"drop\"\nunknown = \"drop\"\n[app.rules.both]\nverdict = \"allow\"\npath = [\"/usr/bin/curl\", \"/usr/bin/python3\"]\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\nsign_udp_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n{more}"
    ));
}

/// Whether the SYN that curl sends has a token among the options of IP, and of TCP.
fn tokens_of_a_syn(lab: &Lab, address: &str, port: u16) -> [bool; 2] {
    let capture = frames::Capture::begin(&lab.server.space, port);
    let answer = lab.client.curl(address, port);
    let frame = capture.end();
    let segment = Segment::read(&frame[14..]).unwrap();
    assert!(segment.is_syn(), "{answer}");
    let by_tcp = weir_token::find(segment.options.unwrap()).unwrap();
    [segment.ip_token.unwrap().is_some(), by_tcp.is_some()]
}

/// The conduit of each network and protocol, and who chose it.
fn conduits(lab: &Lab) -> Vec<(String, String)> {
    let token = lab.client.token();
    let conduits = token["signing"]["conduits"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    conduits
        .map(|to| (word(&to["conduit"]), word(&to["chosen_by"])))
        .collect()
}

fn all(tcp: &str, udp: &str, by: &str) -> Vec<(String, String)> {
    let words = [tcp, tcp, udp, udp].map(|word| (word.to_owned(), by.to_owned()));
    words.to_vec()
}

fn gets_in(lab: &Lab) {
    for address in SERVER {
        soon("curl to get in", || {
            (lab.client.curl(address, PORT) == "200").then_some(())
        });
    }
}

#[test]
fn root_tokens_go_by_the_conduit_that_passed_in_a_probe() {
    if skipped(&["nft", "/usr/sbin/nginx", "curl"]) {
        return;
    }
    let Some(mut lab) = Lab::new("conduit") else {
        return;
    };
    let conf = nginx_conf(&lab.server.weir.path(""));
    let _nginx = lab
        .server
        .spawn(&["/usr/sbin/nginx", "-c", conf.to_str().unwrap()]);
    // The path lets everything pass: SYNs have the token in their IP headers.
    configure(&lab, "");
    lab.client.weir.start();
    let curl = lab.client.known_curl(SERVER[0]);
    lab.server.copy_keys(&lab.client);
    lab.server.require(&curl, "");
    lab.server.weir.start();
    gets_in(&lab);
    assert_eq!(
        conduits(&lab),
        all("ip-option", "ip-option", "configuration")
    );
    for address in SERVER {
        let (valid, signed) = (lab.server.outcome("valid"), lab.client.signing("signed"));
        assert_eq!(tokens_of_a_syn(&lab, address, PORT), [true, false]);
        assert_eq!(lab.server.outcome("valid"), valid + 1);
        assert_eq!(lab.client.signing("signed"), signed + 1);
    }
    probe(&lab, "passes.jsonl");
    // It strips IP options: nobody gets in, until a probe is read.
    filter(&lab, STRIP_IP);
    for address in SERVER {
        assert_eq!(lab.client.curl(address, PORT), "000");
    }
    probe(&lab, "strips.jsonl");
    configure(&lab, "probe_result = \"{dir}/strips.jsonl\"\n");
    lab.client.weir.done(&["reload"]);
    gets_in(&lab);
    assert_eq!(conduits(&lab), all("tcp-option", "none", "probe"));
    for address in SERVER {
        let valid = lab.server.outcome("valid");
        assert_eq!(tokens_of_a_syn(&lab, address, PORT), [false, true]);
        assert_eq!(lab.server.outcome("valid"), valid + 1);
        lab.ask(address, datagrams::OPEN, "plain", &[40]);
    }
    let udp = &lab.client.token()["signing"]["udp"];
    assert_eq!(
        (&udp["signed"], &udp["interfaces"]),
        (&0.into(), &Value::Array(vec![]))
    );
    let alerts = lab.client.weir.alerts();
    for network in ["198.51.100.0/24", "2001:db8:2::/64"] {
        let told = format!("to {network} no token is sent by UDP");
        assert!(alerts.contains(&told), "{alerts}");
    }
    let (_, shown) = lab.client.weir.ask(&["status"]);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "tokens by TCP to 198.51.100.0/24 as tcp-option: by the probe of 20";
    assert!(shown.contains(told), "{shown}");
    assert!(
        shown.contains("no token by UDP to 2001:db8:2::/64: by"),
        "{shown}"
    );

    // A file that is none is refused, and what was in force stays; a start goes without.
    let good = lab.client.weir.read("strips.jsonl");
    lab.client.weir.write(
        "strips.jsonl",
        &good.replacen("\"from\"", "\"\\u001bfrom\"", 1),
    );
    let (code, said) = lab.client.weir.ask(&["reload"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("strips.jsonl: line 2: unknown field"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let (code, said) = lab.client.weir.ask(&["check"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("strips.jsonl"), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "tokens by TCP to 198.51.100.0/24 as ip-option: by the configuration";
    assert!(said.contains(told), "{said}");
    assert_eq!(conduits(&lab), all("tcp-option", "none", "probe"));
    for address in SERVER {
        assert_eq!(lab.client.curl(address, PORT), "200");
    }
    lab.client.weir.end("TERM");
    lab.client.weir.start();
    assert_eq!(
        conduits(&lab),
        all("ip-option", "ip-option", "configuration")
    );
    assert!(lab.client.weir.alerts().contains("unknown field"));
    lab.client.weir.write("strips.jsonl", &good);
    lab.client.weir.done(&["reload"]);
    gets_in(&lab);

    // Neither passes: no token is sent, which is told.
    filter(&lab, &format!("{STRIP_IP}{STRIP_TCP}"));
    probe(&lab, "nothing.jsonl");
    configure(
        &lab,
        "probe_result = \"{dir}/nothing.jsonl\"\nprobe_site = \"west\"\n",
    );
    lab.client.weir.done(&["reload"]);
    assert_eq!(conduits(&lab), all("none", "none", "probe"));
    assert!(lab.client.weir.alerts().contains("no token is sent by TCP"));
    filter(&lab, "");
    for address in SERVER {
        assert_eq!(tokens_of_a_syn(&lab, address, OPEN), [false, false]);
    }
    // All pass again: the preferred one is taken.
    configure(&lab, "probe_result = \"{dir}/passes.jsonl\"\n");
    lab.client.weir.done(&["reload"]);
    gets_in(&lab);
    assert_eq!(conduits(&lab), all("ip-option", "ip-option", "probe"));
    assert!(!lab.client.weir.alerts().contains("probe_result"));
    for address in SERVER {
        assert_eq!(tokens_of_a_syn(&lab, address, PORT), [true, false]);
    }
}

/// A unit starts before the network is up: conduits are chosen when the host has its addresses.
#[test]
fn root_conduits_are_chosen_when_the_host_gets_its_addresses() {
    if skipped(&["nft", "curl"]) {
        return;
    }
    let Some(mut lab) = Lab::new("late") else {
        return;
    };
    filter(&lab, STRIP_IP);
    probe(&lab, "strips.jsonl");
    configure(&lab, "probe_result = \"{dir}/strips.jsonl\"\n");
    lab.client
        .space
        .ip(&["addr flush dev eth0".to_owned()])
        .unwrap();
    lab.client.weir.start();
    assert_eq!(
        conduits(&lab),
        all("ip-option", "ip-option", "configuration")
    );
    let alerts = lab.client.weir.alerts();
    let told = "no site of it has sent from an address of this host";
    assert!(alerts.contains(told), "{alerts}");
    let changes = [
        "addr add 192.0.2.1/24 dev eth0",
        "addr add 2001:db8:1::1/64 dev eth0 nodad",
        "route replace default via 192.0.2.254",
        "route replace default via 2001:db8:1::fe",
    ];
    lab.client.space.ip(&changes.map(str::to_owned)).unwrap();
    soon("conduits of the probe", || {
        (conduits(&lab) == all("tcp-option", "none", "probe")).then_some(())
    });
    assert!(!lab.client.weir.alerts().contains(told));
    lab.client.known_curl(SERVER[0]);
    for address in SERVER {
        // A SYN has none while its program is looked at anew.
        soon("a token in the TCP header", || {
            let tokens = tokens_of_a_syn(&lab, address, OPEN);
            assert!(!tokens[0], "{address}");
            tokens[1].then_some(())
        });
    }
}

/// Segments have their tokens in the TCP header, and their SYN as well, beside datagrams with
/// theirs in IP's at the same interface; where TCP options do not pass there are none.
#[test]
fn root_segments_are_signed_where_tcp_options_passed_in_a_probe() {
    if skipped(&["nft", "/usr/sbin/nginx", "curl"]) {
        return;
    }
    let Some(mut lab) = Lab::new("segment") else {
        return;
    };
    let conf = nginx_conf(&lab.server.weir.path(""));
    let _nginx = lab
        .server
        .spawn(&["/usr/sbin/nginx", "-c", conf.to_str().unwrap()]);
    let payload = |lab: &Lab, file: &str| {
        let file = format!("scope = \"payload\"\nprobe_result = \"{{dir}}/{file}\"\n");
        configure_with(lab, &file);
    };
    probe(&lab, "passes.jsonl");
    filter(&lab, STRIP_TCP);
    probe(&lab, "strips.jsonl");
    filter(&lab, "");
    payload(&lab, "passes.jsonl");
    lab.client.weir.start();
    let curl = lab.client.known_curl(SERVER[0]);
    lab.server.copy_keys(&lab.client);
    lab.server.require(&curl, "scope = \"payload\"\n");
    lab.server.weir.start();
    gets_in(&lab);
    assert_eq!(conduits(&lab), all("tcp-option", "ip-option", "probe"));
    let signing = |kind: &str, what: &str| {
        let signing = &lab.client.token()["signing"];
        signing[kind][what].as_u64().unwrap()
    };
    for address in SERVER {
        let (signed, proven) = (signing("segments", "signed"), lab.server.outcome("proven"));
        assert_eq!(tokens_of_a_syn(&lab, address, PORT), [false, true]);
        assert!(signing("segments", "signed") > signed);
        assert!(lab.server.outcome("proven") > proven);
        let signed = signing("udp", "signed");
        soon("datagrams to be signed", || {
            lab.ask(address, datagrams::OPEN, "plain", &[40]);
            (signing("udp", "signed") > signed).then_some(())
        });
    }
    let text = lab.client.weir.ask(&["status"]).1;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "signing each segment at eth0: ",
        "signing UDP to 198.51.100.0/24 2001:db8:2::/64 at eth0: ",
        "tokens by TCP to 2001:db8:2::/64 as tcp-option: by the probe of 20",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }

    // Connections that get none go on all the same where nobody wants one.
    payload(&lab, "strips.jsonl");
    lab.client.weir.done(&["reload"]);
    assert_eq!(conduits(&lab), all("none", "ip-option", "probe"));
    assert!(lab.client.weir.alerts().contains("no token is sent by TCP"));
    let signed = signing("segments", "signed");
    for address in SERVER {
        assert_eq!(tokens_of_a_syn(&lab, address, OPEN), [false, false]);
        assert_eq!(lab.client.curl(address, OPEN), "200");
        assert_eq!(lab.client.curl(address, PORT), "000");
    }
    assert_eq!(signing("segments", "signed"), signed);
    for reason in ["without_signer", "without_interface", "without_room"] {
        assert_eq!(signing("segments", reason), 0, "{reason}");
    }
    // The kernel refuses none of it: "ip-option" is told before.
    configure(&lab, "scope = \"payload\"\n");
    let (code, said) = lab.client.weir.ask(&["reload"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("conduits has \"ip-option\""), "{said}");
}

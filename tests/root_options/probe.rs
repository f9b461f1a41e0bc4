//! `weir options probe` between sites whose router passes, strips, changes and drops options.

use std::{fs, path::Path};

use serde_json::Value;
use weir_netlab::{Namespace, Net, Veth, VethOpts};

use super::{
    common::skipped,
    lab::{EAST, Lab, WEST},
};

/// What happens on the way from west to east; nothing happens on the way back, but that UDP
/// does not pass.
const FILTERS: &str = "
table inet path {
    chain forward {
        type filter hook forward priority 0
        iifname east0 meta l4proto udp drop
        iifname != west0 accept
        ip option rr exists drop
        ip hdrlength 6 @nh,160,8 94 @nh,160,32 set 0x01010101
        ip hdrlength 6 @nh,160,8 148 @nh,176,16 set 0x1234
        tcp option 254 exists reset tcp option 254
        tcp option 71 exists drop
        tcp option maxseg exists tcp option maxseg size set 1000
        tcp option 253 exists numgen inc mod 2 0 drop
        ip hdrlength 5 ip protocol udp meta length > 44 drop
        exthdr hbh exists drop
        meta nfproto ipv6 @nh,320,8 17 @nh,328,8 0 @nh,336,8 0x1e @nh,352,32 set 0x55555555
    }
}
";

const OPTIONS: [&str; 14] = [
    "ip:rr",
    "ip:exp-94",
    "ip:rtralt",
    "ip:exp-30",
    "tcp:exp-254",
    "tcp:reserved-71",
    "tcp:mss",
    "tcp:exp-253",
    "tcp:ts",
    "udp:time",
    "hop:exp-1e",
    "dst:exp-1e",
    "ext:fragment",
    "ip:nop",
];

/// The verdict of a pair about an option on a carrier.
pub fn verdict<'j>(
    json: &'j Value,
    pair: (&str, &str, &str),
    option: &str,
    carrier: &str,
) -> &'j str {
    let mut pairs = json["pairs"].as_array().unwrap().iter();
    let pair = pairs
        .find(|p| p["from"] == pair.0 && p["to"] == pair.1 && p["family"] == pair.2)
        .unwrap_or_else(|| panic!("no {pair:?} in {json}"));
    let mut rows = pair["measurements"].as_array().unwrap().iter();
    rows.find(|row| row["option"] == option && row["carrier"] == carrier)
        .map_or("", |row| row["verdict"].as_str().unwrap())
}

pub fn words<'w>(lab: &'w [String], more: &[&'w str]) -> Vec<&'w str> {
    let mut words = vec!["options", "probe"];
    words.extend(lab.iter().map(String::as_str));
    words.extend(more);
    words
}

fn options() -> Vec<&'static str> {
    OPTIONS
        .iter()
        .flat_map(|option| ["--option", option])
        .collect()
}

pub fn filter(router: &Namespace, dir: &Path, rules: &str) {
    let file = dir.join("rules.nft");
    fs::write(&file, rules).unwrap();
    router.run("nft", &["-f", file.to_str().unwrap()]).unwrap();
}

#[test]
fn root_each_verdict_is_that_of_the_filter_on_the_path() {
    let Some(lab) = Lab::new(&["nft"]) else {
        return;
    };
    filter(&lab.router, lab.dir.path(), FILTERS);
    let sites = [("west", &lab.west), ("east", &lab.east)]
        .map(|(label, space)| format!("{label}=netns:{}", space.name()));
    let (results, pcaps) = (lab.path("results.jsonl"), lab.path("pcaps"));
    let svg = lab.path("matrix.svg");
    let mut more = options();
    more.extend(["--tries", "4", "--json"]);
    more.extend(["--resume", results.to_str().unwrap()]);
    more.extend([
        "--pcap",
        pcaps.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let json = lab.weir(&lab.router, &words(&sites, &more)).done().json();
    let there = ("west", "east", "ipv4");
    let there6 = ("west", "east", "ipv6");
    for (option, carrier, wanted) in [
        ("ip:rr", "icmp", "dropped"),
        ("ip:rr", "tcp", "dropped"),
        ("ip:exp-94", "udp", "stripped"),
        ("ip:exp-94", "icmp", "stripped"),
        ("ip:rtralt", "icmp", "altered"),
        ("ip:exp-30", "tcp", "pass"),
        ("ip:nop", "icmp", "pass"),
        ("tcp:exp-254", "tcp", "stripped"),
        ("tcp:reserved-71", "tcp", "dropped"),
        ("tcp:mss", "tcp", "altered"),
        ("tcp:exp-253", "tcp", "mixed"),
        ("tcp:ts", "tcp", "pass"),
        ("udp:time", "udp", "dropped"),
    ] {
        let found = verdict(&json, there, option, carrier);
        assert_eq!(found, wanted, "{option} on {carrier}: {json}");
        // Nothing happens on the way back.
        let back = verdict(&json, ("east", "west", "ipv4"), option, carrier);
        let wanted = if carrier == "udp" { "no-path" } else { "pass" };
        assert_eq!(back, wanted, "{option} on {carrier}: {json}");
    }
    for (option, carrier, wanted) in [
        ("hop:exp-1e", "icmp", "dropped"),
        ("dst:exp-1e", "udp", "altered"),
        ("dst:exp-1e", "tcp", "pass"),
        ("ext:fragment", "icmp", "pass"),
        ("tcp:exp-254", "tcp", "stripped"),
        ("tcp:exp-253", "tcp", "mixed"),
        ("udp:time", "udp", "pass"),
        ("ip:rr", "icmp", ""),
    ] {
        let found = verdict(&json, there6, option, carrier);
        assert_eq!(found, wanted, "IPv6 {option} on {carrier}: {json}");
        let back = verdict(&json, ("east", "west", "ipv6"), option, carrier);
        let wanted = match (wanted, carrier) {
            ("", _) => "",
            (_, "udp") => "no-path",
            _ => "pass",
        };
        assert_eq!(back, wanted, "IPv6 {option} on {carrier}: {json}");
    }
    // Captures that another program reads, of both ends.
    let read = |name: &str| {
        let file = pcaps.join(name);
        let out = std::process::Command::new("tshark")
            .args([
                "-r",
                file.to_str().unwrap(),
                "-T",
                "fields",
                "-e",
                "ip.src",
                "-e",
                "ipv6.src",
            ])
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    if skipped(&["tshark"]) {
        return;
    }
    for (family, source) in [(4, WEST[0]), (6, WEST[1])] {
        let sent = read(&format!("west--east.ipv{family}.sent.pcap"));
        let arrived = read(&format!("west--east.ipv{family}.arrived.pcap"));
        assert!(sent.lines().all(|line| line.trim() == source), "{sent}");
        assert!(
            arrived.lines().all(|line| line.trim() == source),
            "{arrived}"
        );
        assert!(arrived.lines().count() < sent.lines().count());
        assert!(arrived.lines().count() > 20);
    }
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("west to east: stripped") && drawn.contains("east to west: pass"));
}

/// What was measured before an interruption is not measured again.
#[test]
fn root_a_measurement_goes_on_where_it_was_interrupted() {
    let Some(lab) = Lab::new(&["nft"]) else {
        return;
    };
    let sites = [("west", &lab.west), ("east", &lab.east)]
        .map(|(label, space)| format!("{label}=netns:{}", space.name()));
    let results = lab.path("results.jsonl");
    let file = results.to_str().unwrap();
    let more = [
        "--option", "ip:rr", "--option", "hop:padn", "--resume", file, "--json",
    ];
    let first = lab.weir(&lab.router, &words(&sites, &more)).done().json();
    let there = ("west", "east", "ipv4");
    assert_eq!(verdict(&first, there, "ip:rr", "icmp"), "pass");
    let whole = fs::read_to_string(&results).unwrap();
    assert_eq!(whole.lines().count(), 5, "{whole}");
    // The path has another filter now, and the last line is cut in its middle.
    filter(
        &lab.router,
        lab.dir.path(),
        "table inet path { chain forward { type filter hook forward priority 0
          ip option rr exists drop
          exthdr hbh exists drop
        }
        }
        ",
    );
    fs::write(&results, &whole[..whole.len() - 20]).unwrap();
    let said = lab.weir(&lab.router, &words(&sites, &more)).done();
    assert!(said.err.contains("the last line is not whole"), "{said:?}");
    let second = said.json();
    assert_eq!(verdict(&second, there, "ip:rr", "icmp"), "pass");
    assert_eq!(
        verdict(&second, ("west", "east", "ipv6"), "hop:padn", "udp"),
        "pass"
    );
    let last = ("east", "west", "ipv6");
    assert_eq!(verdict(&second, last, "hop:padn", "udp"), "dropped");
    let again = fs::read_to_string(&results).unwrap();
    assert_eq!(again.lines().count(), 5);
    assert!(again.starts_with(whole.lines().next().unwrap()));
    // With another option, all is measured again.
    let more = ["--option", "ip:ts", "--ipv4", "--resume", file, "--matrix"];
    let shown = lab.weir(&lab.router, &words(&sites, &more)).done().out;
    assert!(shown.contains("ip:ts on icmp, IPv4"), "{shown}");
    // Other files are refused, not overwritten.
    let other = lab.path("other");
    fs::write(&other, "{}\n").unwrap();
    let more = ["--resume", other.to_str().unwrap()];
    lab.weir(&lab.router, &words(&sites, &more))
        .refused(&["line 1: it is no file of weir options probe"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "{}\n");
    let nowhere = [sites[0].clone(), "nowhere=netns:nowhere-at-all".to_owned()];
    lab.weir(&lab.router, &words(&nowhere, &["--option", "ip:rr"]))
        .refused(&["site nowhere: cannot start an agent in namespace nowhere-at-all"]);
    let _ = EAST;
}

/// A real sshd at the other site starts the agent there; what is no agent is said.
#[test]
fn root_a_site_is_reached_by_ssh() {
    let Some(lab) = Lab::new(&["sshd", "ssh", "ssh-keygen"]) else {
        return;
    };
    let dir = lab.dir.path().display();
    for name in ["host", "user"] {
        let key = lab.path(name);
        let words = ["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().unwrap()];
        lab.west.run("ssh-keygen", &words).unwrap();
    }
    fs::create_dir_all("/run/sshd").unwrap();
    let options = [
        "-f".to_owned(),
        "/dev/null".into(),
        "-h".into(),
        format!("{dir}/host"),
        format!("-oAuthorizedKeysFile={dir}/user.pub"),
        "-oStrictModes=no".into(),
        "-oPidFile=none".into(),
        "-oUsePAM=no".into(),
        "-oPermitRootLogin=yes".into(),
    ];
    let server = lab.east.output("/usr/sbin/sshd", &options).unwrap();
    assert!(server.status.success(), "{server:?}");
    let config = lab.path("config");
    let text = format!(
        "Host *\nIdentityFile {dir}/user\nIdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    );
    fs::write(&config, text).unwrap();
    let sites = [
        format!("west=netns:{}", lab.west.name()),
        format!("east=ssh:root@{}", EAST[0]),
    ];
    let agent = format!("{} options agent", super::common::WEIR);
    let more = [
        "--ssh-config",
        config.to_str().unwrap(),
        "--option",
        "ip:rr",
        "--json",
    ];
    let with = |agent: &str| {
        let more = [&more[..], &["--agent", agent]].concat();
        lab.weir(&lab.west, &words(&sites, &more))
    };
    let json = with(&agent).done().json();
    for pair in [("west", "east", "ipv4"), ("east", "west", "ipv4")] {
        assert_eq!(verdict(&json, pair, "ip:rr", "icmp"), "pass", "{json}");
    }
    with("echo hello").refused(&["site east: its agent: a line is no message of this protocol"]);
    with("true").refused(&["site east: its agent: it has ended"]);
}

/// What the sender's own kernel refuses says nothing about the path.
#[test]
fn root_packets_that_do_not_leave_are_not_dropped_on_the_path() {
    let Some(lab) = Lab::new(&["nft"]) else {
        return;
    };
    filter(
        &lab.west,
        lab.dir.path(),
        "table inet own { chain output { type filter hook output priority 0
          ip option rr exists drop
          exthdr hbh exists drop
        }
        }
        ",
    );
    let sites = [("west", &lab.west), ("east", &lab.east)]
        .map(|(label, space)| format!("{label}=netns:{}", space.name()));
    let more = [
        "--option", "ip:rr", "--option", "ip:nop", "--option", "hop:padn", "--json",
    ];
    let said = lab.weir(&lab.router, &words(&sites, &more)).done();
    assert!(
        said.err
            .contains("west to east, IPv4: 9 packets did not leave"),
        "{said:?}"
    );
    let json = said.json();
    for (family, option, left) in [
        ("ipv4", "ip:rr", ""),
        ("ipv4", "ip:nop", "pass"),
        ("ipv6", "hop:padn", ""),
    ] {
        for carrier in ["icmp", "udp", "tcp"] {
            let found = verdict(&json, ("west", "east", family), option, carrier);
            assert_eq!(found, left, "{option} on {carrier}: {json}");
            let back = verdict(&json, ("east", "west", family), option, carrier);
            assert_eq!(back, "pass", "{option} on {carrier}: {json}");
        }
    }
}

/// The receiver's host sees each packet twice: in that of the tunnel, where the option is not
/// in the outer header, and as it comes out.
#[test]
fn root_options_pass_a_tunnel_that_is_not_encrypted() {
    let Some(lab) = Lab::new(&[]) else {
        return;
    };
    for (site, local, remote, host) in [
        (&lab.west, WEST[0], EAST[0], 1),
        (&lab.east, EAST[0], WEST[0], 2),
    ] {
        let made = site.ip(&[
            format!("link add tunnel type vxlan id 7 dstport 4789 local {local} remote {remote}"),
            format!("address add 10.77.0.{host}/24 dev tunnel"),
            format!("address add 2001:db8:77::{host}/64 dev tunnel nodad"),
            "link set tunnel up".to_owned(),
        ]);
        if let Err(error) = made {
            eprintln!("skipped: no VXLAN: {error}");
            return;
        }
    }
    let sites = [("west", &lab.west, 1), ("east", &lab.east, 2)].map(|(label, space, host)| {
        let name = space.name();
        format!("{label}=netns:{name}/10.77.0.{host},2001:db8:77::{host}")
    });
    let more = [
        "--option", "ip:rr", "--option", "hop:padn", "--option", "tcp:ts", "--option", "udp:time",
        "--json",
    ];
    let json = lab.weir(&lab.router, &words(&sites, &more)).done().json();
    for (family, option, carriers) in [
        ("ipv4", "ip:rr", &["icmp", "udp", "tcp"][..]),
        ("ipv6", "hop:padn", &["icmp", "udp", "tcp"]),
        ("ipv4", "tcp:ts", &["tcp"]),
        ("ipv4", "udp:time", &["udp"]),
        ("ipv6", "udp:time", &["udp"]),
    ] {
        for carrier in carriers {
            for (from, to) in [("west", "east"), ("east", "west")] {
                let found = verdict(&json, (from, to, family), option, carrier);
                assert_eq!(found, "pass", "{option} on {carrier}, {family}: {json}");
            }
        }
    }
}

/// Sites of the survey (the recount of its captures): what arrived with record route and
/// timestamp at hosts of each provider. Receivers of two filter both options, one of another
/// provider's does, one does not; a third provider and a university pass them.
#[test]
fn root_the_table_of_the_survey_comes_of_filters_like_those_it_found() {
    const SITES: [(&str, bool); 6] = [
        ("gcp", false),
        ("azure", false),
        ("aws-frankfurt", false),
        ("aws-mumbai", true),
        ("digitalocean", true),
        ("university", true),
    ];
    if skipped(&["nft"]) {
        return;
    }
    let net = Net::new().unwrap();
    let router = net.namespace("router").unwrap();
    router.forward().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut rules = String::new();
    let (mut veths, mut sites): (Vec<Veth>, Vec<String>) = (Vec::new(), Vec::new());
    for (number, (label, passes)) in SITES.iter().enumerate() {
        let site = net.namespace(&format!("s{number}")).unwrap();
        let (near, far) = (format!("10.9.{number}.1/24"), format!("10.9.{number}.2/24"));
        let opts = VethOpts::new(&[&near], &[&far]).unwrap();
        let device = format!("site{number}");
        veths.push(net.veth(&site, "eth0", &router, &device, opts).unwrap());
        site.ip(&[format!("route add default via 10.9.{number}.2")])
            .unwrap();
        if !passes {
            rules += &format!("oifname {device} ip hdrlength > 5 drop\n");
        }
        sites.push(format!("{label}=netns:{}", site.name()));
    }
    filter(
        &router,
        dir.path(),
        &format!(
            "table ip path {{ chain forward {{ type filter hook forward priority 0\n{rules}}}\n}}\n"
        ),
    );
    let mut command = std::process::Command::new(super::common::WEIR);
    command.args(words(
        &sites,
        &[
            "--option",
            "ip:rr",
            "--option",
            "ip:ts",
            "--carrier",
            "icmp",
            "--ipv4",
            "--json",
        ],
    ));
    let json = super::common::Answer::of(command.output().unwrap())
        .done()
        .json();
    assert_eq!(json["pairs"].as_array().unwrap().len(), 30);
    for (from, _) in SITES {
        for (to, passes) in SITES {
            if from == to {
                continue;
            }
            for option in ["ip:rr", "ip:ts"] {
                let wanted = if passes { "pass" } else { "dropped" };
                let found = verdict(&json, (from, to, "ipv4"), option, "icmp");
                assert_eq!(found, wanted, "{from} {to} {option}");
            }
        }
    }
    drop(veths);
}

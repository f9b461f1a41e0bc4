//! `weir import pen`: what it prints goes through `weir check`, and says what becomes of
//! everything that was typed.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn import(typed: &str) -> Output {
    let mut weir = Command::new(WEIR);
    weir.args(["import", "pen", "--", typed]).output().unwrap()
}

/// The configuration with a pool, or one in which it is a comment, which is told.
#[track_caller]
fn imported(typed: &str) -> String {
    let output = import(typed);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8(output.stdout).unwrap();
    let has_pool = settings(&text).contains_key("pool");
    let code = Some(i32::from(!has_pool));
    assert_eq!(output.status.code(), code, "{told}{text}");
    let is_told = told.starts_with("weir: [pool.pen] is printed as a comment: ");
    assert_eq!(is_told, !has_pool, "{told}{text}");
    assert_eq!(told.is_empty(), has_pool, "{told}");
    // Whatever was typed, `weir check` takes what comes of it.
    let dir = TempDir::with_prefix("weir-import-").unwrap();
    let file = dir.path().join("weir.toml");
    fs::write(&file, &text).unwrap();
    let mut check = Command::new(WEIR);
    let check = check
        .arg("--config")
        .arg(&file)
        .arg("check")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    let complained = String::from_utf8_lossy(&check.stderr).into_owned();
    assert_eq!(check.status.code(), Some(0), "{said}{complained}\n{text}");
    text
}

fn settings(text: &str) -> toml::Table {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The comments of a configuration, each on one line.
fn comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
    let joined: String = lines
        .map(|line| match line.strip_prefix("   ") {
            Some(more) => format!(" {more}"),
            None => format!("\n{}", line.trim_start()),
        })
        .collect();
    joined
}

#[track_caller]
fn tells(text: &str, told: &[&str]) {
    let comments = comments(text);
    for words in told {
        assert!(comments.contains(words), "{words:?} is not in {comments}");
    }
}

/// The command lines of Pen's own announcements.
#[test]
fn pens_examples_become_pools_that_check_accepts() {
    let tarpit = "pen -df -O \"acl 1 permit 192.168.2.11\" -O \"tarpit_acl 1\" -O \"dsr_if lo\" \
                  192.168.2.10:80 192.168.2.2 192.168.2.3";
    let text = imported(tarpit);
    let toml = settings(&text);
    assert_eq!(
        toml["interfaces"].as_array().unwrap()[0].as_str(),
        Some("lo")
    );
    assert_eq!(toml["balance"]["interface"].as_str(), Some("lo"));
    assert_eq!(toml["balance"]["announce"].as_bool(), Some(true));
    let pool = &toml["pool"]["pen"];
    assert_eq!(
        pool["vip"].as_array().unwrap()[0].as_str(),
        Some("192.168.2.10")
    );
    assert_eq!(
        pool["ports"].as_array().unwrap()[0].as_str(),
        Some("80/tcp")
    );
    let reals = pool["reals"].as_array().unwrap();
    let addresses: Vec<_> = reals
        .iter()
        .map(|real| real["address"].as_str().unwrap())
        .collect();
    assert_eq!(addresses, ["192.168.2.2", "192.168.2.3"]);
    assert_eq!(
        toml["tarpit"]["addresses"].to_string(),
        "[\"192.168.2.11\"]"
    );
    tells(
        &text,
        &[
            "word 2 (-d): debug: not carried over",
            "word 2 (-f): nothing to do",
        ],
    );
    assert!(!text.contains("its last entry denies"), "{text}");

    let tcp = "./pen -df -O \"dsr_if lo\" -r 192.168.100.10:0 192.168.100.3 192.168.100.4";
    let text = imported(tcp);
    let pool = settings(&text)["pool"]["pen"].clone();
    assert_eq!(pool["ports"].to_string(), "[\"1-65535/tcp\"]");
    assert_eq!(pool["check"]["port"].as_integer(), Some(80));
    tells(
        &text,
        &[
            "asked: word 6: port 0 is every port",
            "-r is no round robin in Pen's dsr mode",
        ],
    );

    let udp = "sudo ./pen -df -U -O poll -O \"dsr_if lo\" -S 2 -r 192.168.100.1:53 192.168.100.3 192.168.100.4";
    let text = imported(udp.trim_start_matches("sudo "));
    let pool = settings(&text)["pool"]["pen"].clone();
    assert_eq!(pool["ports"].to_string(), "[\"53/udp\"]");
    assert_eq!(pool["check"]["dns"].as_str(), Some("."));
}

/// "Anything that is not destined for one of these addresses": the segment is a guess, and
/// is told as one.
#[test]
fn a_tarpit_for_everybody_else_becomes_prefixes_and_a_question() {
    let denied = ["192.168.2.1", "192.168.2.2", "192.168.2.3", "192.168.2.10"];
    let acl: String = denied
        .map(|addr| format!("-O \"acl 1 deny {addr}\" "))
        .concat();
    let text = imported(&format!(
        "pen -O \"dsr_if lo\" -O 'tarpit_acl 1' {acl}192.168.2.10:80 192.168.2.2 192.168.2.3"
    ));
    tells(
        &text,
        &[
            "asked: tarpit_acl 1: its last entry denies",
            "192.168.2.0/24, a guess",
        ],
    );
    let toml = settings(&text);
    assert!(toml["tarpit"].get("addresses").is_none());
    let prefixes = toml["tarpit"]["dark"].as_array().unwrap();
    let prefixes: Vec<weir_core::Prefix> = prefixes
        .iter()
        .map(|p| p.as_str().unwrap().parse().unwrap())
        .collect();
    for last in 0..=255 {
        let addr = std::net::IpAddr::from([192, 168, 2, last]);
        let held = prefixes
            .iter()
            .filter(|prefix| prefix.contains(addr))
            .count();
        let is_denied = denied.contains(&addr.to_string().as_str());
        assert_eq!(held, usize::from(!is_denied), "{addr}");
    }
}

#[test]
fn a_file_of_commands_is_read_line_by_line() {
    let dir = TempDir::with_prefix("weir-import-").unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(
        at("pen.cfg"),
        "# as `penctl write` has it\ndsr_if lo\nlisten 198.51.100.10:443\nweight\nblacklist 10\n\
         timeout 5\nserver 0 acl 0 address 198.51.100.2 port 443 max 10 hard 20 weight 3\n\
         server 1 address 198.51.100.3 port 443\nserver 2 address 198.51.100.3\nno http\n\
         ssl_ciphers HIGH\ntcp_nodelay\ntransparent\nclient_acl 2\nacl 2 deny 203.0.113.0 255.255.255.0\n\
         prio\nrun-away\n",
    )
    .unwrap();
    fs::write(
        at("more.cfg"),
        format!("include {}\nserver 1 weight 0\n", at("pen.cfg")),
    )
    .unwrap();
    let text = imported(&at("more.cfg"));
    let pool = settings(&text)["pool"]["pen"].clone();
    let reals = pool["reals"].as_array().unwrap();
    assert_eq!(reals.len(), 2);
    assert_eq!(reals[0]["weight"].as_integer(), Some(3));
    assert!(reals[1].get("weight").is_none(), "0 is 1 in Pen's dsr mode");
    assert_eq!(pool["check"]["rise"].as_integer(), Some(5));
    assert_eq!(pool["check"]["timeout"].as_str(), Some("5s"));
    let cfg = at("pen.cfg");
    let line = |number: usize, told: &str| format!("{cfg}:{number}: {told}");
    tells(
        &text,
        &[
            &line(10, "no http: nothing to do"),
            &line(
                11,
                "ssl_ciphers HIGH: not carried over: TLS ends at the servers",
            ),
            &line(12, "tcp_nodelay: not carried over"),
            &line(13, "transparent: nothing to do"),
            &line(16, "prio: not carried over: servers are not ranked"),
            &line(17, "run-away: not carried over: it is no command of Pen's"),
            "max 10, hard 20",
            "server \"198.51.100.3\" is there already",
            "client_acl 2 is `acl` of the pool",
            "it permits, the opposite of its last entry",
            "with dsr_if Pen asks client_acl about nobody and serves everybody",
        ],
    );
    assert_eq!(pool["acl"].to_string(), "[\"deny 203.0.113.0/24\"]");
    assert_eq!(pool["acl_default"].as_str(), Some("allow"));
    assert!(reals[1].get("port").is_none(), "packets keep their port");
    // A pool that would serve otherwise than Pen's is a comment.
    for (server, told) in [
        (
            "port 8443",
            "the server has to listen there, and not at 8443",
        ),
        ("address www3", "\"www3\" is not in `reals`"),
    ] {
        let line = format!("include {cfg}\nserver 1 {server}\n");
        fs::write(at("more.cfg"), line).unwrap();
        let text = imported(&at("more.cfg"));
        assert!(settings(&text).get("pool").is_none(), "{text}");
        tells(&text, &[told]);
    }
}

/// Without an interface Pen is a proxy, and so is the pool: what it limits, waits for and
/// admits, and where each server listens, are settings.
#[test]
fn a_proxy_of_pens_becomes_a_proxy() {
    let text = imported(
        "pen -h -x 300 -t 5 -b 10 -O 'idle_timeout 90' -O transparent -e 192.0.2.8:8080 \
         -O 'acl 3 permit country DE' -O 'acl 3 permit 10.0.0.0 255.0.0.0' -O 'client_acl 3' \
         -q 50 -H 192.0.2.10:80 192.0.2.2:8080 192.0.2.3",
    );
    let toml = settings(&text);
    assert!(toml.get("balance").is_none(), "{text}");
    tells(
        &text,
        &[
            "asked: client_acl 3: has this Pen GeoIP and its database?",
            "asked: does the running Pen have the same lists?",
        ],
    );
    let pool = &toml["pool"]["pen"];
    let told = |key: &str| pool[key].to_string();
    assert_eq!(told("forward"), "\"proxy\"");
    assert_eq!(
        told("reals"),
        "[{ address = \"192.0.2.2\", port = 8080 }, { address = \"192.0.2.3\" }]"
    );
    assert_eq!(
        told("emergency"),
        "[{ address = \"192.0.2.8\", port = 8080 }]"
    );
    assert_eq!(told("method"), "\"source-hash\"");
    assert_eq!(told("max_connections"), "300");
    assert_eq!(told("connect_timeout"), "\"5s\"");
    assert_eq!(told("idle_timeout"), "\"90s\"");
    assert_eq!(told("transparent"), "true");
    assert_eq!(told("acl"), "[\"allow country:DE\", \"allow 10.0.0.0/8\"]");
    assert_eq!(told("acl_default"), "\"deny\"");
    assert_eq!(pool["check"]["rise"].as_integer(), Some(5));
    assert!(pool["check"].get("timeout").is_none());
    tells(
        &text,
        &[
            "(-q): not carried over: as many may wait to be accepted",
            "`proxy_protocol = \"v2\"` tells the servers",
            "does each server's answer come back through this host?",
            "served clients as well that an access list denied",
        ],
    );
    assert!(!text.contains("hands packets on"), "{text}");

    let method = |options: &str| {
        let text = imported(&format!("pen {options} 192.0.2.10:80 192.0.2.2 192.0.2.3"));
        settings(&text)["pool"]["pen"]["method"].to_string()
    };
    assert_eq!(method("-r"), "\"round-robin\"");
    assert_eq!(method("-W"), "\"least-connections\"");
    assert_eq!(method(""), "\"source-hash\"");

    // Of both families, no server can see the client's address.
    let mixed = imported("pen -O transparent 192.0.2.10:80 '[2001:db8::2]:8080'");
    let pool = settings(&mixed)["pool"]["pen"].clone();
    assert!(pool.get("transparent").is_none(), "{mixed}");
    assert_eq!(pool["reals"][0]["port"].as_integer(), Some(8080));
    tells(&mixed, &["not carried over: transparent"]);
}

/// A list longer than a pool's opens no pool to those whom Pen denies.
#[test]
fn a_list_that_is_too_long_is_told() {
    let entries: String = (0..65)
        .map(|n| format!("-O 'acl 2 deny 10.0.{n}.0 255.255.255.0' "))
        .collect();
    let text = imported(&format!(
        "pen {entries} -O 'client_acl 2' 192.0.2.10:80 192.0.2.2"
    ));
    assert!(settings(&text).get("pool").is_none(), "{text}");
    tells(&text, &["client_acl has 65 entries, and `acl` takes 64"]);
}

/// Each option is answered, and nothing that is not whole becomes a setting.
#[test]
fn every_option_is_answered() {
    let options = "-B 192.0.2.9:80 -C /run/pen -H -P -T 60 -W -X -a -b 5 -c 9 -d -e 192.0.2.8:80 -f -h \
                   -j /tmp -l /log -m 5 -p /pid -q 50 -s -t 2 -u nobody -x 20 -w /stat -E c -K k -G g -A a \
                   -Z -R -L tls1 -D -Q -n -S 3 -N -y";
    let text = imported(&format!("pen {options} 80 192.0.2.2:8080:10 www"));
    let comments = comments(&text);
    for letter in "BCHPTXacdfjlmpqsuwEKGAZRLDQnSNy".chars() {
        let named = format!(" (-{letter}): ");
        assert!(comments.contains(&named), "-{letter}: {comments}");
    }
    tells(
        &text,
        &[
            "Pen listens at all addresses of this host",
            "abuse server",
            "it is no option of Pen's",
        ],
    );
    assert!(settings(&text).get("pool").is_none(), "{text}");
    assert!(text.contains("#[pool.pen]"), "{text}");

    // A setting of a proxy, and of nothing where packets are handed on.
    assert!(text.contains("max_connections = 20"), "{text}");
    let dsr = imported("pen -x 20 -O 'dsr_if lo' 192.0.2.10:80 192.0.2.2");
    tells(&dsr, &["(-x): conn_max 20: not carried over: weir hands"]);

    let whole =
        imported("pen -W -h -b 5 -e 192.0.2.8:80 192.0.2.10:80 192.0.2.2:8080 192.0.2.3:80:0:0:5");
    let reals = settings(&whole)["pool"]["pen"]["reals"].to_string();
    assert_eq!(
        reals,
        "[{ address = \"192.0.2.2\", port = 8080, weight = 0 }, { address = \"192.0.2.3\", weight = 5 }]"
    );
    assert_eq!(
        settings(&whole)["pool"]["pen"]["emergency"].to_string(),
        "[{ address = \"192.0.2.8\" }]"
    );
    tells(
        &whole,
        &[
            "the fewest connections for its weight",
            "the emergency server served clients",
        ],
    );
}

#[track_caller]
fn refused(typed: &str, told: &str) {
    let output = import(typed);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{typed}: {said}");
    assert!(said.contains(told), "{typed}: {said}");
    assert!(output.stdout.is_empty(), "{typed}");
}

/// What has no pool in it ends in an error that says what is missing.
#[test]
fn what_makes_no_pool_is_an_error() {
    let dir = TempDir::with_prefix("weir-import-").unwrap();
    let file = |text: &str| {
        let file = dir.path().join("pen.cfg");
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let no_word =
        "no word of it is the address and port at which Pen listens, as in pen 192.0.2.10:80";
    refused("pen -d", no_word);
    refused("pen -O 'acl 1 permit 192.0.2.1' -O 'client_acl 1'", no_word);
    refused(
        "pen /run/pen.sock 192.0.2.2",
        "word 2: /run/pen.sock is a Unix socket",
    );
    refused(
        "pen 192.0.2.10:http 192.0.2.2",
        "word 2: 192.0.2.10:http: which port is that?",
    );
    for text in [
        "",
        "# nothing\n",
        "hello\nworld\n",
        "server 0 address 192.0.2.2\n",
    ] {
        refused(&file(text), "no `listen` in it has the address and port");
    }
    // As whose option it is read.
    let whole = imported(&format!(
        "pen -F {} '[2001:db8::10]:80'",
        file("server 0 address 2001:db8::2\n")
    ));
    assert!(settings(&whole).contains_key("pool"));

    // A pool that lacks something is printed, and the exit code says that it is none yet.
    for (typed, why) in [
        ("pen 80 192.0.2.2", "Pen listens at all addresses"),
        (
            "pen www:80 192.0.2.2",
            "\"www\" is not the address of one host",
        ),
        ("pen 192.0.2.10:80", "no server is left"),
        ("pen '[2001:db8::10]:80' www1 www2", "no server is left"),
    ] {
        let output = import(typed);
        assert_eq!(output.status.code(), Some(1), "{typed}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(why), "{typed}: {said}");
        let text = imported(typed);
        assert!(text.contains("#[pool.pen]"), "{text}");
    }
}

/// The lists that Pen asks are those that the pool has, and where they cannot be, it serves
/// nobody yet.
#[test]
fn lists_are_carried_over_whole_or_the_pool_is_a_comment() {
    let ends = "192.0.2.10:80 192.0.2.2 192.0.2.3";
    let pool = |text: &str| settings(text).get("pool").map(|pool| pool["pen"].clone());
    // Of a proxy list 0 is asked where no other one is chosen.
    let text = imported(&format!(
        "pen -O 'acl 0 deny 203.0.113.0 255.255.255.0' -O 'acl 0 deny 2001:db8:5::/48' {ends}"
    ));
    let one = pool(&text).unwrap();
    assert_eq!(
        one["acl"].to_string(),
        "[\"deny 203.0.113.0/24\", \"deny 2001:db8:5::/48\"]"
    );
    assert_eq!(one["acl_default"].as_str(), Some("allow"));
    tells(
        &text,
        &[
            "changed: acl 0, which Pen asks without a client_acl, is `acl` of the pool",
            "asked: does the running Pen have the same lists?",
        ],
    );
    // Where Pen hands packets on it asks none.
    let text = imported(&format!(
        "pen -O 'dsr_if lo' -O 'acl 0 deny 203.0.113.0 255.255.255.0' {ends}"
    ));
    assert!(pool(&text).unwrap().get("acl").is_none(), "{text}");
    tells(
        &text,
        &["not carried over: acl 0, 1 entry: with dsr_if Pen asks tarpit_acl alone"],
    );
    assert!(!text.contains("does the running Pen"), "{text}");

    // An entry that cannot be read would let in whom Pen denies, or keep out others; and
    // what the last one says holds for everybody else.
    for entry in [
        "deny 203.0.113.9 255.0.255.0",
        "deny 2001:db8::/129",
        "permit country XX",
    ] {
        let text = imported(&format!(
            "pen -O 'acl 2 permit 192.0.2.0 255.255.255.0' -O 'acl 2 {entry}' -O 'client_acl 2' {ends}"
        ));
        assert!(pool(&text).is_none(), "{text}");
        assert!(text.contains("#acl = [\"allow 192.0.2.0/24\"]"), "{text}");
        tells(
            &text,
            &[&format!(
                "1 of the entries of acl 2, which says whom Pen serves, could not be taken over, \
                 the first at word 4 (-O): acl 2 {entry}"
            )],
        );
    }
    // Unless it was taken back.
    let text = imported(&format!(
        "pen -O 'acl 2 deny x' -O 'no acl 2' -O 'acl 2 deny 192.0.2.9' -O 'client_acl 2' {ends}"
    ));
    assert!(pool(&text).is_some(), "{text}");

    // A list of servers, which is list 0 of each that has no other.
    for lists in [
        "-O 'acl 0 deny 203.0.113.9' -O 'acl 3 permit 2001:db8::/32' -O 'client_acl 3'",
        "-O 'acl 4 deny 203.0.113.9' -O 'server 5 address 2001:db8::5 acl 4'",
    ] {
        let text = imported(&format!("pen {lists} {ends}"));
        assert!(pool(&text).is_none(), "{text}");
        tells(
            &text,
            &["says which clients a server takes, beside what client_acl says"],
        );
    }
    let text = imported(&format!(
        "pen -O 'dsr_if lo' -O 'acl 4 deny 203.0.113.9' -O 'server 5 address 192.0.2.5 acl 4' {ends}"
    ));
    assert!(pool(&text).is_some(), "{text}");
    tells(
        &text,
        &["not carried over: acl 4, 1 entry: with dsr_if Pen asks tarpit_acl alone"],
    );

    // Lists that nothing names, and numbers that there are not.
    let text = imported(&format!(
        "pen -O 'acl 7 deny 203.0.113.9' -O 'acl 7 permit x' -O 'client_acl 12' -O client_acl -O tarpit_acl {ends}"
    ));
    assert!(pool(&text).unwrap().get("acl").is_none(), "{text}");
    tells(
        &text,
        &[
            "not carried over: acl 7, 2 entries: neither client_acl, nor tarpit_acl, nor a server has it",
            "client_acl 12: changed: access lists have the numbers 0 to 9: Pen takes list 0",
            "client_acl: nothing to do: it asks a running Pen",
            "tarpit_acl: nothing to do: it asks a running Pen",
        ],
    );

    // A tarpit of half a list would hold addresses that Pen leaves alone.
    let text = imported(&format!(
        "pen -O 'dsr_if lo' -O 'acl 1 deny 192.0.2.300' -O 'acl 1 permit 192.0.2.0 255.255.255.0' -O 'tarpit_acl 1' {ends}"
    ));
    assert!(settings(&text).get("tarpit").is_none(), "{text}");
    tells(
        &text,
        &["asked: tarpit_acl 1: 1 of its entries could not be taken over"],
    );
}

/// Text that would be TOML, or steer a terminal, is a comment, and stays on its line.
#[test]
fn hostile_text_becomes_no_setting() {
    let evil = "pen -O 'dsr_if lo\"\n[jail.x]' -e '\u{1b}[31m\n[tarpit]' -O 'acl 1 permit \u{202e}x' \
                '[pool.x]:80' '192.0.2.2\n[sink.x]' $'x'";
    let text = imported(evil);
    let keys: Vec<_> = settings(&text).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["interfaces"], "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let dir = TempDir::with_prefix("weir-import-").unwrap();
    let cycle = dir.path().join("cycle.cfg");
    fs::write(&cycle, format!("include {}\n", cycle.display())).unwrap();
    let missing = dir.path().join("missing.cfg");
    let endless = dir.path().join("endless.cfg");
    fs::write(&endless, "hash\n".repeat(70_000)).unwrap();
    for (typed, told) in [
        (format!("pen -F {} 80 a", missing.display()), "missing.cfg"),
        (
            cycle.display().to_string(),
            "th file that another one includes",
        ),
        (
            "pen 'x".to_owned(),
            "a quotation mark in it has no second one",
        ),
        (
            "nothing".to_owned(),
            "nothing is no file, and no command line",
        ),
        (endless.display().to_string(), "more than 65536 words"),
    ] {
        let output = import(&typed);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(told), "{said}");
    }
    assert!(!Path::new("nothing").exists());
}

/// Words of Pen's in any order: `imported` holds each result against the check.
#[test]
fn command_lines_in_any_order_become_what_check_accepts() {
    const WORDS: [&str; 24] = [
        "-df",
        "-r",
        "-h",
        "-W",
        "-U",
        "-b 0",
        "-b 99999",
        "-t 0",
        "-e '[::1]:80'",
        "-O 'dsr_if lo'",
        "-O 'acl 1 permit 10.0.0.0 255.0.0.0'",
        "-O 'acl 1 deny 10.1.2.3'",
        "-O 'acl 2 permit 2001:db8::/31'",
        "-O 'tarpit_acl 1'",
        "-O 'tarpit_acl 2'",
        "-O 'tarpit_acl'",
        "10.1.0.80:0",
        "10.1.0.80:80",
        "'[2001:db8::80]:53'",
        "10.1.0.1:80:1:2:3000:4",
        "10.1.0.2",
        "'[2001:db8::2]'",
        "224.0.0.1",
        "10.1.0.2:8080",
    ];
    // Any numbers, and the same ones in each run.
    let mut state: u64 = 42;
    let mut any = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut pools = 0;
    let mut errors = 0;
    for _ in 0..60 {
        let words: Vec<_> = (0..2 + any(9)).map(|_| WORDS[any(WORDS.len())]).collect();
        let typed = format!("pen {}", words.join(" "));
        let has_listen = words.iter().any(|word| !word.starts_with('-'));
        if !has_listen || import(&typed).status.code() == Some(2) {
            refused(&typed, "nothing makes a pool of it: ");
            errors += 1;
            continue;
        }
        let text = imported(&typed);
        pools += usize::from(settings(&text).contains_key("pool"));
    }
    assert!(pools > 5 && errors > 0, "{pools} {errors}");
}

/// What penctl tells a running Pen is no configuration: the error says what to type here,
/// and `weir` knows what it says.
#[test]
fn what_penctl_tells_a_running_pen_is_answered_with_its_place_here() {
    let dir = TempDir::with_prefix("weir-import-").unwrap();
    let config = dir.path().join("weir.toml");
    let socket = dir.path().join("weir.sock");
    fs::write(&config, format!("socket = \"{}\"\n", socket.display())).unwrap();
    let mut typed_here = 0;
    for (typed, told) in [
        (
            "server 1 weight 5",
            "weir real weight pen ADDRESS 5 (ADDRESS is that of server 1)",
        ),
        ("server 1 weight x", "weir real weight pen ADDRESS WEIGHT"),
        (
            "server 0 blacklist 60",
            "weir real disable pen ADDRESS, until weir real enable pen ADDRESS",
        ),
        ("server 0 blacklist 0", "weir real enable pen ADDRESS"),
        (
            "server 0 address 2001:db8::3",
            "weir real add pen 2001:db8::3, then weir real del pen ADDRESS",
        ),
        ("server 0 address www", "weir real add pen NEW-ADDRESS"),
        (
            "server 0 port 8080 max 5",
            "`port = 8080` of the real in [pool.pen], then weir reload; nothing: the server limits itself",
        ),
        ("server 0 prio 2", "weir real weight pen ADDRESS 0"),
        ("server 0 acl 3", "`acl` of [pool.pen]"),
        ("servers", "weir pool show pen (--json), and weir status"),
        ("connection 12", "weir pool show pen"),
        ("close 12", "weir real disable pen ADDRESS"),
        ("listen 192.0.2.10:80", "weir pool add"),
        (
            "acl 1 deny 192.0.2.7",
            "`acl` of [pool.pen], then weir reload; for the whole host weir ban ADDRESS",
        ),
        ("tracking 10", "a connection stays with its server"),
        ("control_acl 1", "the control socket is a Unix socket"),
        ("source 192.0.2.1", "with dsr_if nothing to do"),
        ("tcp_nodelay", "of a proxy not carried over"),
        ("tcp_fastclose up", "of a proxy not carried over"),
        ("no hash", "the opposite in `method` of [pool.pen]"),
        ("no acl 1", "the opposite in `acl` of [pool.pen]"),
        ("include more.cfg", "weir import pen FILE"),
        ("exit", "systemctl stop weir"),
        ("write /etc/pen.cfg", "holds over restarts"),
        ("hello world", "nothing: it is no command of penctl's"),
        ("", "no command of penctl's is in it"),
    ] {
        for program in ["penctl", "/usr/bin/penctl"] {
            refused(&format!("{program} 127.0.0.1:8888 {typed}"), told);
        }
        refused(&format!("penctl 127.0.0.1:8888 '{typed}'"), told);
        let (line, _) = told.split_once([',', ';', '(']).unwrap_or((told, ""));
        if !line.starts_with("weir real") || line.contains("WEIGHT") || line.contains("NEW") {
            continue;
        }
        let line = line.replace("ADDRESS", "192.0.2.2");
        let mut weir = Command::new(WEIR);
        weir.arg("--config").arg(&config);
        let output = weir.args(line.split_whitespace().skip(1)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        // No daemon is there, and that is all there is to say.
        assert!(said.contains("weir.sock"), "{line}: {said}");
        typed_here += 1;
    }
    assert_eq!(typed_here, 6);
    refused("penctl 127.0.0.1:8888", "no command of penctl's is in it");
    refused(
        &format!("penctl h:1 '\u{1b}[31m{}'", "x".repeat(9000)),
        "no command of penctl's",
    );
}

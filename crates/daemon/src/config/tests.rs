//! What is refused, where it stands and what is allowed there.

mod files;

use std::time::Duration;

use weir_core::policy::{self, JailLimits};
use weir_enforce::BackendChoice;

use super::*;
use crate::{host::fake::FakeHost, jails::SourceChoice};

pub(crate) fn check(text: &str) -> Result<Config, ConfigErrors> {
    Config::check(Path::new("weir.toml"), text, &FakeHost::default())
}

pub(crate) fn errors(text: &str) -> String {
    check(text).expect_err(text).to_string()
}

/// A key of the top level below a table is named as such: the list is whole.
#[test]
fn the_keys_of_the_top_level_are_known() {
    let told = errors("nonsense = 1");
    let (_, allowed) = told.split_once("allowed: ").unwrap();
    let tables = [
        "app", "balance", "decoy", "fail2ban", "filter", "geofence", "jail", "list", "lockout",
        "pool", "proxy", "sink", "tarpit", "token", "vrrp", "watch",
    ];
    let mut keys: Vec<_> = allowed.split(", ").collect();
    keys.retain(|key| !tables.contains(key));
    keys.sort_unstable();
    assert_eq!(keys, weir_config::TOP_LEVEL);
    let told = errors("[jail.sshd]\nobserve = true");
    assert!(
        told.contains(
            "weir.toml:2: unknown key \"observe\" in [jail.sshd] (it is a top-level key: write it above the first [table] of weir.toml); allowed: enabled"
        ),
        "{told}"
    );
    assert!(errors("interface = []").contains(" (did you mean interfaces?); allowed: "));
}

#[test]
fn each_mistake_is_named_with_line_key_and_what_is_allowed() {
    // (the file, what the message must contain)
    let cases: &[(&str, &[&str])] = &[
        (
            "\n\n[jail.sshd]\nmax_retyr = 3",
            &[
                "weir.toml:4: unknown key \"max_retyr\" in [jail.sshd] (did you mean max_retry?); allowed: ",
                "max_retry",
                "find_time",
            ],
        ),
        (
            "interface = [\"eth0\"]",
            &[
                "weir.toml:1: unknown key \"interface\" (did you mean interfaces?); allowed: ",
                "interfaces",
            ],
        ),
        (
            "interfaces = [\"eth0\",\n \"an-interface-of-17\"]",
            &["weir.toml:2: interfaces: \"an-interface-of-17\" is no name of an interface"],
        ),
        (
            "interfaces = \"eth0\"",
            &["weir.toml:1: interfaces is \"eth0\"; allowed: \"auto\""],
        ),
        ("interfaces = []", &["weir.toml:1: interfaces is empty"]),
        (
            "interfaces = 5",
            &["weir.toml:1: interfaces is 5; allowed: "],
        ),
        (
            "prefer = \"speed\"",
            &["weir.toml:1: prefer is \"speed\"; allowed: \"traffic\", \"drops\""],
        ),
        (
            "backend = \"ebpf\"",
            &[
                "weir.toml:1: backend is \"ebpf\"; allowed: \"auto\", \"xdp\", \"xdp-generic\", \"tcx\", \"cls_bpf\", \"netfilter\", \"nft\", \"ipset\", \"dry-run\"",
            ],
        ),
        (
            "observe = \"yes\"",
            &["weir.toml:1: observe is \"yes\"; allowed: true, false"],
        ),
        (
            "max_bans = 1",
            &["max_bans is 1; allowed: a whole number 16-16000000"],
        ),
        ("max_bans = -1", &["max_bans is -1; allowed: "]),
        (
            "max_bans = 99999999999999999999999",
            &["max_bans is 99999999999999999999999; allowed: "],
        ),
        (
            "ipv4_length = 32",
            &["ipv4_length is 32; allowed: a whole number 8-31"],
        ),
        ("instance = \"a/b\"", &["instance is \"a/b\"; allowed: "]),
        (
            "state_dir = \"weir\"",
            &["state_dir is \"weir\"; allowed: an absolute path"],
        ),
        (
            "allow = [\"192.0.2.1/24\"]",
            &["weir.toml:1: allow: ", "write 192.0.2.0/24"],
        ),
        (
            "allow = [\n\"192.0.2.0/24\",\n\"localhost\"]",
            &["weir.toml:3: allow: \"localhost\" is not an address"],
        ),
        (
            "[lockout]\ngrace = \"soon\"",
            &["weir.toml:2: grace in [lockout] is \"soon\"; allowed: "],
        ),
        (
            "[lockout]\ngrcae = \"1h\"",
            &[
                "weir.toml:2: unknown key \"grcae\" in [lockout] (did you mean grace?); allowed: grace, logins",
            ],
        ),
        (
            "[jail.sshd]\nmax_retry = 0",
            &["weir.toml:2: max_retry in [jail.sshd] is 0; allowed: a whole number 1-1000"],
        ),
        (
            "[jail.sshd]\nmax_retry = \"5\"",
            &["weir.toml:2: max_retry in [jail.sshd] is \"5\"; allowed: "],
        ),
        (
            "[jail.sshd]\nban_time = \"1 fortnight\"",
            &[
                "weir.toml:2: ban_time in [jail.sshd] is \"1 fortnight\"; allowed: ",
                "forever",
            ],
        ),
        (
            "[jail.sshd]\nfind_time = \"forever\"",
            &["weir.toml:2: find_time in [jail.sshd] is \"forever\"; allowed: "],
        ),
        (
            "[jail.sshd]\nports = [\"ssh\"]",
            &["weir.toml:2: ports: \"ssh\" is not a port"],
        ),
        (
            "[jail.sshd]\naction = \"refuse\"",
            &["weir.toml:2: action in [jail.sshd] is \"refuse\"; allowed: \"drop\", \"reject\""],
        ),
        (
            "[jail.sshd]\nports = \"22\"",
            &["weir.toml:2: ports is \"22\"; allowed: \"all\" or a list"],
        ),
        (
            "[jail.sshd]\nignore = [\"::1/200\"]",
            &["weir.toml:2: ignore in [jail.sshd]: "],
        ),
        (
            "[jail.sshd]\nipv6_prefix = 31",
            &["weir.toml:2: ipv6_prefix in [jail.sshd] is 31; allowed: 32-64, 128"],
        ),
        (
            "[jail.sshd]\nipv6_prefix = 96",
            &["weir.toml:2: ipv6_prefix in [jail.sshd] is 96; allowed: 32-64, 128"],
        ),
        (
            "[jail.sshd]\nsource = \"syslog\"",
            &[
                "weir.toml:2: source in [jail.sshd] is \"syslog\"; allowed: \"auto\", \"journal\", \"file\"",
            ],
        ),
        (
            "[jail.sshd]\nsource = \"file\"",
            &["weir.toml:2: paths is missing in [jail.sshd]"],
        ),
        (
            "[jail.sshd]\nsource = \"journal\"\npaths = [\"/x\"]",
            &["weir.toml:3: paths in [jail.sshd]: the source is the journal"],
        ),
        (
            "[jail.sshd]\npaths = [\"log\"]",
            &["weir.toml:2: paths in [jail.sshd]: \"log\" must be absolute"],
        ),
        (
            "[jail.sshd]\npaths = [\"/var/[\"]",
            &["weir.toml:2: paths in [jail.sshd]: "],
        ),
        (
            "[jail.sshd]\nincrement = { factor = 0.5 }",
            &["factor in [jail.sshd.increment] is 0.5; allowed: a number 1-100"],
        ),
        (
            "[jail.web]\nmax_retry = 3",
            &["weir.toml:1: [jail.web]: there is no filter \"web\"; allowed: sshd"],
        ),
        (
            "[jail.sshd]\nfilter = \"ssh\"",
            &["weir.toml:2: [jail.sshd]: there is no filter \"ssh\""],
        ),
        (
            "[jail.\"a b\"]\nfilter = \"sshd\"",
            &["weir.toml:1: jail name \"a b\"; allowed: "],
        ),
        (
            "jail = 3",
            &["weir.toml:1: jail is 3; allowed: a table [jail]"],
        ),
        (
            "jail.sshd = 3",
            &["weir.toml:1: jail.sshd is 3; allowed: a table [jail.sshd]"],
        ),
        (
            "[filter.web]\npaterns = ['x']",
            &[
                "weir.toml:2: unknown key \"paterns\" in [filter.web] (did you mean patterns?); allowed: identifiers, head, time_format, json, journal_match, syslog_only, root_only, allow_untagged, patterns, ignore",
                "weir.toml:1: patterns is missing in [filter.web]; allowed: a list",
            ],
        ),
        (
            "[filter.web]\npatterns = [\n  '<addr>',\n  'no address',\n]",
            &["weir.toml:4: [filter.web]: patterns[1]"],
        ),
        (
            "[filter.web]\npatterns = [\n  'no <number> <addr>',\n  'no <word> <addr>: <text>',\n  'no <addr>: <text>',\n]",
            &[
                "weir.toml:4: [filter.web]: patterns[1] \"no <word> <addr>: <text>\" stands before patterns[2] \"no <addr>: <text>\", so that a client could write an address of its choice as <text> of the latter, which the former would read: move patterns[2] before patterns[1]",
            ],
        ),
        (
            "[filter.web]\npatterns = [\n  { text = '<addr>', anounces = 'a' },\n  { },\n  3,\n]",
            &[
                "weir.toml:3: unknown key \"anounces\" in [filter.web.patterns] (did you mean announces?); allowed: text, announces, completes, unless_counted, max_length",
                "weir.toml:4: text is missing in [filter.web.patterns]; allowed: a pattern",
                "weir.toml:5: patterns in [filter.web] is 3; allowed: a list of patterns",
            ],
        ),
        (
            "[filter.web]\npatterns = 'x <addr>'\nroot_only = 1\nidentifiers = [1]",
            &[
                "weir.toml:2: patterns in [filter.web] is \"x <addr>\"; allowed: a list of patterns",
                "weir.toml:3: root_only in [filter.web] is 1; allowed: true, false",
                "weir.toml:4: identifiers in [filter.web] is 1; allowed: a list of syslog tags",
            ],
        ),
        (
            "[filter.web]\npatterns = ['<addr>']\n[[filter.shop.patterns]]\ntext = '<addr>'\nmax_length = 0",
            &[
                "weir.toml:5: max_length in [filter.shop.patterns] is 0; allowed: a whole number 1-8192",
            ],
        ),
        ("[jail.sshd\nmax_retry = 3", &["weir.toml:1: "]),
        ("backend = ", &["weir.toml:1: "]),
        ("a = 1\na = 2", &["weir.toml:2: "]),
    ];
    for (text, expected) in cases {
        let message = errors(text);
        for part in *expected {
            assert!(
                message.contains(part),
                "{text:?}\ngives {message:?}\nwithout {part:?}"
            );
        }
    }
}

#[test]
fn an_interface_is_known_by_an_alternative_name() {
    let warnings = |interfaces: &str, routed| {
        let host = FakeHost {
            routed,
            ..FakeHost::default()
        };
        let text = format!("{interfaces}[jail.sshd]\n");
        let config = Config::check(Path::new("weir.toml"), &text, &host).unwrap();
        config.warnings.join("\n")
    };
    let eth0: &'static [&'static str] = &["eth0"];
    assert_eq!(warnings("interfaces = [\"eth0\", \"lan0\"]\n", eth0), "");
    let told = warnings("interfaces = [\"lan1\"]\n", eth0);
    assert!(
        told.contains("there is no interface \"lan1\" now")
            && told.contains("has: eth0, eth0.10, eth1"),
        "{told}"
    );
    // What nobody sees at boot is said by who asks.
    for auto in ["", "interfaces = \"auto\"\n"] {
        assert_eq!(warnings(auto, eth0), "");
        let told = warnings(auto, &[]);
        assert!(
            told.contains("no interface has a default route yet"),
            "{told}"
        );
    }
}

#[test]
fn all_mistakes_are_named_at_once() {
    let message = errors(
        "backend = \"ebpf\"\nobserv = true\n[jail.sshd]\nmax_retry = 0\nban_time = 5.5\n[jail.web]\n",
    );
    let lines: Vec<_> = message
        .lines()
        .map(|l| l.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        lines,
        [
            "weir.toml:1",
            "weir.toml:2",
            "weir.toml:4",
            "weir.toml:5",
            "weir.toml:6"
        ],
        "{message}"
    );
}

#[test]
fn defaults_protect_sshd() {
    let config = check("[jail.sshd]").unwrap();
    assert_eq!(config.enforcement.interfaces, ["eth0"]);
    assert_eq!(config.enforcement.backend, BackendChoice::Auto);
    assert_eq!(config.enforcement.max_bans, 1_000_000);
    let jail = &config.jails[0];
    assert_eq!(jail.filter, "sshd");
    assert_eq!(jail.source, SourceChoice::Journal);
    assert_eq!(jail.limits, JailLimits::default());
    assert!(jail.scope.is_all());
    assert_eq!(config.lockout.grace, Duration::from_secs(3600));
}

#[test]
fn everything_can_be_said() {
    let config = check(
        r#"
        interfaces = ["eth1", "lo"]
        backend = "tcx"
        instance = "edge"
        observe = true
        max_bans = 5000
        ipv4_length = 24
        allow = ["192.0.2.0/24", "2001:db8::/32"]
        state_dir = "/srv/weir"
        socket = "/srv/weir.sock"
        pin_root = "/sys/fs/bpf/w"
        keep_history = "7d"
        history_mb = 5
        [lockout]
        grace = 60
        logins = false
        [jail.sshd]
        source = "file"
        paths = ["/var/log/auth.log", "/var/log/ssh/*.log"]
        max_retry = 3
        find_time = 300
        ban_time = "forever"
        increment = { factor = 1.5, max = "7d" }
        ports = ["22/tcp", "2222/tcp"]
        action = "reject"
        ignore = ["198.51.100.0/24"]
        ipv6_prefix = 128
        max_tracked = 1000
        [jail.web]
        filter = "mine"
        enabled = false
        [filter.mine]
        patterns = ['refused <addr>']
        "#,
    )
    .unwrap();
    assert_eq!(config.jails.len(), 1);
    assert_eq!(config.jails[0].scope.to_string(), "22/tcp,2222/tcp");
    assert_eq!(config.jails[0].action, weir_core::Action::Reject);
    assert_eq!(config.jails[0].limits.ban_time, policy::BanTime::Never);
    assert_eq!(config.lockout.grace, Duration::from_secs(60));
    let keep = config.keep_history;
    assert_eq!((keep.time.as_secs(), keep.bytes), (7 * 86_400, 5_000_000));
    assert!(config.filters.contains_key("mine"));
    assert_eq!(config.warnings.len(), 0, "{:?}", config.warnings);
}

#[test]
fn what_needs_a_restart_is_named() {
    let old = check("instance = \"a\"").unwrap();
    let new = check("instance = \"b\"\nsocket = \"/s\"\nobserve = true").unwrap();
    assert_eq!(old.restart_needed(&new), ["instance", "socket"]);
}

#[test]
fn a_file_that_is_not_text_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    let message = |e: Result<Config, ConfigErrors>| e.unwrap_err().to_string();
    assert!(message(Config::load(&file)).contains("cannot read"));
    std::fs::write(&file, b"backend = \"auto\"\n\xff\xfe").unwrap();
    assert!(message(Config::load(&file)).contains("weir.toml:2: not UTF-8"));
    // A directory is its weir.toml.
    assert!(message(Config::load(dir.path())).contains("weir.toml:2: not UTF-8"));
}

#[test]
fn what_a_backend_cannot_do_is_refused_or_told() {
    let with = |backend: &str, rest: &str| format!("backend = \"{backend}\"\n{rest}");
    let decoys = "[decoy]\nports = [\"23/tcp\"]";
    let refused = errors(&with("nft", decoys));
    assert!(
        refused.contains("weir.toml:2: [decoy] with backend = \"nft\": no decoy or tarpit ports"),
        "{refused}"
    );
    let geofence = "[geofence]\ndeny = [\"country:AQ\"]";
    let refused = errors(&with("ipset", geofence));
    assert!(
        refused.contains("[geofence] with backend = \"ipset\": no geofence"),
        "{refused}"
    );
    check(&with("nft", geofence)).unwrap();

    let rejects = "[jail.sshd]\naction = \"reject\"";
    for (backend, told) in [("tcx", false), ("nft", false), ("ipset", true)] {
        let warnings = check(&with(backend, rejects)).unwrap().warnings;
        let about = warnings
            .iter()
            .any(|w| w.starts_with("[jail.sshd] with backend"));
        assert_eq!(about, told, "{backend}: {warnings:?}");
    }
}

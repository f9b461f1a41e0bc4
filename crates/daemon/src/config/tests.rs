//! What is refused, where it stands and what is allowed there.

use super::*;

/// A host of which a test says what matters to it.
pub(super) struct Lab {
    /// The interfaces that have a default route.
    pub(super) routed: &'static [&'static str],
    pub(super) journal: bool,
    pub(super) has_file: fn(&str) -> bool,
    /// The last lines of every log.
    pub(super) log: Option<&'static str>,
    pub(super) listeners: BTreeSet<(Protocol, u16)>,
    pub(super) ephemeral: RangeInclusive<u16>,
    /// In the default state directory.
    pub(super) calibration: Result<Option<Calibration>, String>,
}

impl Default for Lab {
    fn default() -> Self {
        Self {
            routed: &["eth0"],
            journal: true,
            has_file: |path| path == "/var/log/auth.log",
            log: None,
            listeners: BTreeSet::new(),
            ephemeral: 32_768..=60_999,
            calibration: Ok(None),
        }
    }
}

impl HostFacts for Lab {
    fn interfaces(&self) -> Vec<String> {
        vec!["eth0".into(), "eth1".into(), "lo".into()]
    }
    /// eth0 is also called lan0.
    fn has_interface(&self, name: &str) -> bool {
        name == "lan0" || self.interfaces().iter().any(|known| known == name)
    }
    fn default_route_interfaces(&self) -> Vec<String> {
        self.routed.iter().map(|name| (*name).to_owned()).collect()
    }
    fn has_journal(&self) -> bool {
        self.journal
    }
    fn has_file(&self, path: &str) -> bool {
        (self.has_file)(path)
    }
    fn log_end(&self, _path: &str) -> Option<Vec<u8>> {
        self.log.map(|text| text.as_bytes().to_vec())
    }
    fn user(&self, name: &str) -> Option<u32> {
        (name == "www-data").then_some(33)
    }
    fn processors(&self) -> usize {
        4
    }
    fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
        self.listeners.clone()
    }
    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        self.ephemeral.clone()
    }
    fn calibration(&self, state_dir: &Path) -> Result<Option<Calibration>, String> {
        match state_dir == Path::new("/var/lib/weir") {
            true => self.calibration.clone(),
            false => Ok(None),
        }
    }
}

fn check(text: &str) -> Result<Config, ConfigErrors> {
    Config::check(Path::new("weir.toml"), text, &Lab::default())
}

fn errors(text: &str) -> String {
    check(text).expect_err(text).to_string()
}

/// A key of the top level below a table is named as such: the list is whole.
#[test]
fn the_keys_of_the_top_level_are_known() {
    let told = errors("nonsense = 1");
    let (_, allowed) = told.split_once("allowed: ").unwrap();
    let tables = [
        "decoy", "filter", "geofence", "jail", "list", "lockout", "sink", "watch",
    ];
    let mut keys: Vec<_> = allowed.split(", ").collect();
    keys.retain(|key| !tables.contains(key));
    keys.sort_unstable();
    assert_eq!(keys, weir_config::TOP_LEVEL);
    let told = errors("[jail.sshd]\nobserve = true");
    assert!(
        told.contains("weir.toml:2: unknown key \"observe\" in [jail.sshd]; allowed: enabled")
            && told.contains("write it above the first [table] of weir.toml"),
        "{told}"
    );
    assert!(errors("interface = []").ends_with("; did you mean interfaces?"));
}

#[test]
fn each_mistake_is_named_with_line_key_and_what_is_allowed() {
    // (the file, what the message must contain)
    let cases: &[(&str, &[&str])] = &[
        (
            "\n\n[jail.sshd]\nmax_retyr = 3",
            &[
                "weir.toml:4: unknown key \"max_retyr\" in [jail.sshd]; allowed: ",
                "max_retry",
                "find_time",
            ],
        ),
        (
            "interface = [\"eth0\"]",
            &[
                "weir.toml:1: unknown key \"interface\"; allowed: ",
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
            &["weir.toml:2: unknown key \"grcae\" in [lockout]; allowed: grace, logins"],
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
                "weir.toml:2: unknown key \"paterns\" in [filter.web]; allowed: identifiers, syslog_only, root_only, allow_untagged, patterns, ignore; did you mean patterns?",
                "weir.toml:1: patterns is missing in [filter.web]; allowed: a list",
            ],
        ),
        (
            "[filter.web]\npatterns = [\n  '<addr>',\n  'no address',\n]",
            &["weir.toml:4: [filter.web]: patterns[1]"],
        ),
        (
            "[filter.web]\npatterns = [\n  { text = '<addr>', anounces = 'a' },\n  { },\n  3,\n]",
            &[
                "weir.toml:3: unknown key \"anounces\" in [filter.web.patterns]; allowed: text, announces, completes, unless_counted, max_length; did you mean announces?",
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
        let host = Lab {
            routed,
            ..Lab::default()
        };
        let text = format!("{interfaces}[jail.sshd]\n");
        let config = Config::check(Path::new("weir.toml"), &text, &host).unwrap();
        config.warnings.join("\n")
    };
    let eth0: &'static [&'static str] = &["eth0"];
    assert_eq!(warnings("interfaces = [\"eth0\", \"lan0\"]\n", eth0), "");
    let told = warnings("interfaces = [\"lan1\"]\n", eth0);
    assert!(
        told.contains("there is no interface \"lan1\" now") && told.contains("has: eth0, eth1"),
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
    assert_eq!(config.enforcement.backend, Choice::Auto);
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
fn a_ring_is_named_with_who_writes_it_and_how_many_read_it() {
    let ring = |words: &str| {
        let text = format!("[jail.sshd]\nring = \"/run/weir-ring/shop\"\n{words}");
        let config = check(&text).unwrap();
        assert!(config.warnings[0].contains("does not exist yet"));
        config.jails[0].source.clone()
    };
    let choice = |owner, workers| {
        SourceChoice::Ring(RingChoice {
            directory: "/run/weir-ring/shop".into(),
            owner,
            workers,
            max_mib: 1024,
        })
    };
    // As many workers as processors, unless the file says otherwise.
    assert_eq!(ring("source = \"ring\""), choice(None, 4));
    let words = "ring_owner = \"www-data\"\nworkers = 2";
    assert_eq!(ring(words), choice(Some(33), 2));
    assert_eq!(ring("ring_owner = \"1000\""), choice(Some(1000), 4));
    let SourceChoice::Ring(choice) = ring("ring_max_mib = 7") else {
        panic!("no ring");
    };
    assert_eq!(choice.max_mib, 7);
}

/// Issue 13: a directory that others can exchange.
#[test]
fn a_ring_that_others_can_exchange_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let ring = home.path().join("open/ring");
    std::fs::create_dir_all(&ring).unwrap();
    let text = format!(
        "backend = \"dry-run\"\ninterfaces = []\n[jail.sshd]\nring = \"{}\"\n",
        ring.display()
    );
    let warned = |mode: u32| {
        let open = home.path().join("open");
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(mode)).unwrap();
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let about = |warning: &&String| warning.contains("nothing in it is read");
        config.warnings.iter().find(about).cloned()
    };
    assert_eq!(warned(0o755), None);
    let warning = warned(0o777).unwrap();
    assert!(
        warning.contains("open: can be written to by others"),
        "{warning}"
    );
}

#[test]
fn mistakes_about_rings_are_named() {
    for (words, message) in [
        ("source = \"ring\"", ":2: ring is missing in [jail.a]"),
        (
            "ring = \"shop\"",
            ":2: ring in [jail.a] is \"shop\"; allowed: the absolute",
        ),
        (
            "ring = 7",
            ":2: ring in [jail.a] is 7; allowed: the absolute path",
        ),
        (
            "ring = \"/r\"\nring_owner = \"nobody-here\"",
            ":3: ring_owner in [jail.a] is \"nobody-here\", no user of this host",
        ),
        (
            "ring = \"/r\"\nworkers = 0",
            ":3: workers in [jail.a] is 0; allowed: a whole number 1-64",
        ),
        ("workers = 2", ":2: workers in [jail.a] is about rings"),
        (
            "ring_max_mib = 2",
            ":2: ring_max_mib in [jail.a] is about rings",
        ),
        (
            "ring = \"/r\"\nring_max_mib = 0",
            ":3: ring_max_mib in [jail.a] is 0; allowed: a whole number 1-1048576",
        ),
        (
            "ring = \"/r\"\npaths = [\"/l\"]",
            ":3: [jail.a] has both ring and paths",
        ),
        (
            "ring = \"/r\"\nsource = \"journal\"",
            ":2: ring in [jail.a]: the source is another one",
        ),
        (
            "ring = \"/r\"\n[jail.b]\nfilter = \"sshd\"\nring = \"/r/\"\nworkers = 2",
            ":3: [jail.b] and [jail.a] read one ring with other words",
        ),
    ] {
        let filter = "[filter.a]\npatterns = [\"refused <addr>\"]";
        let text = format!("[jail.a]\n{words}\n{filter}\n");
        let told = errors(&text);
        assert!(told.contains(message), "{words}: {told}");
    }
}

#[test]
fn without_a_journal_sshd_is_read_from_auth_log() {
    let config = Config::check(
        Path::new("weir.toml"),
        "[jail.sshd]",
        &Lab {
            journal: false,
            ..Lab::default()
        },
    )
    .unwrap();
    assert_eq!(
        config.jails[0].source,
        SourceChoice::Files(vec!["/var/log/auth.log".into()])
    );
}

#[test]
fn a_journal_is_matched_by_what_nobody_can_forge() {
    let jail = |words: &str| format!("[jail.sshd]\n{words}");
    let words = "journal_match = [\"_SYSTEMD_UNIT=postfix@-.service\", \"_UID=www-data\"]";
    let config = check(&jail(words)).unwrap();
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        config.jails[0].journal_match,
        [
            field("_SYSTEMD_UNIT", "postfix@-.service"),
            field("_UID", "33")
        ]
    );
    for (words, message) in [
        (
            "journal_match = [\"SYSLOG_IDENTIFIER=sshd\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"SYSLOG_IDENTIFIER\" can be written by anybody",
        ),
        (
            "journal_match = [\"_COMM=sshd\"]",
            "weir.toml:2: journal_match in [jail.sshd]: \"_COMM=sshd\" does not say whose process it is, and anybody can name a program",
        ),
        ("journal_match = []", "allowed: with _SYSTEMD_UNIT"),
        (
            "journal_match = [\"_UID=nobody-here\"]",
            "is no user of this host",
        ),
        ("journal_match = [\"_UID\"]", "allowed: FIELD=VALUE"),
        (
            "paths = [\"/var/log/auth.log\"]\njournal_match = [\"_UID=0\"]",
            "the source is /var/log/auth.log",
        ),
    ] {
        let told = errors(&jail(words));
        assert!(told.contains(message), "{words}: {told}");
    }
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
        refused.contains("weir.toml:2: [decoy] with backend = \"nft\": no decoy ports"),
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

/// Issue 13, 17: no line of them would ever count.
#[test]
fn a_filter_that_reads_none_of_its_lines_is_told() {
    const SYSLOG: &str = "Nov 21 04:33:07 host cron[1]: x\nNov 21 04:33:07 host shop[1]: y\n";
    const BARE: &str = "2026-11-21T04:33:07Z denied 192.0.2.7\n";
    let warnings = |filter: &str, log| {
        let text = format!(
            "[filter.own]\n{filter}patterns = [\"denied <addr>\"]\n[jail.own]\npaths = [\"/var/log/auth.log\"]\n"
        );
        let host = Lab {
            log,
            ..Lab::default()
        };
        let config = Config::check(Path::new("weir.toml"), &text, &host).unwrap();
        config.warnings.join("; ")
    };
    let named = "identifiers = [\"shop\"]\n";
    let told = warnings("", Some(SYSLOG));
    assert!(
        told.contains("[jail.own]: the lines of /var/log/auth.log have a host")
            && told.contains("add identifiers = [\"shop\"]"),
        "{told}"
    );
    let told = warnings(named, Some(BARE));
    assert!(
        told.contains("[jail.own]: no line of /var/log/auth.log has a time stamp")
            && told.contains("only those of shop"),
        "{told}"
    );
    for (filter, log) in [
        (named, Some(SYSLOG)),
        ("", Some(BARE)),
        ("", Some("")),
        (named, Some("")),
        (named, None),
        ("", None),
    ] {
        assert_eq!(warnings(filter, log), "", "{log:?}");
    }
    // One that crashed left zeros, or somebody wrote a line into it.
    let mixed = format!("{SYSLOG}somebody's\n{SYSLOG}");
    let told = warnings(named, Some(mixed.leak()));
    assert!(
        told.contains("1 of the last 5 lines of /var/log/auth.log have no time stamp"),
        "{told}"
    );
    // Who leaves the tag out may write a client's line breaks; a syslog daemon may.
    let mixed: &str = format!("{SYSLOG}Nov 21 04:33:07 host x\n{SYSLOG}").leak();
    let told = warnings(named, Some(mixed));
    for word in [
        "1 of the last 5 lines",
        "or no program's tag",
        "allow_untagged",
    ] {
        assert!(told.contains(word), "{word:?}: {told}");
    }
    assert_eq!(
        warnings(&format!("{named}allow_untagged = true\n"), Some(mixed)),
        ""
    );
    let own = format!("{SYSLOG}Nov 21 04:33:07 host -- MARK --\n");
    assert_eq!(warnings(named, Some(own.leak())), "");
    let journal = "[filter.own]\npatterns = [\"<addr>\"]\n[jail.own]\nsource = \"journal\"\n";
    let refused = errors(journal);
    assert!(
        refused.contains("[jail.own]: its filter has no identifiers"),
        "{refused}"
    );
}

/// What sshd writes with -E: a client's line break begins any line, with any
/// head. So it does behind what puts a stamp before each line, with any tag.
#[test]
fn a_file_without_heads_is_told_for_a_filter_that_reads_them() {
    let log = |stamp: &str, forged: &str| {
        format!(
            "{stamp}Server listening on :: port 22.\r\n{stamp}Invalid user a\n{forged}\n{stamp} from 198.51.100.7 port 4711\r\n"
        )
    };
    const FORGED: &str = "Nov 21 04:33:07 h sshd: Invalid user x from 203.0.113.9";
    for stamp in ["", "Nov 21 04:33:07 "] {
        file_without_heads(log(stamp, FORGED).leak());
    }
}

fn file_without_heads(log: &'static str) {
    let host = Lab {
        log: Some(log),
        ..Lab::default()
    };
    for filter in ["sshd", "sshd-aggressive"] {
        let jail = |more: &str| format!("[jail.{filter}]\npaths = [\"/var/log/auth.log\"]\n{more}");
        let check = |text: &str| Config::check(Path::new("weir.toml"), text, &host);
        let told = check(&jail("")).unwrap().warnings.join("\n");
        for word in [
            &format!("[jail.{filter}]: 3 of the last 4 lines of /var/log/auth.log"),
            "no time stamp and program's tag",
            "lines of sshd, sshd-session",
            "start it without -E",
        ] {
            assert!(told.contains(word), "{word:?}: {told}");
        }
        let told = check(&jail("enabled = false\n")).unwrap().warnings;
        assert!(!told.iter().any(|t| t.contains("of the last")), "{told:?}");
    }
}

#[test]
fn a_jail_has_a_time_zone() {
    let jail =
        |zone: &str| format!("[jail.sshd]\npaths = [\"/var/log/auth.log\"]\ntime_zone = {zone}\n");
    for zone in ["\"UTC\"", "\"CET-1CEST,M3.5.0,M10.5.0/3\""] {
        let config = check(&jail(zone)).unwrap();
        assert!(config.jails[0].time_zone.is_some(), "{zone}");
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
    assert_eq!(check("[jail.sshd]\n").unwrap().jails[0].time_zone, None);
    for zone in ["\"Mars/Base\"", "2"] {
        let refused = errors(&jail(zone));
        assert!(
            refused.contains("weir.toml:3: time_zone in [jail.sshd] is")
                && refused.contains("a time zone such as"),
            "{refused}"
        );
    }
    let journal = "[jail.sshd]\nsource = \"journal\"\ntime_zone = \"UTC\"\n";
    let warnings = check(journal).unwrap().warnings;
    assert!(
        warnings.iter().any(|w| w.contains("no effect")),
        "{warnings:?}"
    );
}

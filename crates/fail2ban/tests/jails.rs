//! Jails: what is written in jail.conf and beside it, and what becomes of it.

mod common;

use std::path::{Path, PathBuf};

use common::{Disk, Memory, installed, upstream};
use weir_fail2ban::{
    ActionKind, Files, Jails, Log, LogFacts, LogType, UseDns, load_jails, notes, server_limits,
};

/// A host with these logs.
struct Logs {
    files: &'static [&'static str],
    journal: bool,
}

impl LogFacts for Logs {
    fn has_log(&self, pattern: &str) -> bool {
        self.files.contains(&pattern)
    }

    fn has_journal(&self) -> bool {
        self.journal
    }
}

const NONE: Logs = Logs {
    files: &[],
    journal: false,
};

const JAIL_CONF: &str = "[DEFAULT]\n\
    bantime = 10m\nfindtime = 10m\nmaxretry = 5\nbackend = auto\nusedns = warn\nenabled = false\n\
    mode = normal\nfilter = %(__name__)s[mode=%(mode)s]\nprotocol = tcp\nchain = <known/chain>\nport = 0:65535\n\
    banaction = nftables\nbanaction_allports = nftables[type=allports]\n\
    action_ = %(banaction)s[port=\"%(port)s\", protocol=\"%(protocol)s\", chain=\"%(chain)s\"]\n\
    action_mw = %(action_)s\n            sendmail-whois[dest=\"root\"]\n\
    action = %(action_)s\n\
    [shop]\nport = http,https\nlogpath = /var/log/shop/*.log\n           /var/log/old.log head\n\
    [other]\nfilter = shop\nlogpath = /var/log/other\n";
const FILTER: &str = "[INCLUDES]\nbefore = common.conf\n\
    [Definition]\nfailregex = ^%(__prefix)s<mode-<mode>> <HOST>$\nmode-normal = normal\nmode-hard = hard\n\
    journalmatch = _SYSTEMD_UNIT=shop.service + _COMM=shop\nmode = normal\n";
const COMMON: &str = "[DEFAULT]\nlogtype = file\n__prefix = <lt_<logtype>/p>\n[lt_file]\np = f:\n[lt_journal]\np = j:\n";
const NFTABLES: &str = "[Definition]\nactionban = nft <ip>\n[Init]\ntype = multiport\nport = ssh\nprotocol = tcp\nchain = input\nblocktype = reject\n";
const IPTABLES: &str = "[Definition]\n[Init]\nblocktype = REJECT --reject-with icmp-port-unreachable\nport = ssh\nprotocol = tcp\n[Init?family=inet6]\nblocktype = REJECT --reject-with icmp6-port-unreachable\n";
const MAIL: &str = "[Definition]\nactionban = mail <dest>\n";

/// The tree with a jail.local of this text.
fn tree(local: &str) -> Memory {
    Memory::new(&[
        ("/f/jail.conf", JAIL_CONF),
        ("/f/jail.local", local),
        ("/f/filter.d/shop.conf", FILTER),
        ("/f/filter.d/common.conf", COMMON),
        ("/f/action.d/nftables.conf", NFTABLES),
        ("/f/action.d/iptables-multiport.conf", IPTABLES),
        ("/f/action.d/sendmail-whois.conf", MAIL),
        (
            "/f/action.d/tell.conf",
            "[Definition]\nactionban = tell <ip> <F-ID> <F-USER> <F-USR>\n",
        ),
        (
            "/f/nets",
            "203.0.113.0/24 # ours\n\n2001:db8::/32, 192.0.2.9\n",
        ),
    ])
}

fn load(local: &str) -> Jails {
    load_jails(&tree(local), Path::new("/f"), &NONE).unwrap()
}

/// Why the only jail does not run.
fn broken(local: &str) -> String {
    let jails = load(local);
    assert_eq!(jails.jails, []);
    jails.broken[0].1.to_string()
}

#[test]
fn an_enabled_jail_is_what_its_files_say() {
    let jails = load("[shop]\nenabled = true\n");
    assert_eq!(
        (jails.jails.len(), jails.disabled, jails.broken.len()),
        (1, 1, 0)
    );
    let jail = &jails.jails[0];
    assert_eq!(jail.name, "shop");
    let paths = ["/var/log/shop/*.log", "/var/log/old.log"].map(str::to_owned);
    assert_eq!(jail.log, Log::Files(paths.into()));
    assert_eq!(jail.filter.failregex[0].text, "^f:normal <HOST>$");
    assert_eq!((jail.max_retry, jail.find_time.as_secs()), (5, 600));
    assert_eq!(jail.ban_time.map(|time| time.as_secs()), Some(600));
    assert_eq!((jail.use_dns, &jail.ban_times), (UseDns::Warn, &None));
    let ActionKind::Ban { ports, action } = &jail.actions[0].kind else {
        panic!("{:?}", jail.actions);
    };
    assert_eq!(
        (ports.to_string().as_str(), action.name()),
        ("80/tcp,443/tcp", "reject")
    );
    assert_eq!(notes(jail), Vec::<String>::new());
}

#[test]
fn local_changes_win() {
    let jails = load(
        "[DEFAULT]\nbantime = 1d12h\nignoreip = 127.0.0.1/8 ::1,\n  192.0.2.0/255.255.255.0 file:///f/nets Friend.example friend!\n\
         action = %(action_mw)s\nbantime.increment = yes\nbantime.maxtime = 3d\nbantime.rndtime = 10m\n\
         [shop]\nenabled = 1\nmode = hard\nmaxretry = 2\nfindtime = 1h\nlogtimezone = UTC+0200\n\
         failregex = %(known/failregex)s\n  ^mine <HOST>$\nusedns = no\nignorecommand = /bin/x <ip>\n\
         banaction = iptables-multiport[blocktype=DROP]\nport = 8080\nprotocol = tcp,udp\n",
    );
    let jail = &jails.jails[0];
    let texts: Vec<_> = jail
        .filter
        .failregex
        .iter()
        .map(|p| p.text.as_str())
        .collect();
    assert_eq!(texts, ["^f:hard <HOST>$", "^mine <HOST>$"]);
    assert_eq!(
        jail.filter.failregex[1].origin.to_string(),
        "/f/jail.local:16"
    );
    assert_eq!(
        (jail.max_retry, jail.find_time.as_secs(), jail.use_dns),
        (2, 3600, UseDns::No)
    );
    assert_eq!(jail.ban_time.map(|time| time.as_secs()), Some(129_600));
    let times = jail.ban_times.as_ref().unwrap();
    let hours: Vec<_> = times
        .iter()
        .map(|time| time.unwrap().as_secs() / 3600)
        .collect();
    assert_eq!(hours, [36, 72]);
    assert_eq!(
        (jail.random_time.as_secs(), jail.counts_all_jails),
        (600, false)
    );
    let ignored: Vec<_> = jail.ignore.iter().map(ToString::to_string).collect();
    let expected = [
        "127.0.0.0/8",
        "::1",
        "192.0.2.0/24",
        "203.0.113.0/24",
        "2001:db8::/32",
        "192.0.2.9",
    ];
    assert_eq!(ignored, expected);
    let names: Vec<_> = jail.ignore_names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["friend.example"]);
    assert_eq!(jail.time_zone.as_deref(), Some("UTC+0200"));
    let ActionKind::Ban { ports, action } = &jail.actions[0].kind else {
        panic!("{:?}", jail.actions);
    };
    assert_eq!(
        (ports.to_string().as_str(), action.name()),
        ("8080/tcp,8080/udp", "drop")
    );
    assert_eq!(
        notes(jail),
        ["/f/jail.local:4: ignoreip: friend! is no address, and no name of a host"]
    );
}

#[test]
fn the_backend_says_where_lines_are_and_how_they_look() {
    let load = |local: &str, host: &Logs| load_jails(&tree(local), Path::new("/f"), host).unwrap();
    let journal = Logs {
        files: &[],
        journal: true,
    };
    let both = Logs {
        files: &["/var/log/shop/*.log"],
        journal: true,
    };
    for (backend, host, expected) in [
        ("auto", &NONE, LogType::File),
        ("auto", &both, LogType::File),
        // As Debian is today: the log that the stock configuration names is not there.
        ("auto", &journal, LogType::Journal),
        ("systemd", &NONE, LogType::Journal),
        ("polling", &journal, LogType::File),
        ("pyinotify", &journal, LogType::File),
    ] {
        let jails = load(
            &format!("[shop]\nenabled = true\nbackend = {backend}\n"),
            host,
        );
        let jail = &jails.jails[0];
        assert_eq!(jail.filter.logtype, Some(expected.clone()), "{backend}");
        let is_journal = expected == LogType::Journal;
        assert_eq!(jail.log == Log::Journal, is_journal, "{backend}");
        let prefix = if is_journal { "^j:" } else { "^f:" };
        assert!(
            jail.filter.failregex[0].text.starts_with(prefix),
            "{backend}"
        );
    }
}

/// A jail that a typing error switches off would guard nothing, silently.
/// Each is a note with the line of the administrator's own file, and the nearest name.
#[test]
fn names_that_nobody_asks_for_are_told() {
    for (local, expected) in [
        (
            "[shop]\nenabled = true\nmaxrety = 3\n",
            "/f/jail.local:3: maxrety: there is no such key (did you mean maxretry?)",
        ),
        (
            "[shop]\nenabled = true\nfailregex = ^x <F-USER>\\S+</F-USER> <HOST>$\naction = %(action_)s\n         tell\n",
            "/f/jail.local:5: action tell: <F-USR> is empty: the filter shop captures no such value (did you mean F-USER?)",
        ),
        (
            "[DEFAULT]\nbantme = 3\n[shop]\nenabled = true\n",
            "/f/jail.local:2: bantme: there is no such key (did you mean bantime?)",
        ),
        (
            "[shop]\nenabled = true\nfilter = shop[mod=hard]\n",
            "/f/jail.local:3: filter shop: there is no parameter mod (did you mean mode?)",
        ),
        (
            "[shop]\nenabled = true\naction = iptables-multiport[prot=udp, blocktyp=DROP]\n",
            "/f/jail.local:3: action iptables-multiport: there is no parameter prot (did you mean port?)\n\
             /f/jail.local:3: action iptables-multiport: there is no parameter blocktyp (did you mean blocktype?)",
        ),
        (
            "[shop]\nenabled = true\nlogpath = /a\n  /b tail\n",
            "/f/jail.local:4: logpath … tail: failures within findtime before weir reads this log for the first time count as well",
        ),
        (
            "[shop]\nenabled = true\nbanaction = nftables[typ=multiport]\n",
            "/f/jail.local:3: action nftables: there is no parameter typ (did you mean type?)",
        ),
        (
            "[shop]\nenabled = true\nbanaction = nftables[type=allport]\n",
            "/f/jail.local:3: action nftables: its type is allport, a rule of its own",
        ),
        (
            "[shop]\nenabled = true\nmode = hrad\nfailregex = %(known/failregex)s\n  ^mine <HOST>$\n",
            "/f/jail.local:3: filter shop: mode = hrad (did you mean hard?); allowed: hard, normal",
        ),
        (
            "[shop]\nenabled = true\nmode = normall\nfailregex = %(known/failregex)s\n  ^mine <HOST>$\n",
            "/f/jail.local:3: filter shop: mode = normall (did you mean normal?); allowed: hard, normal",
        ),
    ] {
        let jails = load(local);
        assert_eq!(notes(&jails.jails[0]).join("\n"), expected, "{local}");
    }
    // A jail of which no expression is left, and one that has none, cannot be run.
    for (local, expected) in [
        (
            "[shop]\nenabled = true\nmode = hrad\n",
            "/f/jail.local:3: filter shop has no failregex, so that this jail would find nothing: filter shop: mode = hrad (did you mean hard?); allowed: hard, normal",
        ),
        (
            "[shop]\nenabled = true\nfailregex =\n",
            "/f/jail.local:3: filter shop has no failregex, so that this jail would find nothing",
        ),
    ] {
        let jails = load(local);
        assert!(jails.jails.is_empty(), "{local}");
        assert_eq!(jails.broken[0].0, "shop");
        assert_eq!(jails.broken[0].1.to_string(), expected);
    }
    let own = b"[Definition]\nfailrelregex = x\n_of_my_own = y\n";
    let files = tree("[shop]\nenabled = true\n").bytes("/f/filter.d/shop.local", own);
    let jails = load_jails(&files, Path::new("/f"), &NONE).unwrap();
    assert_eq!(
        notes(&jails.jails[0]),
        [
            "/f/filter.d/shop.local:2: filter shop: failrelregex: there is no such key (did you mean failregex?)"
        ]
    );
    // What another value asks for is a name of one's own.
    let jails =
        load("[DEFAULT]\nmine = 7\n[shop]\nenabled = true\nours = 5\nmaxretry = %(ours)s\n");
    assert_eq!(notes(&jails.jails[0]), Vec::<String>::new());
}

/// A mistake is told where the administrator made it, not where the value is used.
#[test]
fn mistakes_of_ports_actions_and_networks_have_their_own_lines() {
    for (local, expected) in [
        (
            "[shop]\nenabled = true\nport = sssh\n",
            "/f/jail.local:3: action nftables: port = sssh: sssh is neither a port nor a service",
        ),
        (
            "[DEFAULT]\nbanaction = nftables[blocktype=accept]\n[shop]\nenabled = true\n",
            "/f/jail.local:2: action nftables: blocktype accept lets packets pass; allowed: reject, drop",
        ),
        (
            "[DEFAULT]\nbanaction = nftabels\n[shop]\nenabled = true\n",
            "/f/jail.local:2: banaction = nftabels: action nftabels: /f/action.d/nftabels.conf: there is no such file (did you mean nftables?)",
        ),
        (
            "[shop]\nenabled = true\nignoreip = 192.0.2.0/33\n",
            "/f/jail.local:3: ignoreip: 192.0.2.0/33 is no network; allowed behind /: 0 to 32, or a mask",
        ),
        (
            "[shop]\nenabled = true\nignoreip = 2001:db8::/129\n",
            "/f/jail.local:3: ignoreip: 2001:db8::/129 is no network; allowed behind /: 0 to 128",
        ),
    ] {
        assert_eq!(broken(local), expected, "{local}");
    }
}

#[test]
fn a_jail_ignores_so_many_names_at_most() {
    let names: Vec<_> = (0..102).map(|n| format!("h{n}.example")).collect();
    let ignoreip = names.join(" ");
    let jails = load(&format!(
        "[shop]\nenabled = true\nignoreip = {ignoreip} h0.example\n"
    ));
    let jail = &jails.jails[0];
    assert_eq!(jail.ignore_names.len(), 100);
    let expected = ["h100", "h101"].map(|name| {
        format!("/f/jail.local:3: ignoreip: {name}.example is one host name more than a jail may have; allowed: 100")
    });
    assert_eq!(notes(jail), expected);
}

#[test]
fn a_jail_that_is_neither_on_nor_off_is_a_mistake() {
    let why = broken("[shop]\nenabled = ture\n");
    assert_eq!(why, "/f/jail.local:2: enabled = ture; allowed: true, false");
}

#[test]
fn a_mistake_in_one_jail_leaves_the_others() {
    let jails = load("[shop]\nenabled = true\n[other]\nenabled = true\nfilter = nobody\n");
    assert_eq!(jails.jails.len(), 1);
    let (name, error) = &jails.broken[0];
    assert_eq!(name, "other");
    assert_eq!(
        error.to_string(),
        "/f/jail.local:5: filter nobody: /f/filter.d/nobody.conf: there is no such file"
    );
    for (keys, expected) in [
        (
            "findtime = -5",
            "/f/jail.local:3: findtime = -5: expected more than 0",
        ),
        (
            "bantime.increment = ture",
            "/f/jail.local:3: bantime.increment = ture; allowed: true, false",
        ),
        (
            "maxretry = none",
            "/f/jail.local:3: maxretry = none: expected a number from 1",
        ),
        (
            "maxretry = 0",
            "/f/jail.local:3: maxretry = 0: expected a number from 1",
        ),
        (
            "bantime = soon",
            "/f/jail.local:3: bantime = soon: expected a time such as 10m: soon is not known",
        ),
        (
            "findtime = 0",
            "/f/jail.local:3: findtime = 0: expected more than 0",
        ),
        (
            "backend = carrier-pigeon",
            "/f/jail.local:3: backend = carrier-pigeon: expected auto, polling, pyinotify or systemd",
        ),
        (
            "logpath = relative.log",
            "/f/jail.local:3: logpath = relative.log: expected absolute paths",
        ),
        ("logpath = ", "/f/jail.conf:9: [shop] has no logpath"),
        (
            "logpath = %(nowhere)s",
            "/f/jail.local:3: logpath of [shop]: %(nowhere)s is not known",
        ),
        (
            "filter = shop[mode",
            "/f/jail.local:3: the options are not closed by ]: [mode",
        ),
        ("filter =", "/f/jail.local:2: [shop] has no filter"),
        (
            "port = 99999",
            "/f/jail.local:3: action nftables: port = 99999: 99999 is neither a port nor a service",
        ),
        (
            "action = unheard",
            "/f/jail.local:3: action unheard: /f/action.d/unheard.conf: there is no such file",
        ),
        (
            "action = nftables[blocktype=accept]",
            "/f/jail.local:3: action nftables: blocktype accept lets packets pass; allowed: reject, drop",
        ),
    ] {
        assert_eq!(
            broken(&format!("[shop]\nenabled = true\n{keys}\n")),
            expected
        );
    }
    let missing = load_jails(&Memory::default(), Path::new("/f"), &NONE).unwrap_err();
    assert_eq!(missing.to_string(), "/f/jail.conf: there is no such file");
    // What all jails go by must be sound; a section of one jail breaks that one.
    let load = |local: &str| load_jails(&tree(local), Path::new("/f"), &NONE);
    for (local, mistake) in [
        (
            "enabled",
            "/f/jail.local:1: a key stands before the first [section]",
        ),
        (
            "[DEFAULT]\n\nignoreip",
            "/f/jail.local:3: expected key = value, [section] or a comment: ignoreip",
        ),
        (
            "[DEFAULT]\n[shop]\nenabled = on\n[INCLUDES]\nafter",
            "/f/jail.local:5: expected key = value, [section] or a comment: after",
        ),
    ] {
        assert_eq!(load(local).unwrap_err().to_string(), mistake);
    }
    for (local, jail, mistake) in [
        (
            "[shop\nenabled = on",
            "shop",
            "/f/jail.local:1: the [section] is not closed: [shop",
        ),
        (
            "[\u{1b}\nenabled = on",
            "?",
            "/f/jail.local:1: the [section] is not closed: [\\u{1b}",
        ),
        (
            "[shop]\nenabled = on\nx",
            "shop",
            "/f/jail.local:3: expected key = value, [section] or a comment: x",
        ),
        (
            "[shop]\nenabled = on\n[two]\nenabled\n[three]\nenabled = no",
            "two",
            "/f/jail.local:4: expected key = value, [section] or a comment: enabled",
        ),
    ] {
        let all = load(local).unwrap();
        let broken: Vec<_> = (all.broken.iter())
            .map(|(name, error)| (name.as_str(), error.to_string()))
            .collect();
        assert_eq!(broken, [(jail, mistake.to_owned())]);
        let runs = all.jails.iter().any(|jail| jail.name == "shop");
        assert_eq!(runs, jail == "two", "{local}");
    }
}

/// What is said to all jails, under a mistyped name, is said to nobody: that is told. A jail
/// that is switched off is none of it, whatever its name.
#[test]
fn a_mistyped_section_for_all_jails_is_told() {
    for (name, meant) in [
        ("DEFAUTL", "DEFAULT"),
        ("default", "DEFAULT"),
        ("INCLUDE", "INCLUDES"),
    ] {
        let jails = load(&format!("[{name}]\nbantime = 1h\n[shop]\nenabled = true\n"));
        assert_eq!(jails.jails.len(), 1);
        let (section, error) = &jails.broken[0];
        assert_eq!(section, name);
        assert_eq!(
            error.to_string(),
            format!("/f/jail.local:2: [{name}] is no jail that is enabled (did you mean {meant}?)")
        );
    }
    let jails = load("[shop]\nenabled = true\n[web]\nbantime = 1h\n");
    assert_eq!((jails.broken.len(), jails.disabled), (0, 2));
}

/// So many jails and no more: each costs memory, whatever its log says.
#[test]
fn the_number_of_jails_is_bounded() {
    let load = |count: usize| {
        let more = (0..count).map(|n| {
            format!("[shop{n}]\nenabled = true\nfilter = shop\nlogpath = /var/log/shop.log\n")
        });
        load_jails(&tree(&more.collect::<String>()), Path::new("/f"), &NONE)
    };
    assert_eq!(load(500).unwrap().jails.len(), 500);
    assert_eq!(
        load(501).unwrap_err().to_string(),
        "/f/jail.conf: more than 500 jails are enabled; allowed: 500"
    );
}

/// The disk, with every jail enabled.
struct AllEnabled(PathBuf);

impl Files for AllEnabled {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        match path == self.0.join("jail.local") {
            true => Ok(b"[DEFAULT]\nenabled = true\nknocking_url = /knock\n".to_vec()),
            false => Disk.read(path),
        }
    }

    fn list(&self, dir: &Path) -> std::io::Result<Vec<PathBuf>> {
        Disk.list(dir)
    }
}

/// Every stock jail, or why not.
fn all_of(root: &Path) -> Jails {
    load_jails(&AllEnabled(root.to_owned()), root, &NONE).unwrap()
}

#[test]
fn every_jail_of_the_package_runs_or_says_why() {
    let Some(root) = installed() else { return };
    let jails = all_of(&root);
    let broken: Vec<_> = jails
        .broken
        .iter()
        .map(|(name, e)| (name.as_str(), e.to_string()))
        .collect();
    let [("pass2allow-ftp", why)] = &broken[..] else {
        panic!("{broken:?}");
    };
    assert!(why.contains("blocktype return lets packets pass"), "{why}");
    assert!(jails.jails.len() > 80, "only {}", jails.jails.len());
    let limits: Vec<_> = jails.jails.iter().flat_map(notes).collect();
    let [limit] = &limits[..] else {
        panic!("{limits:?}");
    };
    // A firewall's action that logs as well.
    let known = "action iptables-multiport-log: weir logs no packets for it";
    assert!(limit.contains(known), "{limit}");
    let counts_bans = jails.jails.iter().filter(|jail| jail.counts_bans);
    let names: Vec<_> = counts_bans.map(|jail| jail.name.as_str()).collect();
    assert_eq!(names, ["recidive"]);
    let asks = |jail: &&weir_fail2ban::Jail| jail.ignore_command.is_some();
    assert_eq!(jails.jails.iter().filter(asks).count(), 1);
}

#[test]
fn the_filters_of_every_jail_of_fail2bans_repository_are_there() {
    let Some(tree) = upstream() else { return };
    let jails = all_of(&tree.join("config"));
    // The tree at hand may be without action.d, which is not what this is about.
    for (name, error) in &jails.broken {
        let error = error.to_string();
        let is_action = error.contains(": action ");
        assert!(is_action || name == "pass2allow-ftp", "{name}: {error}");
    }
    assert!(jails.jails.len() + jails.broken.len() > 90);
}

#[test]
fn settings_of_the_server_that_weir_does_not_go_by_are_told() {
    let limits = |text: &str| {
        let files = Memory::new(&[
            (
                "/f/fail2ban.conf",
                "[DEFAULT]\nloglevel = INFO\ndbpurgeage = 1d\nallowipv6 = auto\n[Definition]\n[Thread]\n#stacksize = 0\n",
            ),
            ("/f/fail2ban.local", text),
        ]);
        let limits = server_limits(&files, Path::new("/f")).unwrap();
        limits.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // What means the same is no change.
    let same = "[DEFAULT]\nloglevel = info\ndbpurgeage = 86400\ndbfile = /x\nlogtarget = /y\n";
    assert_eq!(limits(same), Vec::<String>::new());
    assert_eq!(
        limits(
            "[Definition]\ndbpurgeage = 30d\nallowipv6 = no\nlogtargt = /x\n[Thread]\nstacksize = 32\n"
        ),
        [
            "/f/fail2ban.local:2: dbpurgeage = 30d is not read: keep_history of weir.toml says how long past bans are known",
            "/f/fail2ban.local:3: allowipv6 = no is not read: weir bans IPv6 as it does IPv4",
            "/f/fail2ban.local:6: stacksize = 32 is not read: weir's threads have stacks of their own size",
            "/f/fail2ban.local:4: logtargt: there is no such key (did you mean logtarget?)",
        ]
    );
    // One that cannot be read, and that nobody asks for, leaves the others.
    let told = limits("[Definition]\npidfile = %(rundir)s/x\nallowipv6 = no\n");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("/f/fail2ban.local:2: "), "{told:?}");
    let Some(root) = installed() else { return };
    assert_eq!(server_limits(&Disk, &root).unwrap(), []);
}

//! Every action of Debian's fail2ban package: a ban of weir's own, commands that are run,
//! or refused by name. A package of another version may have others; what is here holds
//! for those that both have.

mod common;

use std::{fs, process::Command};

use common::Disk;
use weir_fail2ban::{ActionKind, LogFacts, load_jails};

const ACTIONS: &str = "/etc/fail2ban/action.d";

struct Host;

impl LogFacts for Host {
    fn has_log(&self, _pattern: &str) -> bool {
        true
    }

    fn has_journal(&self) -> bool {
        false
    }
}

fn became(name: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::os::unix::fs::symlink(ACTIONS, root.join("action.d")).unwrap();
    fs::create_dir(root.join("filter.d")).unwrap();
    fs::write(
        root.join("filter.d/x.conf"),
        "[Definition]\nfailregex = ^x <HOST>$\n",
    )
    .unwrap();
    let jail = format!("[x]\nenabled = true\nfilter = x\nlogpath = /x\naction = {name}[port=22]\n");
    fs::write(root.join("jail.conf"), jail).unwrap();
    let jails = load_jails(&Disk, root, &Host).unwrap();
    if let Some((_, why)) = jails.broken.first() {
        return format!("broken: {}", why.message);
    }
    match &jails.jails[0].actions[0].kind {
        ActionKind::Ban { ports, action } => format!("ban {ports} {}", action.name()),
        ActionKind::Run(commands) => {
            for script in commands.families.iter().flat_map(|family| family.scripts()) {
                let parsed = Command::new("/bin/sh")
                    .args(["-n", "-c", &script.text])
                    .output();
                let said = String::from_utf8(parsed.unwrap().stderr).unwrap();
                assert_eq!(said, "", "{name}: {}", script.text);
            }
            "run".to_owned()
        }
        ActionKind::NotRun(why) | ActionKind::Refused(why) => {
            let why = why.replace(&root.display().to_string(), "");
            format!("refused: {why}")
        }
    }
}

#[test]
fn each_action_of_the_package_is_a_ban_or_run_or_refused_by_name() {
    let Ok(entries) = fs::read_dir(ACTIONS) else {
        eprintln!("skipped: fail2ban package: there is no {ACTIONS}");
        return;
    };
    let mut all: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with("-common.conf") && !name.ends_with(".local"))
        .map(|name| name.trim_end_matches(".conf").to_owned())
        .collect();
    all.sort();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for name in all {
        let became = became(&name);
        let expected = TABLE.iter().find(|(known, _)| *known == name);
        match expected {
            Some((_, expected)) if became == *expected => seen += 1,
            Some(_) => wrong.push(format!("(\"{name}\", {became:?}),")),
            // Another version of the package has it.
            None if became == "run"
                || became.starts_with("ban ")
                || became.starts_with("refused: ") =>
            {
                eprintln!("not in the table: {name}: {became}");
            }
            None => wrong.push(format!("(\"{name}\", {became:?}),")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen >= 40, "{seen} of the table are in this package");
}

const TABLE: &[(&str, &str)] = &[
    ("abuseipdb", "run"),
    ("apf", "run"),
    ("apprise", "run"),
    ("blocklist_de", "run"),
    ("bsd-ipfw", "refused: it is a firewall of another system"),
    ("cloudflare", "run"),
    ("cloudflare-token", "run"),
    ("complain", "run"),
    ("dshield", "run"),
    ("dummy", "run"),
    ("firewallcmd-allports", "ban all ports reject"),
    ("firewallcmd-ipset", "ban 22/tcp reject"),
    ("firewallcmd-multiport", "ban 22/tcp reject"),
    ("firewallcmd-new", "ban 22/tcp reject"),
    ("firewallcmd-rich-logging", "ban 22/tcp reject"),
    ("firewallcmd-rich-rules", "ban 22/tcp reject"),
    ("hostsdeny", "run"),
    ("ipfilter", "refused: it is a firewall of another system"),
    ("ipfw", "refused: it is a firewall of another system"),
    ("iptables", "ban 22/tcp reject"),
    ("iptables-allports", "ban all ports reject"),
    ("iptables-ipset", "ban 22/tcp reject"),
    ("iptables-ipset-proto4", "ban 22/tcp reject"),
    ("iptables-ipset-proto6", "ban 22/tcp reject"),
    ("iptables-ipset-proto6-allports", "ban all ports reject"),
    ("iptables-multiport", "ban 22/tcp reject"),
    ("iptables-multiport-log", "ban 22/tcp reject"),
    ("iptables-new", "ban 22/tcp reject"),
    ("iptables-xt_recent-echo", "ban 22/tcp reject"),
    ("ipthreat", "run"),
    ("mail", "run"),
    ("mail-buffered", "run"),
    ("mail-whois", "run"),
    ("mail-whois-lines", "run"),
    ("mynetwatchman", "run"),
    ("netscaler", "run"),
    ("nftables", "ban 22/tcp reject"),
    ("nftables-allports", "ban all ports reject"),
    ("nftables-multiport", "ban 22/tcp reject"),
    ("nginx-block-map", "run"),
    ("npf", "refused: it is a firewall of another system"),
    ("nsupdate", "run"),
    ("osx-afctl", "refused: it is a firewall of another system"),
    ("osx-ipfw", "refused: it is a firewall of another system"),
    ("pf", "refused: it is a firewall of another system"),
    ("route", "ban all ports reject"),
    ("sendmail", "run"),
    ("sendmail-buffered", "run"),
    (
        "sendmail-geoip-lines",
        "refused: not run: /action.d/sendmail-geoip-lines.conf:39: actionban: <ip-host> is a value that weir does not keep",
    ),
    ("sendmail-whois", "run"),
    ("sendmail-whois-ipjailmatches", "run"),
    ("sendmail-whois-ipmatches", "run"),
    ("sendmail-whois-lines", "run"),
    ("sendmail-whois-matches", "run"),
    ("shorewall", "ban all ports reject"),
    ("shorewall-ipset-proto6", "ban all ports reject"),
    ("smtp.py", "refused: it is a program in Python"),
    ("symbiosis-blacklist-allports", "run"),
    ("ufw", "ban all ports reject"),
    ("xarf-login-attack", "run"),
];

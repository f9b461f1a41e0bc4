//! Bans move from a real Fail2ban to weir and back, with their ends and counts, and what is
//! wrong with its database is named and lost for nobody.

#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use plain::{DEADLINE, Plain};
use serde_json::Value;

/// A directory that Fail2ban and weir both read.
fn host() -> Plain {
    let host = Plain::new();
    for dir in ["f", "f/filter.d", "f/action.d"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    host.write(
        "f/fail2ban.conf",
        "[Definition]\nloglevel = INFO\nlogtarget = {dir}/fail2ban.log\nsyslogsocket = auto\n\
         socket = {dir}/f2b.sock\npidfile = {dir}/f2b.pid\ndbfile = {dir}/f2b.sqlite3\n\
         dbpurgeage = 1d\ndbmaxmatches = 10\n",
    );
    host.write(
        "f/jail.conf",
        "[DEFAULT]\nbackend = polling\nmaxretry = 2\nbantime = 2h\nusedns = no\n\
         bantime.increment = true\n\
         action = nftables[port=80, protocol=tcp]\n         note\n\
         [shop]\nenabled = true\nfilter = shop\nlogpath = {dir}/shop.log\n\
         [other]\nenabled = true\nfilter = shop\nlogpath = {dir}/other.log\nbantime = -1\n",
    );
    host.write(
        "f/filter.d/shop.conf",
        "[Definition]\nfailregex = login from <HOST> failed$\n",
    );
    host.write(
        "f/action.d/nftables.conf",
        "[Definition]\nactionban = true\nactionunban = true\n[Init]\nblocktype = reject\n",
    );
    host.write(
        "f/action.d/note.conf",
        "[Definition]\nactionban = echo <name> <ip> <restored> >> {dir}/note\nactionunban =\n",
    );
    // Fail2ban knows a log again by its first line: of an empty one it would read all
    // that came later once more.
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
    host.write("shop.log", &format!("{now} web shop: started\n"));
    host.write("other.log", "");
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n");
    host
}

/// Has weir drop packets in a network namespace of its own, where that can be done: in the
/// dry no action is told of anything.
fn drops(host: &mut Plain) -> bool {
    let can = weir_netlab::missing(&["unshare", "nft"]).is_none();
    if can {
        host.under = ["unshare", "--net", "--"].map(str::to_owned).to_vec();
        let text = host.read("weir.toml").replace("dry-run", "nft");
        host.write("weir.toml", &text);
    }
    can
}

fn append(host: &Plain, file: &str, text: &str) {
    let file = fs::File::options().append(true).open(host.path(file));
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

/// Fail2ban with the configuration of a host. Dropped, it has ended.
struct Fail2ban<'a>(&'a Plain);

impl<'a> Fail2ban<'a> {
    fn start(host: &'a Plain) -> Self {
        let server = Self(host);
        let said = server.client(&["start"]);
        assert!(said.contains("Server ready"), "{said}");
        server
    }

    fn client(&self, args: &[&str]) -> String {
        let dir = self.0.path("f");
        let mut command = Command::new("fail2ban-client");
        command
            .arg("-c")
            .arg(dir)
            .arg("-s")
            .arg(self.0.path("f2b.sock"));
        command.arg("-p").arg(self.0.path("f2b.pid"));
        let output = command.args(args).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn banned(&self, jail: &str) -> Vec<String> {
        let said = self.client(&["get", jail, "banip"]);
        let mut all: Vec<_> = said.split_whitespace().map(str::to_owned).collect();
        all.sort();
        all
    }
}

impl Drop for Fail2ban<'_> {
    fn drop(&mut self) {
        self.client(&["stop"]);
        let ends = Instant::now() + DEADLINE;
        while self.0.path("f2b.sock").exists() && Instant::now() < ends {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn is_there() -> bool {
    let there = Path::new("/usr/bin/fail2ban-server").exists();
    if !there {
        eprintln!("skipped: fail2ban package: there is no /usr/bin/fail2ban-server");
    }
    there
}

fn left(host: &Plain, who: &str) -> Option<u64> {
    let why = host.json(&["why", who]);
    why["bans"][0]["remaining_seconds"].as_u64()
}

/// Of a log that it never read Fail2ban reads what is younger than `findtime`, and so does weir.
#[test]
fn failures_just_before_the_first_start_count_as_with_fail2ban() {
    if !is_there() {
        return;
    }
    let mut host = host();
    let who = ["2001:db8::30", "203.0.113.30"];
    // The usual findtime is 10 minutes.
    for (seconds, who) in [(700, "203.0.113.31"), (30, who[0]), (30, who[1])] {
        let then = jiff::Zoned::now() - jiff::SignedDuration::from_secs(seconds);
        let line = format!(
            "{} web shop: login from {who} failed\n",
            then.strftime("%b %d %H:%M:%S")
        );
        append(&host, "shop.log", &line.repeat(2));
    }
    {
        let server = Fail2ban::start(&host);
        host.until("Fail2ban's bans", |_| {
            server.banned("shop") == who.map(str::to_owned)
        });
    }
    fs::remove_file(host.path("f2b.sqlite3")).unwrap();
    host.start();
    host.until("weir's bans", |host| {
        who.iter().all(|who| host.is_banned(who))
    });
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
    let line = format!("{now} web shop: login from 203.0.113.32 failed\n");
    append(&host, "shop.log", &line.repeat(2));
    host.until("the next ban", |host| host.is_banned("203.0.113.32"));
    assert!(!host.is_banned("203.0.113.31"));
    assert_eq!(host.json(&["bans"])["total"], 3);
}

#[test]
fn bans_move_from_fail2ban_and_back() {
    if !is_there() {
        return;
    }
    let mut host = host();
    let drops = drops(&mut host);
    {
        let server = Fail2ban::start(&host);
        for who in ["203.0.113.7", "2001:db8::7", "203.0.113.8"] {
            server.client(&["set", "shop", "banip", who]);
        }
        server.client(&["set", "other", "banip", "203.0.113.9"]);
        host.until("Fail2ban's bans", |_| {
            server.banned("shop").len() == 3 && server.banned("other").len() == 1
        });
        server.client(&["set", "shop", "unbanip", "203.0.113.8"]);
    }
    // Written while nobody reads: weir goes on where Fail2ban stood.
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
    let line = format!("{now} web shop: login from 203.0.113.20 failed\n");
    append(&host, "shop.log", &line.repeat(2));
    fs::write(host.path("note"), "").unwrap();
    host.start();
    for who in ["203.0.113.7", "2001:db8::7"] {
        let time = left(&host, who).unwrap();
        assert!((7_000..=7_200).contains(&time), "{who}: {time}");
        let why = host.json(&["why", who]);
        assert_eq!(why["bans"][0]["producer"], "jail:shop");
        assert_eq!(why["bans"][0]["scope"], "80/tcp");
    }
    assert_eq!(
        host.json(&["why", "203.0.113.9"])["bans"][0]["until"],
        Value::Null
    );
    assert!(!host.is_banned("203.0.113.8"));
    host.until("the lines of the pause", |host| {
        host.is_banned("203.0.113.20")
    });
    // Its actions are told, as of bans that were there.
    host.until("the action to be told", |host| {
        let note = host.read("note");
        [
            "shop 203.0.113.7 1",
            "shop 2001:db8::7 1",
            "other 203.0.113.9 1",
        ]
        .iter()
        .all(|line| !drops || note.lines().any(|there| there == *line))
    });
    // It bans for twice as long the second time.
    host.done(&["unban", "203.0.113.7"]);
    let line = line.replace("203.0.113.20", "203.0.113.7");
    std::thread::sleep(Duration::from_millis(1_100));
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
    let line = format!("{now}{}", &line[now.len()..]).repeat(2);
    append(&host, "shop.log", &line);
    host.until("a longer ban", |host| {
        left(host, "203.0.113.7").is_some_and(|time| time > 14_000)
    });

    // Once: what was lifted here stays lifted, and what Fail2ban has is not asked again.
    host.done(&["unban", "2001:db8::7"]);
    assert_eq!(host.end("TERM"), Some(0));
    host.start();
    assert!(!host.is_banned("2001:db8::7") && host.is_banned("203.0.113.7"));
    // Unless somebody wants it.
    let (code, said) = host.ask(&["import", "fail2ban", "--bans"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("taken over: 1; "), "{said}");
    assert!(host.is_banned("2001:db8::7"));

    // And back, over what is there and into a new file.
    for file in ["f2b.sqlite3", "new.sqlite3"] {
        let path = host.path(file);
        let said = host.done(&["export", "fail2ban", path.to_str().unwrap()]);
        assert!(said.starts_with("4 bans written to "), "{said}");
    }
    assert_eq!(host.end("TERM"), Some(0));
    for file in ["f2b.sqlite3", "new.sqlite3"] {
        if file != "f2b.sqlite3" {
            fs::rename(host.path(file), host.path("f2b.sqlite3")).unwrap();
        }
        let server = Fail2ban::start(&host);
        host.until("Fail2ban to restore them", |_| {
            server.banned("shop") == ["2001:db8::7", "203.0.113.20", "203.0.113.7"]
                && server.banned("other") == ["203.0.113.9"]
        });
        // A new database knows of no log: Fail2ban reads again what is younger than findtime.
        if file == "f2b.sqlite3" {
            let times = server.client(&["get", "shop", "banip", "--with-time"]);
            let longer = times.lines().find(|line| line.starts_with("203.0.113.7 "));
            assert!(
                longer.is_some_and(|line| line.contains(" + 14400 = ")),
                "{times}"
            );
        }
    }
}

/// Fail2ban knows a log by the hash of its first line, and so does weir: a log that was rotated
/// while neither ran may be as long as it was, with a line's end at the same place.
#[test]
fn a_log_that_was_rotated_meanwhile_is_not_read_on() {
    if !is_there() {
        return;
    }
    for is_rotated in [false, true] {
        let mut host = host();
        let who = ["203.0.113.40", "2001:db8::40"];
        let now = || jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
        let fail = |who: &str| format!("{} web shop: login from {who} failed\n", now()).repeat(2);
        {
            let server = Fail2ban::start(&host);
            append(&host, "shop.log", &who.map(fail).concat());
            host.until("Fail2ban's bans", |_| server.banned("shop").len() == 2);
            for who in who {
                server.client(&["set", "shop", "unbanip", who]);
            }
        }
        if is_rotated {
            let text = host.read("shop.log");
            fs::rename(host.path("shop.log"), host.path("shop.log.1")).unwrap();
            fs::write(
                host.path("shop.log"),
                text.replacen("started", "rotated", 1),
            )
            .unwrap();
        }
        host.start();
        append(&host, "shop.log", &fail("203.0.113.41"));
        host.until("the next ban", |host| host.is_banned("203.0.113.41"));
        for who in who {
            assert_eq!(host.is_banned(who), is_rotated, "{who}");
        }

        // What weir has read of the new log Fail2ban does not count again.
        host.done(&["unban", "--all"]);
        let path = host.path("f2b.sqlite3");
        host.done(&["export", "fail2ban", path.to_str().unwrap()]);
        assert_eq!(host.end("TERM"), Some(0));
        let server = Fail2ban::start(&host);
        append(&host, "shop.log", &fail("203.0.113.42"));
        host.until("Fail2ban's next ban", |_| {
            server.banned("shop").contains(&"203.0.113.42".to_owned())
        });
        assert_eq!(server.banned("shop"), ["203.0.113.42"]);
    }
}

/// A jail that could not run at the first start has its bans as soon as it can.
#[test]
fn bans_of_a_jail_that_cannot_run_yet_are_taken_over_when_it_can() {
    if !is_there() {
        return;
    }
    let mut host = host();
    {
        let server = Fail2ban::start(&host);
        for (jail, who) in [("shop", "203.0.113.7"), ("other", "203.0.113.8")] {
            server.client(&["set", jail, "banip", who]);
            host.until("Fail2ban's ban", |_| server.banned(jail).len() == 1);
        }
    }
    let jails = host.read("f/jail.conf");
    let broken = jails.replacen("[shop]\n", "[shop]\nmaxretry = none\n", 1);
    fs::write(host.path("f/jail.conf"), broken).unwrap();
    host.start();
    assert!(host.is_banned("203.0.113.8") && !host.is_banned("203.0.113.7"));
    let alerts = host.alerts();
    assert!(
        alerts.contains("because their jails cannot run: shop (1)"),
        "{alerts}"
    );
    host.done(&["unban", "203.0.113.8"]);
    fs::write(host.path("f/jail.conf"), jails).unwrap();
    host.done(&["reload"]);
    host.until("its ban", |host| host.is_banned("203.0.113.7"));
    assert!(!host.alerts().contains("fail2ban-state"));
    // What was lifted meanwhile stays lifted.
    assert!(!host.is_banned("203.0.113.8"));
}

/// A Fail2ban that runs would not read what is written, and would write over it.
#[test]
fn nothing_is_exported_beside_a_running_fail2ban() {
    if !is_there() {
        return;
    }
    let mut host = host();
    host.start();
    let server = Fail2ban::start(&host);
    let file = host.path("f2b.sqlite3");
    let export = ["export", "fail2ban", file.to_str().unwrap()];
    let (code, said) = host.ask(&export);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("f2b.sqlite3 is open in ") && said.contains("--force"),
        "{said}"
    );
    let said = host.done(&[&export[..], &["--force"]].concat());
    assert!(said.starts_with("0 bans written to "), "{said}");
    drop(server);
    host.until("Fail2ban to end", |host| host.ask(&export).0 == Some(0));
}

#[test]
fn what_is_lifted_after_an_import_stays_lifted_at_the_next_start() {
    if !is_there() {
        return;
    }
    let mut host = host();
    // Before Fail2ban has a database: nothing to take over yet.
    host.start();
    {
        let server = Fail2ban::start(&host);
        server.client(&["set", "shop", "banip", "203.0.113.7"]);
        host.until("Fail2ban's ban", |_| server.banned("shop").len() == 1);
    }
    host.done(&["import", "fail2ban", "--bans"]);
    assert!(host.is_banned("203.0.113.7"));
    host.done(&["unban", "203.0.113.7"]);
    assert_eq!(host.end("TERM"), Some(0));
    host.start();
    assert!(!host.is_banned("203.0.113.7"));
}

#[test]
fn a_database_that_cannot_be_used_is_an_alert_and_tried_again() {
    let mut host = host();
    host.write("f2b.sqlite3", "this is no database, whatever its name says");
    host.start();
    let alerts = host.alerts();
    assert!(alerts.contains("fail2ban-state"), "{alerts}");
    assert!(
        alerts.contains("it is damaged or not Fail2ban's"),
        "{alerts}"
    );
    let (code, said) = host.ask(&["import", "fail2ban", "--bans"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("f2b.sqlite3: it is damaged or not Fail2ban's"),
        "{said}"
    );
    let (code, said) = host.ask(&["import", "fail2ban", "--bans", "/nowhere/x"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("/nowhere/x: there is no such file"), "{said}");
    let (code, said) = host.ask(&["export", "fail2ban", "/nowhere/x"]);
    assert_eq!(code, Some(2), "{said}");
    // One of a jail that does not run here is not lost silently.
    fs::remove_file(host.path("f2b.sqlite3")).unwrap();
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n[jail.sshd]\npaths = [\"{dir}/a.log\"]\n");
    host.done(&["reload"]);
    host.done(&["ban", "192.0.2.99"]);
    let file = host.path("f2b.sqlite3");
    let said = host.done(&["export", "fail2ban", file.to_str().unwrap()]);
    assert!(said.starts_with("0 bans written"), "{said}");
    assert_eq!(host.end("TERM"), Some(0));
    let db = insert_ban_of_a_gone_jail(&file);
    assert!(db.success());
    host.start();
    assert!(!host.alerts().contains("fail2ban-state"));
    let (code, said) = host.ask(&["import", "fail2ban", "--bans"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("not taken over: 1 bans of jail gone"),
        "{said}"
    );
}

/// A ban of a jail that nobody has, written as Fail2ban's own Python does.
fn insert_ban_of_a_gone_jail(file: &Path) -> std::process::ExitStatus {
    let program = "import sqlite3, sys, time\n\
        db = sqlite3.connect(sys.argv[1])\n\
        db.execute(\"INSERT INTO jails (name) VALUES ('gone')\")\n\
        db.execute(\"INSERT INTO bips VALUES ('192.0.2.5', 'gone', ?, 600, 1, '{}')\", (int(time.time()),))\n\
        db.commit()\n";
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(file).status().unwrap()
}

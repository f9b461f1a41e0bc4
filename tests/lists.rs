//! Lists as their users meet them: a real daemon with the dry-run backend, real
//! files, a real web server on loopback that fails as servers do.

#[path = "common/plain.rs"]
mod plain;
#[path = "common/web.rs"]
#[allow(dead_code)]
mod web;

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use plain::Plain;
use serde_json::Value;
use tempfile::TempDir;
use web::{Web, reply};

const DEADLINE: Duration = Duration::from_secs(60);

/// A daemon, or the place for one, and what lists do there.
struct Host(Plain);

struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Host {
    /// A host with these lists; `{dir}` is the host's directory.
    fn new(lists: &str) -> Self {
        let host = Self(Plain::new());
        host.configure(lists);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn configure(&self, lists: &str) {
        self.0.configure_only(lists);
    }

    fn weir(&self, args: &[&str]) -> Answer {
        let output = self.0.output(args);
        Answer {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let answer = self.weir(&[args, &["--json"]].concat());
        serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{e}: {}", answer.err))
    }

    #[track_caller]
    fn start(&mut self) {
        self.0.start();
    }

    /// SIGKILL: what is on disk must do.
    fn kill(&mut self) {
        self.0.end("KILL");
    }

    fn said(&self) -> String {
        self.0.said()
    }

    #[track_caller]
    fn soon<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "waited for {what}: {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn list(&self, name: &str) -> Value {
        self.json(&["list", "status", name])
    }

    /// Waits until the list has this many prefixes.
    #[track_caller]
    fn holds(&self, name: &str, prefixes: u64) -> Value {
        self.soon(&format!("{name} to hold {prefixes}"), || {
            let list = self.list(name);
            (list["prefixes"] == prefixes).then_some(list)
        })
    }

    /// The alert about this.
    fn alert(&self, about: &str) -> Option<String> {
        let status = self.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap();
        let alert = alerts.iter().find(|alert| alert["about"] == about)?;
        Some(alert["message"].as_str().unwrap().to_owned())
    }
}

/// What a server hands out, changed by the test.
#[derive(Clone)]
struct Page(Arc<Mutex<(&'static str, String)>>);

impl Page {
    fn new(body: impl Into<String>) -> Self {
        Self(Arc::new(Mutex::new(("200 OK", body.into()))))
    }

    fn set(&self, status: &'static str, body: impl Into<String>) {
        *self.0.lock().unwrap() = (status, body.into());
    }

    fn serve(&self, port: u16) -> Web {
        let page = self.clone();
        Web::start_on(port, move |_, stream| {
            let (status, body) = page.0.lock().unwrap().clone();
            reply(stream, status, &[], body.as_bytes())
        })
    }
}

/// So many addresses that do not join.
fn addresses(count: u32) -> String {
    (0..count)
        .map(|n| format!("{}\n", std::net::Ipv4Addr::from_bits(0xc633_6400 + 2 * n)))
        .collect()
}

/// Its own addresses and those that are allowed may be on a list; nobody is
/// locked out by that, and it is shown.
#[test]
fn exempt_addresses_on_a_deny_list_pass_and_are_counted() {
    let mut host = Host::new("allow = [\"203.0.113.9\"]\n[list.bad]\nfile = \"{dir}/bad.txt\"\n");
    fs::write(host.path("bad.txt"), "203.0.113.0/24\n").unwrap();
    host.start();
    assert_eq!(host.list("bad")["exempt"], 1);
    assert_eq!(host.json(&["why", "203.0.113.9"])["would_drop"], false);
    assert_eq!(host.json(&["why", "203.0.113.8"])["would_drop"], true);
    // What a refresh brings holds when the verb returns.
    fs::write(host.path("bad.txt"), "198.51.100.7\n").unwrap();
    assert_eq!(host.weir(&["list", "refresh", "bad"]).code, 0);
    assert_eq!(host.json(&["why", "203.0.113.8"])["would_drop"], false);
    let why = host.json(&["why", "198.51.100.7"]);
    assert_eq!(why["would_drop"], true);
    assert_eq!(why["lists"][0]["list"], "bad");
}

/// G10: ipt_geofence's list was empty after a download that failed.
#[test]
fn a_url_that_fails_leaves_the_list_in_force_with_an_alert() {
    let page = Page::new(addresses(40));
    let server = page.serve(0);
    let mut host = Host::new(&format!(
        "[list.drop]\nurl = \"{}\"\nrefresh = \"1s\"\n",
        server.url("drop.txt")
    ));
    host.start();
    host.holds("drop", 40);
    assert_eq!(host.alert("list:drop"), None);
    for (status, body, words) in [
        ("503 Service Unavailable", "", "503"),
        ("200 OK", "<html>sign in first</html>", "web page"),
        ("200 OK", "", "it is empty"),
        (
            "200 OK",
            "busy, come back later",
            "no line of it is an address",
        ),
    ] {
        page.set(status, body);
        let alert = host.soon(words, || {
            host.alert("list:drop").filter(|a| a.contains(words))
        });
        assert!(alert.contains("its 40 prefixes of "), "{alert}");
        let list = host.list("drop");
        assert_eq!(list["prefixes"], 40);
        assert!(list["error"].as_str().unwrap().contains(words), "{list}");
    }
    // The whole server is gone.
    let port = server.addr.port();
    drop(server);
    host.soon("an alert", || {
        host.alert("list:drop").filter(|a| a.contains("refused"))
    });
    page.set("200 OK", addresses(41));
    let _server = page.serve(port);
    host.holds("drop", 41);
    host.soon("no alert", || {
        host.alert("list:drop").is_none().then_some(())
    });
    assert_eq!(host.list("drop")["error"], Value::Null);
}

#[test]
fn a_list_that_shrinks_is_kept_unless_it_is_meant() {
    let page = Page::new(addresses(1000));
    let server = page.serve(0);
    let mut host = Host::new(&format!(
        "[list.drop]\nurl = \"{}\"\nrefresh = \"1h\"\n",
        server.url("")
    ));
    host.start();
    host.holds("drop", 1000);
    page.set("200 OK", addresses(100));
    let answer = host.weir(&["list", "refresh", "drop"]);
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(
        answer
            .out
            .contains("stays as it was: it has shrunk from 1000 to 100"),
        "{}",
        answer.out
    );
    assert!(
        answer.out.contains("weir list refresh drop --force"),
        "{}",
        answer.out
    );
    let alert = host.alert("list:drop").unwrap();
    assert!(alert.contains("shrunk from 1000 to 100"), "{alert}");
    assert_eq!(host.list("drop")["prefixes"], 1000);
    // Not only until the next start.
    host.kill();
    host.start();
    assert_eq!(host.list("drop")["prefixes"], 1000);

    let answer = host.weir(&["list", "refresh", "--force"]);
    assert_eq!(
        (answer.code, answer.out.starts_with("drop: 100 prefixes")),
        (0, true)
    );
    assert_eq!(host.alert("list:drop"), None);
    // Less than that is nothing special.
    page.set("200 OK", addresses(11));
    assert_eq!(host.weir(&["list", "refresh"]).code, 0);
    assert_eq!(host.list("drop")["prefixes"], 11);
}

#[test]
fn a_start_without_the_server_uses_the_copy() {
    let page = Page::new("198.51.100.0/24\n2001:db8::/32\n10.0.0.0/8\nsome words\n");
    let server = page.serve(0);
    let config = format!(
        "[list.drop]\nurl = \"{}\"\nrefresh = \"1h\"\n",
        server.url("")
    );
    let port = server.addr.port();

    // The very first start: nothing to use, and it is said.
    drop(server);
    let mut host = Host::new(&config);
    host.start();
    let alert = host.soon("an alert", || host.alert("list:drop"));
    assert!(alert.contains("nothing is in force of it"), "{alert}");

    // It comes back, and is tried again without being told.
    let server = page.serve(port);
    let list = host.holds("drop", 2);
    assert_eq!(
        (&list["ipv4"], &list["ipv6"]),
        (&Value::from(1), &Value::from(1))
    );
    assert_eq!(list["skipped"]["first"][0]["line"], 4);
    assert_eq!(list["refused"]["first"][0]["line"], 3);
    assert_eq!(list["from_cache"], false);
    assert_eq!(list["format"], "plain");
    let copy = host.path("state/lists/drop.list");
    assert!(
        fs::read_to_string(&copy)
            .unwrap()
            .contains("198.51.100.0/24")
    );

    host.kill();
    drop(server);
    host.start();
    // At once, not soon: it is there before anything is attached.
    let list = host.list("drop");
    assert_eq!(
        (&list["prefixes"], &list["from_cache"]),
        (&Value::from(2), &Value::from(true))
    );
    assert!(list["next_refresh"].is_string(), "{list}");
    let text = host.weir(&["list", "status"]).out;
    assert!(text.contains("(copy)"), "{text}");

    // A copy that is damaged is not used, and does not keep the daemon down.
    host.kill();
    fs::write(&copy, "{\"source\":").unwrap();
    host.start();
    assert_eq!(host.list("drop")["prefixes"], 0);
    assert!(host.said().contains("drop.list"), "{}", host.said());
}

#[test]
fn a_file_is_followed_while_it_is_edited() {
    let mut host = Host::new("[list.bad]\nfile = \"{dir}/bad.txt\"\n");
    fs::write(host.path("bad.txt"), "198.51.100.7\n").unwrap();
    host.start();
    // It is there from the start.
    let list = host.list("bad");
    assert_eq!(list["prefixes"], 1);
    assert_eq!(list["next_refresh"], Value::Null);
    // Appended to, replaced by rename, written anew.
    fs::write(host.path("bad.txt"), "198.51.100.7\n198.51.100.9 # note\n").unwrap();
    host.holds("bad", 2);
    fs::write(
        host.path("new.txt"),
        "198.51.100.7\n203.0.113.0/24\n2001:db8::7\n",
    )
    .unwrap();
    fs::rename(host.path("new.txt"), host.path("bad.txt")).unwrap();
    host.holds("bad", 3);
    // Gone, and no list at all: it stays.
    fs::remove_file(host.path("bad.txt")).unwrap();
    let alert = host.soon("an alert", || host.alert("list:bad"));
    assert!(
        alert.contains("bad.txt") && alert.contains("3 prefixes"),
        "{alert}"
    );
    fs::write(host.path("bad.txt"), [0u8, 1, 2, 3]).unwrap();
    host.soon("another", || {
        host.alert("list:bad").filter(|a| a.contains("not a text"))
    });
    assert_eq!(host.list("bad")["prefixes"], 3);
    // Somebody's own network may be on somebody's own list.
    fs::write(host.path("bad.txt"), "192.168.7.7\n127.0.0.1\n").unwrap();
    host.holds("bad", 1);
    host.soon("no alert", || {
        host.alert("list:bad").is_none().then_some(())
    });
    assert_eq!(host.list("bad")["refused"]["count"], 1);
    // Meant to be empty.
    fs::write(host.path("bad.txt"), "# nobody\n").unwrap();
    host.holds("bad", 0);
    assert_eq!(host.alert("list:bad"), None);
}

/// Whoever opens a FIFO waits for its writer: a list of one's own would hang for
/// good, without a word.
#[test]
fn a_fifo_in_place_of_a_list_is_an_alert() {
    let mut host = Host::new("[list.bad]\nfile = \"{dir}/bad.txt\"\n");
    fs::write(host.path("bad.txt"), "198.51.100.7\n").unwrap();
    host.start();
    fs::remove_file(host.path("bad.txt")).unwrap();
    let made = Command::new("mkfifo").arg(host.path("bad.txt")).status();
    assert!(made.unwrap().success());
    let alert = host.soon("an alert", || host.alert("list:bad"));
    assert!(
        alert.contains("not a regular file") && alert.contains("its 1 prefix of "),
        "{alert}"
    );
    assert_eq!(host.weir(&["list", "refresh", "bad"]).code, 1);
    // Nor does it keep the daemon from starting.
    host.kill();
    host.start();
    assert_eq!(host.list("bad")["prefixes"], 1);
    fs::write(host.path("new.txt"), "198.51.100.7\n203.0.113.7\n").unwrap();
    fs::rename(host.path("new.txt"), host.path("bad.txt")).unwrap();
    host.holds("bad", 2);
    host.soon("no alert", || {
        host.alert("list:bad").is_none().then_some(())
    });
}

/// However it is written: a list from elsewhere holds a sixteenth of IPv4 in one
/// piece and no more, and it is said how much that leaves out.
#[test]
fn what_is_too_wide_for_a_published_list_is_an_alert_with_its_share() {
    const WIDE: &str = "16.0.0.0/4\n32.0.0.0/8\n48.0.0.0/4\n2600::/7\n198.51.100.7\n";
    let page = Page::new(WIDE);
    let server = page.serve(0);
    let mut host = Host::new(&format!(
        "[list.pub]\nurl = \"{}\"\n[list.own]\nfile = \"{{dir}}/own.txt\"\nports = [\"22/tcp\"]\n",
        server.url("/list")
    ));
    fs::write(host.path("own.txt"), WIDE).unwrap();
    host.start();
    let list = host.holds("pub", 2);
    assert_eq!(list["refused"]["count"], 3, "{list}");
    assert_eq!(list["left_out_percent_ipv4"], 51.5, "{list}");
    assert_eq!(list["left_out_percent_ipv6"], 100.0, "{list}");
    let alert = host.soon("an alert", || host.alert("list-entries:pub"));
    for words in [
        "list pub",
        "3 of its entries",
        "51.5 % of its IPv4 addresses and 100.0 % of its IPv6 addresses",
        "16.0.0.0-32.255.255.255",
        "2600::/7",
        "a list of your own",
    ] {
        assert!(alert.contains(words), "{words}: {alert}");
    }
    // It is kept over a restart from the copy, and goes with its cause.
    host.kill();
    host.start();
    assert!(host.alert("list-entries:pub").is_some());
    page.set("200 OK", "16.0.0.0/4\n48.0.0.0/4\n2600::/8\n198.51.100.7\n");
    assert_eq!(host.weir(&["list", "refresh", "pub"]).code, 0);
    assert_eq!(host.list("pub")["refused"]["count"], 0);
    assert_eq!(host.alert("list-entries:pub"), None);
    // One's own list holds all of it.
    let own = host.list("own");
    assert_eq!(own["refused"]["count"], 0, "{own}");
    assert_eq!(host.alert("list-entries:own"), None);
    for held in ["17.1.1.1", "32.7.7.7", "2700::1"] {
        let why = host.json(&["why", held]);
        let lists = why["lists"].as_array().unwrap();
        assert!(lists.iter().any(|list| list["list"] == "own"), "{why}");
    }
}

#[test]
fn a_reload_adds_changes_and_removes() {
    let mut host = Host::new("[list.one]\nfile = \"{dir}/one.txt\"\n");
    fs::write(host.path("one.txt"), "198.51.100.7\n").unwrap();
    fs::write(host.path("two.txt"), "203.0.113.7\n203.0.113.9\n").unwrap();
    host.start();
    let names = |host: &Host| -> Vec<String> {
        let lists = host.json(&["list", "status"]);
        let lists = lists.as_array().unwrap().iter();
        lists
            .map(|list| list["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&host), ["one"]);
    host.configure(
        "[list.one]\nfile = \"{dir}/one.txt\"\nports = [\"22/tcp\"]\ndirection = \"both\"\n[list.two]\nfile = \"{dir}/two.txt\"\n",
    );
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert_eq!(names(&host), ["one", "two"]);
    let one = host.list("one");
    assert_eq!(
        (&one["ports"], &one["direction"]),
        (&"22/tcp".into(), &"both".into())
    );
    assert_eq!(host.list("two")["prefixes"], 2);
    // From another file: what the other one held is gone at once.
    host.configure("[list.two]\nfile = \"{dir}/one.txt\"\n");
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert_eq!(names(&host), ["two"]);
    assert_eq!(host.list("two")["prefixes"], 1);
    assert!(!host.path("state/lists/one.list").exists());
    // A mistake: everything stays.
    host.configure("[list.two]\nfile = \"one.txt\"\n");
    let answer = host.weir(&["reload"]);
    assert_eq!(answer.code, 2);
    assert!(
        answer
            .err
            .contains("file in [list.two] is \"one.txt\"; allowed: an absolute path"),
        "{}",
        answer.err
    );
    assert_eq!(host.weir(&["check"]).code, 2);
    assert_eq!(names(&host), ["two"]);
    host.configure("");
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert!(names(&host).is_empty());
    let answer = host.weir(&["list", "refresh", "two"]);
    assert_eq!(
        (
            answer.code,
            answer
                .err
                .contains("there is no list \"two\"; enabled are: none")
        ),
        (2, true)
    );
}

#[test]
fn an_allow_list_wins_over_every_ban_while_it_says_so() {
    let mut host = Host::new("[list.office]\nfile = \"{dir}/office.txt\"\naction = \"allow\"\n");
    fs::write(
        host.path("office.txt"),
        "203.0.113.0/24\n2001:db8:0ff1::/48\n0.0.0.0/0\n",
    )
    .unwrap();
    host.start();
    for addr in ["203.0.113.9", "2001:db8:ff1::7"] {
        let answer = host.weir(&["ban", addr, "--for", "1h"]);
        assert_eq!(answer.code, 2);
        assert!(
            answer.err.contains("it is on the allow list \"office\""),
            "{}",
            answer.err
        );
    }
    assert_eq!(host.weir(&["ban", "198.51.100.7", "--for", "1h"]).code, 0);
    // Whoever is banned already passes from now on.
    fs::write(host.path("office.txt"), "198.51.100.7\n").unwrap();
    host.soon("the ban to be overruled", || {
        (host.json(&["why", "198.51.100.7"])["verdict"] == "allowed").then_some(())
    });
    assert_eq!(host.weir(&["ban", "203.0.113.9", "--for", "1h"]).code, 0);
    let allowed = host.json(&["allow", "list"]).to_string();
    assert!(
        allowed.contains("198.51.100.7") && !allowed.contains("203.0.113.0/24"),
        "{allowed}"
    );
}

#[test]
fn crowdsec_is_followed_and_its_decisions_end() {
    let key = TempDir::with_prefix("weir-key-").unwrap();
    let key_file = key.path().join("key");
    fs::write(&key_file, "secret\n").unwrap();
    let ban = |value: &str, length: &str| {
        format!(
            "{{\"type\":\"ban\",\"scope\":\"Ip\",\"value\":\"{value}\",\"duration\":\"{length}\"}}"
        )
    };
    let first = format!(
        "{{\"new\":[{},{}],\"deleted\":null}}",
        ban("198.51.100.7", "1h"),
        ban("2001:db8::7", "1h")
    );
    let then = Arc::new(Mutex::new("{\"new\":null,\"deleted\":null}".to_owned()));
    let server = {
        let then = then.clone();
        Web::start(move |asked, stream| match asked.header("x-api-key") {
            Some("secret") if asked.line.contains("startup=true") => {
                reply(stream, "200 OK", &[], first.as_bytes())
            }
            Some("secret") => {
                let body = then.lock().unwrap().clone();
                reply(stream, "200 OK", &[], body.as_bytes())
            }
            _ => reply(stream, "403 Forbidden", &[], b"{}"),
        })
    };
    let mut host = Host::new(&format!(
        "[list.crowd]\ncrowdsec = \"{}\"\nkey_file = \"{}\"\nrefresh = \"1s\"\n",
        server.url(""),
        key_file.display()
    ));
    host.start();
    host.holds("crowd", 2);
    *then.lock().unwrap() = format!(
        "{{\"new\":[{}],\"deleted\":[{}]}}",
        ban("203.0.113.9", "3s"),
        ban("2001:db8::7", "-1s")
    );
    let list = host.soon("the change", || {
        let list = host.list("crowd");
        (list["ipv6"] == 0 && list["ipv4"] == 2).then_some(list)
    });
    assert_eq!(list["format"], "crowdsec");
    // CrowdSec is gone: its decision ends all the same, the other one stays.
    drop(server);
    host.holds("crowd", 1);
    let alert = host.soon("an alert", || host.alert("list:crowd"));
    assert!(
        alert.contains("1 prefix of") || alert.contains("2 prefixes"),
        "{alert}"
    );
    // A restart without it has what was kept.
    host.kill();
    host.start();
    let list = host.list("crowd");
    assert_eq!(list["from_cache"], true, "{list}");
    assert!(list["prefixes"].as_u64().unwrap() >= 1, "{list}");
}

/// What a start without CrowdSec enforces is what was in force, also when it has
/// just changed; what cannot be read is left out, said, and stays counted.
#[test]
fn crowdsec_is_kept_as_it_is_and_a_malformed_decision_is_left_out() {
    let key = TempDir::with_prefix("weir-key-").unwrap();
    let key_file = key.path().join("key");
    fs::write(&key_file, "secret\n").unwrap();
    let ban = |value: &str, length: &str| {
        format!("{{\"type\":\"ban\",\"scope\":\"Ip\",\"value\":\"{value}\",\"duration\":{length}}}")
    };
    let captcha = ban("198.51.100.70", "\"1h\"").replace("ban", "captcha");
    let answer = |new: &[String], gone: &[String]| {
        format!(
            "{{\"new\":[{}],\"deleted\":[{}]}}",
            new.join(","),
            gone.join(",")
        )
    };
    const NOTHING: &str = "{\"new\":null,\"deleted\":null}";
    let first = answer(
        &[
            ban("198.51.100.7", "\"1h\""),
            ban("198.51.100.9", "3600"),
            captcha,
            ban("127.0.0.1", "\"1h\""),
            ban("2001:db8::7", "\"1h\""),
        ],
        &[],
    );
    let then = Arc::new(Mutex::new(NOTHING.to_owned()));
    let server = {
        let then = then.clone();
        Web::start(move |asked, stream| {
            let body = match asked.line.contains("startup=true") {
                true => first.clone(),
                // A change is said once.
                false => std::mem::replace(&mut *then.lock().unwrap(), NOTHING.to_owned()),
            };
            reply(stream, "200 OK", &[], body.as_bytes())
        })
    };
    let mut host = Host::new(&format!(
        "[list.crowd]\ncrowdsec = \"{}\"\nkey_file = \"{}\"\nrefresh = \"1s\"\n",
        server.url(""),
        key_file.display()
    ));
    host.start();
    host.holds("crowd", 2);
    let alert = host.soon("an alert", || host.alert("list-entries:crowd"));
    assert!(
        alert.contains("1 of CrowdSec's decisions") && alert.contains("198.51.100.9"),
        "{alert}"
    );
    // Counts outlive polls that say nothing new.
    let asked = server.asked().len();
    host.soon("more polls", || {
        (server.asked().len() > asked + 2).then_some(())
    });
    let left_out =
        |list: &Value| ["skipped", "refused", "malformed"].map(|k| list[k]["count"].clone());
    assert_eq!(left_out(&host.list("crowd")), [1, 1, 1]);
    assert!(host.alert("list-entries:crowd").is_some());

    let change = |new: &str, gone: &str| {
        *then.lock().unwrap() = answer(&[ban(new, "\"1h\"")], &[ban(gone, "\"-1s\"")]);
        host.soon("the change", || {
            (host.json(&["why", new])["would_drop"] == true).then_some(())
        });
    };
    // On disk within seconds: few decisions.
    change("203.0.113.1", "198.51.100.7");
    change("203.0.113.2", "203.0.113.1");
    let copy = host.path("state/lists/crowd.list");
    host.soon("the copy to be as it is", || {
        let copy = fs::read_to_string(&copy).unwrap_or_default();
        (copy.contains("203.0.113.2 ") && !copy.contains("203.0.113.1 ")).then_some(())
    });
    // At once when the daemon stops.
    change("203.0.113.3", "203.0.113.2");
    change("203.0.113.4", "203.0.113.3");
    host.0.end("TERM");
    drop(server);
    host.start();
    let list = host.list("crowd");
    assert_eq!(list["from_cache"], true, "{list}");
    for (who, dropped) in [
        ("203.0.113.4", true),
        ("2001:db8::7", true),
        ("203.0.113.3", false),
        ("203.0.113.2", false),
        ("198.51.100.7", false),
    ] {
        assert_eq!(host.json(&["why", who])["would_drop"], dropped, "{who}");
    }
}

#[test]
fn a_server_that_hangs_holds_nobody_up() {
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut host = Host::new(&format!(
        "[list.slow]\nurl = \"http://{}/\"\n[list.bad]\nfile = \"{{dir}}/bad.txt\"\n",
        silent.local_addr().unwrap()
    ));
    fs::write(host.path("bad.txt"), "198.51.100.7\n").unwrap();
    host.start();
    assert_eq!(host.list("bad")["prefixes"], 1);
    fs::write(host.path("bad.txt"), "198.51.100.7\n198.51.100.9\n").unwrap();
    host.holds("bad", 2);
    // It also ends at once.
    let begun = Instant::now();
    host.0.end("TERM");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

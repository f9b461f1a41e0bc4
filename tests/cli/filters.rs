//! Filters from the command line: listed, shown, and tried on lines.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{Answer, Host, WEIR};

#[test]
fn filters_are_shown_and_their_mistakes_named() {
    let host = Host::new();
    host.configure("[filter.shop]\nidentifiers = [\"shop\"]\npatterns = [\"refused <addr>\"]\n");
    let shown = host.weir(&["filter", "show", "shop"]);
    assert_eq!(
        (shown.code, &*shown.out),
        (
            0,
            "identifiers = [\n    \"shop\",\n]\npatterns = [\n    \"refused <addr>\",\n]\n"
        ),
        "{}",
        shown.err
    );
    let json = host.weir(&["filter", "show", "sshd", "--json"]).json();
    assert_eq!(json["identifiers"][0], "sshd", "{json}");
    let none = host.weir(&["filter", "show", "sshdd"]);
    assert!(
        none.code == 2 && none.err.contains("there are: sshd, sshd-aggressive, shop"),
        "{}",
        none.err
    );
    // What is shown is a file of filter.d; without a weir.toml it is enough.
    let dir = host.path("etc/filter.d");
    fs::create_dir_all(&dir).unwrap();
    let built_in = host.weir(&["filter", "show", "sshd"]).out;
    assert!(built_in.starts_with("# OpenSSH's server"), "{built_in}");
    fs::write(dir.join("copy.toml"), &built_in).unwrap();
    let show = |name: &str| {
        let mut show = Command::new(WEIR);
        show.args(["filter", "show", name, "--config"])
            .arg(host.path("etc"));
        show.output().unwrap().into()
    };
    let copy: Answer = show("copy");
    assert_eq!((copy.code, copy.out), (0, built_in), "{}", copy.err);
    let bad = "patterns = [\n  \"refused <addr>\",\n]\nidentifeirs = []\n";
    fs::write(dir.join("bad.toml"), bad).unwrap();
    let bad: Answer = show("bad");
    let told = "filter.d/bad.toml:4: unknown key \"identifeirs\" in [filter.bad] (did you mean identifiers?); allowed: ";
    assert!(bad.code == 2 && bad.err.contains(told), "{}", bad.err);
}

#[test]
fn filters_are_tried_on_lines() {
    let list = Host::new().weir(&["filter", "list", "--json"]).json();
    assert_eq!(list["filters"][0]["from"], "built in", "{list}");
    // Of one's own: the file that defines it.
    let host = Host::new();
    fs::create_dir(host.path("filter.d")).unwrap();
    fs::write(
        host.path("filter.d/shop.toml"),
        "patterns = ['denied <addr>']\n",
    )
    .unwrap();
    host.configure("[filter.web]\npatterns = ['refused <addr>']\n");
    let list = host.weir(&["filter", "list"]);
    for (name, file) in [("shop", "filter.d/shop.toml"), ("web", "weir.toml")] {
        let line = format!("{name} ({})\n", host.path(file).display());
        assert!(list.out.contains(&line), "no {line} in {}", list.out);
    }
    let host = Host::new();
    let dir = host.path("etc/filter.d");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("web.toml"), "patterns = ['refused <addr>']\n").unwrap();
    fs::write(dir.join("old.conf"), "[Definition]\nfailregex = x\n").unwrap();
    let test = |args: &[&str], input: &str| -> Answer {
        let mut child = Command::new(WEIR)
            .args(["filter", "test"])
            .args(args)
            .arg("--config")
            .arg(host.path("etc"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A verb that refuses does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    };
    let lines = "Aug 14 11:53:04 host sshd[1]: Failed password for root from 192.0.2.7 port 1 ssh2\n\
                 Aug 14 11:53:05 host sshd[1]: Accepted password for root from 192.0.2.7 port 1 ssh2\nno newline";
    let tz = "CET-01CEST-02,M3.5.0,M10.5.0";
    let out = test(
        &["sshd", "--json", "--tz", tz, "--now", "1124013600"],
        lines,
    );
    assert_eq!(out.code, 0, "{}", out.err);
    let objects: Vec<Value> = out
        .out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(objects.len(), 3);
    assert_eq!(objects[0]["match"], true);
    assert_eq!(objects[0]["host"], "192.0.2.7");
    assert_eq!(objects[0]["user"], "root");
    assert_eq!(objects[0]["time"], 1124013184);
    assert_eq!(objects[1]["match"], false);
    let why = |n: usize| objects[n]["why"].as_str().unwrap();
    assert!(why(1).contains("no pattern fits"), "{}", why(1));
    assert!(why(2).contains("no time stamp"), "{}", why(2));
    // A reason once, with an example; or of each line; and the clock.
    let now = ["--tz", tz, "--now", "1124017200"];
    let thrice = format!("{lines}\n").repeat(3);
    let out = test(&[&["sshd"][..], &now].concat(), &thrice);
    for said in [
        "comes furthest: it wants \"",
        "the newest time stamp, 2005-08-14T09:53:04Z, is 1h 6m behind the clock",
        " of 9 lines are failures",
    ] {
        assert!(out.out.contains(said), "{said}: {}", out.out);
    }
    assert_eq!(out.out.matches("no pattern fits").count(), 1, "{}", out.out);
    let out = test(&[&["sshd", "--missed"][..], &now].concat(), &thrice);
    assert!(
        out.out.matches("no failure: no pattern fits").count() >= 2,
        "{}",
        out.out
    );
    fs::write(dir.join("bare.toml"), "patterns = ['refused <addr>']\n").unwrap();
    let out = test(
        &["bare"],
        "Aug 14 11:53:04 host shop[1]: refused 192.0.2.7\n",
    );
    assert!(
        out.code == 1
            && out
                .out
                .contains("add identifiers = [\"shop\"], then a pattern fits"),
        "{}",
        out.out
    );
    let out = test(
        &["sshd", "--journal", "--json", "--now", "1124013600"],
        "Failed password for root from 2001:db8::7 port 1 ssh2\n",
    );
    let object: Value = serde_json::from_str(&out.out).unwrap();
    assert_eq!(
        (&object["ip6"], &object["time"]),
        (&"2001:db8::7".into(), &1124013600.into())
    );
    let own = "head = '<time> \\[<word>\\] <pid>#<number>: '\ntime_format = '%Y/%m/%d %T'\npatterns = ['refused <addr>']\n";
    fs::write(dir.join("own.toml"), own).unwrap();
    let line = "2005/08/14 11:53:04 [error] 77#8: refused 192.0.2.7\n";
    let out = test(
        &["own", "--json", "--tz", "UTC", "--now", "1124024000"],
        line,
    );
    let object: Value = serde_json::from_str(&out.out).unwrap();
    assert_eq!(
        (&object["host"], &object["time"]),
        (&"192.0.2.7".into(), &1124020384.into())
    );
    let out = test(
        &["own", "--missed"],
        "2005/08/14 11:53:04 error: refused 192.0.2.7\n",
    );
    let said =
        "its start is not the filter's head, which wants \" [\" behind \"2005/08/14 11:53:04\"";
    assert!(out.code == 1 && out.out.contains(said), "{}", out.out);
    assert_eq!(test(&["web"], "refused 192.0.2.7\n").code, 0);
    assert_eq!(test(&["web"], "welcome 192.0.2.7\n").code, 1);
    for (args, message) in [
        (&["old"][..], "old.conf:2: it names nobody"),
        (&["none"], "there is no filter"),
        (&["../etc"], "is not the name of a filter"),
        (&["sshd", "--tz", "Nowhere/Land"], "is not a time zone"),
        (&["sshd", "--option", "mode=normal"], "take no options"),
    ] {
        let out = test(args, "");
        assert!(
            out.code == 2 && out.err.contains(message),
            "{args:?}: {}",
            out.err
        );
    }
}

#[test]
fn fail2ban_filters_are_run_as_they_are() {
    let host = Host::new();
    fs::create_dir(host.path("filter.d")).unwrap();
    let filter = "[Definition]\n\
        _daemon = shopd\n\
        prefregex = ^ \\S+ %(_daemon)s\\[\\d+\\]: <F-CONTENT>.+</F-CONTENT>$\n\
        failregex = ^refused <F-USER>(?!admin)\\S+</F-USER> from <HOST><suffix>$\n\
        ignoreregex = from 192\\.0\\.2\\.9\n\
        [Init]\n\
        suffix =\n";
    fs::write(host.path("filter.d/shop.conf"), filter).unwrap();
    let test = |args: &[&str], input: &str| -> Answer {
        let mut child = Command::new(WEIR)
            .args([
                "filter",
                "test",
                "shop",
                "--tz",
                "UTC",
                "--now",
                "1124024000",
            ])
            .args(args)
            .arg("--config")
            .arg(host.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    };
    let head = "Aug 14 11:53:04 web shopd[7]: ";
    let lines = format!(
        "{head}refused eve from 2001:db8::7\n{head}refused admin from 192.0.2.7\n\
         {head}refused eve from 192.0.2.9\nAug 14 11:53:04 web other: x\n"
    );
    let out = test(&["--json"], &lines);
    let objects: Vec<Value> = (out.out.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 4, "{}", out.err);
    for (key, value) in [
        ("match", true.into()),
        ("host", "2001:db8::7".into()),
        ("ip6", "2001:db8::7".into()),
        ("user", "eve".into()),
        ("time", Value::from(1_124_020_384)),
        ("regex", 0.into()),
    ] {
        assert_eq!(objects[0][key], value, "{key}");
    }
    for (object, why) in objects[1..].iter().zip([
        "no failregex fits",
        "ignoreregex 1 fits",
        "prefregex does not fit",
    ]) {
        assert_eq!(object["match"], false);
        assert!(object["why"].as_str().unwrap().contains(why), "{object}");
    }
    let out = test(&[], &lines);
    assert_eq!(out.code, 0, "{}", out.err);
    for said in [
        "2005-08-14T11:53:04Z 2001:db8::7 user=\"eve\" (failregex 1)",
        "1: ignoreregex 1 fits",
        "1 of 4 lines are failures",
    ] {
        assert!(out.out.contains(said), "{said}: {}", out.out);
    }
    let suffix = ["--journal", "--json", "--option", "suffix= port \\d+"];
    let out = test(
        &suffix,
        " web shopd[7]: refused eve from 192.0.2.7 port 1\n",
    );
    assert!(
        out.out.contains("\"time\":1124024000"),
        "{}{}",
        out.out,
        out.err
    );
    let out = test(&["--option", "suffix=("], "");
    assert!(
        out.code == 2 && out.err.contains("shop.conf:4: missing )"),
        "{}",
        out.err
    );
}

//! Watches as their users meet them: commands that print addresses, started,
//! read, restarted and ended by a real daemon.

#[path = "common/plain.rs"]
mod plain;

use std::{fs, io::Write, os::unix::fs::MetadataExt, path::Path};

use plain::Plain;

/// A watch whose command is this shell script; what its name says is in
/// `NAME.sh`. It is not root, and writes to `out`.
fn watch(host: &Plain, name: &str, script: &str, keys: &str) -> String {
    out(host);
    let file = host.write(&format!("{name}.sh"), script);
    format!(
        "[watch.{name}]\ncommand = [\"/bin/sh\", \"{}\"]\n{keys}\n",
        file.display()
    )
}

/// The directory to which everybody may write.
fn out(host: &Plain) {
    let _ = fs::create_dir(host.path("out"));
    mode(&host.path("out"), 0o777);
    feed(host, "");
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

/// A watch that prints what the test appends to `feed`.
const FEED: &str = "exec tail -n +1 -f {dir}/feed";

fn feed(host: &Plain, lines: &str) {
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(host.path("feed"))
        .unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

fn counted(host: &Plain, name: &str, key: &str) -> u64 {
    host.status_of("watches", name)[key].as_u64().unwrap()
}

fn alive(pid: &str) -> bool {
    // A zombie is not: nobody may have reaped it here.
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}

#[test]
fn what_a_watch_prints_is_banned_and_explained() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "echo '192.0.2.7 SASL LOGIN: \\033[2Juser=a b'; echo 2001:db8:1:2::7\n\
         echo 2001:db8:2:3::/64; exec sleep 1000",
        "ban_time = \"2h\"\nports = [\"25/tcp\", \"587/tcp\"]",
    ));
    host.start();
    host.until("three bans", |h| counted(h, "mail", "bans") == 3);
    let why = host.json(&["why", "192.0.2.7", "--port", "587"]);
    let ban = &why["bans"][0];
    assert_eq!(why["would_drop"], true);
    assert_eq!(ban["producer"], "watch:mail");
    assert_eq!(ban["scope"], "25/tcp,587/tcp");
    let left = ban["remaining_seconds"].as_u64().unwrap();
    assert!((7100..=7200).contains(&left), "{left}");
    let evidence = ban["evidence"][0].as_str().unwrap();
    assert!(evidence.starts_with("192.0.2.7 SASL LOGIN"), "{evidence}");
    let text = host.done(&["why", "192.0.2.7"]);
    assert!(
        text.contains("watch:mail") && text.contains("user=a b") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert!(!host.is_banned("192.0.2.8"));
    // IPv6 by /64, as jails ban it.
    assert!(host.is_banned("2001:db8:1:2::99") && host.is_banned("2001:db8:2:3::1"));
}

/// G11: what the predecessor put into a root shell's command is refused.
#[test]
fn hostile_lines_are_rejected_and_counted() {
    let mut host = Plain::new();
    let hostile = [
        "192.0.2.66;touch {dir}/out/owned",
        "$(touch {dir}/out/owned)",
        "`touch {dir}/out/owned` 192.0.2.66",
        "192.0.2.66|touch {dir}/out/owned",
        "evil.example.org",
        "root from 192.0.2.66",
        "0.0.0.0/0",
        "10.0.0.0/8",
        "127.0.0.1/8",
        "--all",
        "\u{1b}[2J192.0.2.66",
        &"9".repeat(5000),
    ];
    host.write(
        "lines",
        &(hostile.join("\n") + "\n192.0.2.7 ;touch {dir}/out/owned\n"),
    );
    host.configure(&watch(
        &host,
        "mail",
        "cat {dir}/lines; exec sleep 1000",
        "",
    ));
    host.start();
    host.until("the last line", |h| counted(h, "mail", "bans") == 1);
    assert_eq!(counted(&host, "mail", "rejected"), hostile.len() as u64);
    assert!(host.is_banned("192.0.2.7") && !host.is_banned("192.0.2.66"));
    assert_eq!(host.json(&["bans"])["total"], 1);
    assert!(!host.path("out/owned").exists());
    let text = host.done(&["status"]);
    assert!(
        text.contains("12 rejected; last rejected: a line of more than 1024 bytes"),
        "{text}"
    );
    assert!(!host.said().contains('\u{1b}'));
}

#[test]
fn exemptions_hold_for_watches() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "echo 198.51.100.9; echo 203.0.113.9; echo 192.0.2.7; exec sleep 1000",
        "ignore = [\"203.0.113.0/24\"]",
    ));
    host.start();
    host.until("a ban", |h| counted(h, "mail", "bans") == 1);
    assert_eq!(counted(&host, "mail", "ignored"), 2);
    assert!(!host.is_banned("198.51.100.9") && !host.is_banned("203.0.113.9"));
}

#[test]
fn only_those_who_are_denied_as_well() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "echo 192.0.2.7; exec sleep 1000",
        "only_if = \"denied\"",
    ));
    host.start();
    host.until("the line", |h| counted(h, "mail", "not_denied") == 1);
    assert!(!host.is_banned("192.0.2.7"));
}

#[test]
fn bans_grow_and_are_remembered() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        FEED,
        "ban_time = \"1h\"\nincrement = { factor = 3, max = \"8h\" }",
    ));
    host.start();
    let mut hours = Vec::new();
    for round in 1..=4 {
        if round == 3 {
            // What was before counts after a restart as well.
            assert_eq!(host.end("TERM"), Some(0));
            fs::write(host.path("feed"), "").unwrap();
            host.start();
        }
        feed(&host, "192.0.2.7 again\n192.0.2.7 and again\n");
        host.until("a ban", |h| h.is_banned("192.0.2.7"));
        let left = host.json(&["why", "192.0.2.7"])["bans"][0]["remaining_seconds"]
            .as_u64()
            .unwrap();
        hours.push(left.div_ceil(3600));
        // The second line came while it was banned: an echo, no offence.
        host.until("the echo", |h| counted(h, "mail", "known") >= 1);
        host.done(&["unban", "192.0.2.7"]);
    }
    assert_eq!(hours, [1, 3, 8, 8]);
}

#[test]
fn a_command_that_ends_is_started_again_later_each_time() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "date +%s%N >>{dir}/out/starts; echo 192.0.2.7; echo broken >&2; exit 3",
        "",
    ));
    host.start();
    host.until("three starts", |h| {
        // The daemon has counted it before it has written its line.
        counted(h, "mail", "starts") >= 3 && h.read("out/starts").lines().count() >= 3
    });
    let starts: Vec<u64> = host
        .read("out/starts")
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let waits = [starts[1] - starts[0], starts[2] - starts[1]].map(|ns| ns / 1_000_000);
    assert!(waits[0] >= 1000 && waits[1] >= 2000, "{waits:?} ms");
    let alerts = host.alerts();
    assert!(
        alerts.contains("watch:mail") && alerts.contains("exit status: 3"),
        "{alerts}"
    );
    assert!(host.said().contains("watch mail says: broken"));
    assert_eq!(counted(&host, "mail", "bans"), 1);
    assert!(counted(&host, "mail", "known") >= 1);

    // A program that is not there is told, and tried again.
    host.configure("[watch.mail]\ncommand = [\"/nonexistent/mail-watch\"]\n");
    let text = host.done(&["reload"]);
    assert!(text.contains("/nonexistent/mail-watch"), "{text}");
    host.until("an alert", |h| {
        h.alerts()
            .contains("cannot be started: /nonexistent/mail-watch: No such file")
    });
    assert!(host.said().contains("No such file"));
}

#[test]
fn a_reload_ends_starts_and_leaves_alone() {
    let mut host = Plain::new();
    let stays = watch(
        &host,
        "stays",
        "echo $$ >{dir}/out/stays.pid; exec sleep 1000",
        "",
    );
    let goes = watch(
        &host,
        "goes",
        "echo $$ >{dir}/out/goes.pid; exec sleep 1000",
        "",
    );
    let comes = watch(
        &host,
        "comes",
        "echo $$ >{dir}/out/comes.pid; exec sleep 1000",
        "",
    );
    host.configure(&format!("{stays}{goes}"));
    host.start();
    let pid = |h: &Plain, name: &str| h.read(&format!("out/{name}.pid"));
    host.until("both run", |h| {
        !pid(h, "stays").is_empty() && !pid(h, "goes").is_empty()
    });
    let (stayed, gone) = (pid(&host, "stays"), pid(&host, "goes"));
    host.configure(&format!("{stays}{comes}"));
    host.done(&["reload"]);
    host.until("the new one runs", |h| !pid(h, "comes").is_empty());
    host.until("the old one is gone", |_| !alive(&gone));
    assert!(alive(&stayed));
    assert_eq!(pid(&host, "stays"), stayed);
    assert_eq!(counted(&host, "stays", "starts"), 1);

    // A configuration that is refused changes nothing.
    host.configure("[watch.stays]\ncommand = [\"sleep\"]\n");
    assert_eq!(host.ask(&["reload"]).0, Some(2));
    assert!(alive(&stayed) && alive(&pid(&host, "comes")));
}

/// Its command, what that started, and one that does not listen to SIGTERM.
#[test]
fn nothing_of_a_watch_outlives_the_daemon() {
    for signal in ["KILL", "TERM"] {
        let mut host = Plain::new();
        host.configure(&watch(
            &host,
            "mail",
            "trap '' TERM\necho $$ >{dir}/out/pids\n(echo hold; exec sleep 1000) &\necho $! >>{dir}/out/pids\n\
             echo $PPID >>{dir}/out/pids; echo 192.0.2.7; while :; do sleep 1000; done",
            "",
        ));
        host.start();
        host.until("the watch runs", |h| counted(h, "mail", "bans") == 1);
        let pids = host.read("out/pids");
        let pids: Vec<_> = pids.lines().collect();
        assert!(
            pids.len() == 3 && pids.iter().all(|pid| alive(pid)),
            "{pids:?}"
        );
        let code = host.end(signal);
        assert_eq!(code.is_some(), signal == "TERM");
        host.until(&format!("no orphan after {signal}"), |_| {
            !pids.iter().any(|pid| alive(pid))
        });
    }
}

#[test]
fn a_command_has_no_environment_no_input_and_no_powers() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^OLDPWD= | sort >{dir}/out/env\n\
         readlink /proc/self/fd/0 >{dir}/out/stdin\ncat /proc/self/status >{dir}/out/powers\n\
         echo 192.0.2.7; exec sleep 1000",
        "",
    ));
    host.start();
    host.until("it runs", |h| counted(h, "mail", "bans") == 1);
    let env = host.read("out/env");
    let keys: Vec<_> = env
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    assert_eq!(keys, ["LANG", "PATH", "WEIR_WATCH"], "{env}");
    assert_eq!(host.read("out/stdin").trim(), "/dev/null");
    let powers = host.read("out/powers");
    let read = |key: &str| {
        let line = powers.lines().find_map(|line| line.strip_prefix(key));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    };
    assert_eq!(read("NoNewPrivs:"), 1);
    const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
    for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        assert_eq!(read(set) & !CAP_DAC_READ_SEARCH, 0, "{set}");
    }
}

/// Issue 13: uid 0 without capabilities still owns root's files, and was let in
/// at the control socket.
#[test]
fn root_a_watch_reads_all_and_is_not_root() {
    let mut host = Plain::new();
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    for (name, rights) in [("victim", 0o644), ("secret", 0o600)] {
        host.write(name, "as it was\n");
        mode(&host.path(name), rights);
    }
    let script = format!(
        "id -u >{{dir}}/out/id; id -G >>{{dir}}/out/id\n\
         cat {{dir}}/secret >{{dir}}/out/read\n\
         echo overwritten >{{dir}}/victim\n\
         {} --config {{dir}}/weir.toml unban --all >{{dir}}/out/unban 2>&1\n\
         echo told >/dev/stderr\n\
         cat /proc/self/status >{{dir}}/out/powers; echo 192.0.2.7; exec sleep 1000",
        env!("CARGO_BIN_EXE_weir")
    );
    host.configure(&watch(&host, "mail", &script, ""));
    host.start();
    host.done(&["ban", "203.0.113.9"]);
    host.until("it has run", |h| h.is_banned("192.0.2.7"));
    assert!(host.is_banned("203.0.113.9"), "{}", host.read("out/unban"));
    assert_eq!(host.read("victim"), "as it was\n");
    assert_eq!(host.read("out/read"), "as it was\n");
    let about: Vec<_> = host
        .read("out/id")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert!(
        about.len() == 2 && !about.contains(&"0".to_owned()),
        "{about:?}"
    );
    let powers = host.read("out/powers");
    let uid = &about[0];
    assert!(
        powers.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")),
        "{powers}"
    );
    // Reading everything, and that only.
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert!(
            powers.contains(&format!("{set}:\t0000000000000004\n")),
            "{powers}"
        );
    }
    host.until("its complaint", |h| {
        h.said().contains("watch mail says: told")
    });
}

/// Without the rights to become somebody else it is an error, not root.
#[test]
fn root_a_watch_that_cannot_leave_root_does_not_run() {
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    for lacking in ["-setuid", "-setgid"] {
        let output = std::process::Command::new("setpriv")
            .args(["--bounding-set", lacking, env!("CARGO_BIN_EXE_weir")])
            .args(["watch-child", "--", "/bin/echo", "it runs"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("cannot become user"), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_only_root_may_run_is_named_by_check() {
    let host = Plain::new();
    let program = host.write("private.sh", "#!/bin/sh\n");
    host.configure(&format!(
        "[watch.mail]\ncommand = [\"{}\"]\n",
        program.display()
    ));
    mode(&program, 0o700);
    let (_, text) = host.ask(&["check"]);
    let named = text.contains("private.sh: watches run as user") && text.contains("chmod o+x");
    assert!(named || !is_root(), "{text}");
    mode(&program, 0o711);
    let (code, text) = host.ask(&["check"]);
    assert!(code == Some(0) && !text.contains("chmod"), "{text}");
}

/// The rights to run watches are given up where there are none.
#[test]
fn root_the_first_watch_wants_a_restart() {
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    let mut host = Plain::started("");
    host.configure(&watch(&host, "mail", "echo 192.0.2.7; exec sleep 1000", ""));
    let (code, text) = host.ask(&["reload"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("watches and commands of checks from none")
            && text.contains("needs a restart"),
        "{text}"
    );
    host.end("TERM");
    host.start();
    host.until("it runs", |h| h.is_banned("192.0.2.7"));
}

#[test]
fn what_it_complains_of_is_escaped_and_bounded() {
    let mut host = Plain::new();
    host.configure(&watch(
        &host,
        "mail",
        "i=0; while [ $i -lt 200 ]; do printf 'bad \\033[2J line\\n' >&2; i=$((i+1)); done; exit 1",
        "",
    ));
    host.start();
    host.until("its end", |h| h.said().contains("said 180 lines more"));
    let said = host.said();
    assert!(said.contains("bad \\u{1b}[2J line") && !said.contains('\u{1b}'));
}

/// What is missing when the configuration is read may be a stranger's by the
/// time it is there.
#[test]
fn a_program_is_judged_each_time_before_it_runs() {
    let mut host = Plain::new();
    out(&host);
    let program = host.path("late.sh");
    let mode = |mode: u32| {
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    host.configure(&format!(
        "[watch.mail]\ncommand = [\"{}\"]\n",
        program.display()
    ));
    host.start();
    host.until("it is missed", |h| h.alerts().contains("late.sh"));
    host.write(
        "late.sh",
        "#!/bin/sh\ntouch {dir}/out/ran\necho 203.0.113.7\nexec sleep 1000\n",
    );
    mode(0o757);
    host.until("it is refused", |h| {
        h.alerts()
            .contains("late.sh can be written to by others, and root would run it")
    });
    assert!(
        !host.path("out/ran").exists(),
        "a stranger's program has run"
    );
    mode(0o755);
    host.until("it runs", |h| h.is_banned("203.0.113.7"));
    assert!(host.path("out/ran").exists());
    // Changed under the daemon's eyes, and ended: not again.
    mode(0o757);
    let pid = host.status_of("watches", "mail")["pid"].to_string();
    fs::remove_file(host.path("out/ran")).unwrap();
    assert!(
        std::process::Command::new("kill")
            .args(["-s", "KILL", &pid])
            .status()
            .unwrap()
            .success()
    );
    host.until("it is refused again", |h| {
        h.alerts().contains("can be written to by others")
    });
    assert!(!host.path("out/ran").exists());
}

#[test]
fn a_script_that_others_can_change_is_refused_as_its_program_is() {
    let host = Plain::new();
    let script = host.write("loose.sh", "touch {dir}/out/ran\n");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o646)).unwrap();
    host.configure(&format!(
        "[watch.mail]\ncommand = [\"/bin/sh\", \"{}\"]\n",
        script.display()
    ));
    let said = host.refuses_to_start();
    assert!(
        said.contains("weir.toml:7: command in [watch.mail]: ")
            && said.contains("loose.sh can be written to by others"),
        "{said}"
    );
    // A log that it is to read may be anybody's.
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let log = host.write("mail.log", "a line\n");
    fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    host.configure(&format!(
        "[watch.mail]\ncommand = [\"/bin/sh\", \"{}\", \"{}\"]\n",
        script.display(),
        log.display()
    ));
    assert_eq!(host.ask(&["check"]).0, Some(0));
}

#[test]
fn a_program_that_others_can_change_is_refused() {
    let host = Plain::new();
    let program = host.write("loose.sh", "#!/bin/sh\n");
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    host.configure(&format!(
        "[watch.mail]\ncommand = [\"{}\"]\n",
        program.display()
    ));
    mode(&program, 0o755);
    assert_eq!(host.ask(&["check"]).0, Some(0));
    mode(&program, 0o757);
    let said = host.refuses_to_start();
    assert!(
        said.contains("weir.toml:7: command in [watch.mail]: ")
            && said.contains("can be written to by others"),
        "{said}"
    );
    mode(&program, 0o644);
    let (code, text) = host.ask(&["check"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("not a program that can be run"), "{text}");
}

//! Every configuration in examples/ as `weir check` has it, and nginx's log of
//! examples/web.toml as a real nginx writes it. Needs no privilege.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(file: &Path) -> Output {
    let mut command = Command::new(WEIR);
    command.arg("--config").arg(file).arg("check");
    command.output().unwrap()
}

#[test]
fn every_example_is_a_configuration_without_a_warning() {
    // What a machine of its own would have, and this one need not.
    let of_the_machine = [
        "does not exist yet; it is read as soon as it appears",
        "there is neither a journal nor",
        "it is read once it is there",
        "which this host has not",
    ];
    let index = fs::read_to_string(examples().join("README.md")).unwrap();
    let mut checked = 0;
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let link = format!("[{name}]({name})");
        assert!(index.contains(&link), "examples/README.md lacks {name}");
        if name == "fail2ban.toml" && !Path::new("/etc/fail2ban/jail.conf").exists() {
            eprintln!("left out: {name}: Fail2ban is not installed");
            checked += 1;
            continue;
        }
        let out = check(&path);
        let told = text(&out.stderr) + &text(&out.stdout);
        // A jail of the package may have a log that this machine has not.
        let is_of_a_log = |line: &str| line.contains("none of its logs can be read");
        let mut problems = told.lines().filter(|line| line.starts_with("problem"));
        let is_fine = match out.status.code() {
            Some(0) => true,
            Some(1) => name == "fail2ban.toml" && problems.all(is_of_a_log),
            _ => false,
        };
        assert!(is_fine, "{name}: {told}");
        for warning in told.lines().filter(|line| line.starts_with("warning")) {
            // Its addresses are another host's.
            let is_elsewhere = (warning.contains("[pool.") || warning.contains("[vrrp."))
                && ["this host has on no interface", "is in no network of"]
                    .iter()
                    .any(|known| warning.contains(known));
            let may_be = is_elsewhere || of_the_machine.iter().any(|known| warning.contains(known));
            assert!(may_be, "{name}: {warning}");
        }
        checked += 1;
    }
    assert_eq!(
        checked,
        index.matches(".toml](").count(),
        "one is named in vain"
    );
}

#[test]
fn check_says_what_a_pool_serves() {
    let told = text(&check(&examples().join("balancer.toml")).stdout);
    // Wrapped to a terminal's width.
    let words: Vec<_> = told.split_whitespace().collect();
    let pool = "pool: web (80/tcp, 443/tcp, 443/udp of 198.51.100.80, 2001:db8::80, \
                reals 198.51.100.11, 198.51.100.12)";
    assert!(words.join(" ").contains(pool), "{told}");
}

/// By the lines of nginx's configuration that the example names.
#[test]
fn what_nginx_writes_for_the_web_example_is_read() {
    let example = examples().join("web.toml");
    let written = fs::read_to_string(&example).unwrap();
    let nginx = Path::new("/usr/sbin/nginx");
    if !nginx.exists() {
        eprintln!("left out: nginx is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("weir.log");
    let lines = written
        .lines()
        .filter_map(|line| line.strip_prefix("#     "));
    let lines = lines.collect::<Vec<_>>().join("\n");
    let in_example = "/var/log/nginx/weir.log";
    assert!(lines.contains(in_example), "{lines}");
    let lines = lines.replace(in_example, log.to_str().unwrap());
    let socket = dir.path().join("socket");
    let (at, listen) = (dir.path().display(), socket.display());
    let conf = dir.path().join("conf");
    let config = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 16; }}
         http {{
             {lines}
             client_body_temp_path {at}/tmp; proxy_temp_path {at}/tmp;
             fastcgi_temp_path {at}/tmp; uwsgi_temp_path {at}/tmp; scgi_temp_path {at}/tmp;
             set_real_ip_from unix:;
             real_ip_header X-Real-IP;
             server {{
                 listen unix:{listen};
                 location /secret {{ return 401; }}
                 location /forbidden {{ return 403; }}
                 location / {{ return 200 \"fine\"; }}
             }}
         }}"
    );
    fs::write(&conf, config).unwrap();
    let mut server = Command::new(nginx)
        .arg("-c")
        .arg(&conf)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let asked = (|| {
        for (path, client) in [
            ("/secret?x=%0a203.0.113.9 401", "192.0.2.7"),
            ("/fine", "192.0.2.8"),
            ("/forbidden", "2001:db8::7"),
        ] {
            // It listens a moment after it was started.
            let mut tries = 0..500;
            let mut stream = loop {
                tries.next()?;
                match std::os::unix::net::UnixStream::connect(&socket) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
                }
            };
            let path = path.replace(' ', "%20");
            write!(
                stream,
                "GET {path} HTTP/1.0\r\nX-Real-IP: {client}\r\nUser-Agent: 203.0.113.9 401\r\n\r\n"
            )
            .ok()?;
            let mut answer = Vec::new();
            std::io::Read::read_to_end(&mut stream, &mut answer).ok()?;
        }
        Some(())
    })();
    server.kill().unwrap();
    server.wait().unwrap();
    let error = fs::read_to_string(dir.path().join("error.log")).unwrap_or_default();
    assert!(asked.is_some(), "{error}");
    let lines = fs::read(&log).unwrap();
    let mut test = Command::new(WEIR)
        .arg("--config")
        .arg(&example)
        .args(["filter", "test", "nginx-refused", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    test.stdin.take().unwrap().write_all(&lines).unwrap();
    let out = text(&test.wait_with_output().unwrap().stdout);
    let all = text(&lines);
    for (client, is_read) in [
        ("192.0.2.7", true),
        ("2001:db8::7", true),
        ("203.0.113.9", false),
        ("192.0.2.8", false),
    ] {
        assert_eq!(out.contains(client), is_read, "{client}: {out}\n{all}");
    }
    assert_eq!(all.lines().count(), 2, "{all}");
}

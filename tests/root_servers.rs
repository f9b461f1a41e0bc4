//! Real servers that know nothing of weir: nginx, and BIND with response rate
//! limiting, under the LD_PRELOAD shim of `weir-ring-preload`, set up with the
//! words of docs/guide/ring.md. Their attackers are dropped in the kernel. That the
//! shim loses no line is tested with the shim.

mod common;

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::SocketAddr,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SILENCE, SOON, TestNet, Weir, addr, skipped, soon};
use tempfile::TempDir;
use weir_netlab::Child;
use weir_testkit::traffic;

/// The shared library: cargo puts that of a dev-dependency beside the test.
fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.with_file_name("libweir_ring_preload.so");
    assert!(built.exists(), "{} is missing", built.display());
    built
}

/// A server that is asked to end, so that it takes its workers along.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.signal(15);
        let _ = self.0.wait(SOON);
    }
}

/// What the guide says about one server.
struct Recipe {
    unit: String,
    tables: String,
}

/// A server's files and rings, which go with this value, in place of those
/// below /var/log and /run/weir-ring.
struct ServerFiles {
    files: TempDir,
    rings: TempDir,
}

impl ServerFiles {
    fn new() -> Self {
        let directory = |parent: &Path| {
            let made = tempfile::Builder::new()
                .prefix("weir-test-")
                .tempdir_in(parent)
                .unwrap();
            // Both servers give their privileges up.
            fs::set_permissions(made.path(), fs::Permissions::from_mode(0o755)).unwrap();
            made
        };
        Self {
            files: directory(&std::env::temp_dir()),
            rings: directory(Path::new("/dev/shm")),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The recipe whose ring is `/run/weir-ring/NAME`, with our places.
    fn recipe(&self, name: &str) -> Recipe {
        let guide = include_str!("../docs/guide/ring.md");
        let (_, after) = guide.split_once("without changing them**").unwrap();
        let place = format!("/run/weir-ring/{name}");
        let block = |language: &str| {
            let fence = format!("```{language}\n");
            let mut blocks = after.split(&fence).skip(1);
            let found = blocks.find_map(|rest| {
                let (block, _) = rest.split_once("```")?;
                block.contains(&place).then_some(block)
            });
            let dir = |dir: &Path| format!("{}/", dir.display());
            found
                .unwrap_or_else(|| panic!("no {language} in the guide with {place}"))
                .replace("/var/log/", &dir(self.files.path()))
                .replace("/run/weir-ring/", &dir(self.rings.path()))
        };
        Recipe {
            unit: block("ini"),
            tables: block("toml"),
        }
    }

    fn weir(&self, net: &TestNet, recipe: &Recipe) -> Weir {
        let config = format!("interfaces = [\"eth0\"]\n{}", recipe.tables);
        Weir::start(&net.host, &config)
    }

    /// Starts a server on the host as systemd would, given the recipe.
    fn start(&self, net: &TestNet, recipe: &Recipe, program: &str, args: &[&str]) -> Server {
        let mut command = Command::new(program);
        for line in recipe.unit.lines() {
            if let Some(before) = line.strip_prefix("ExecStartPre=+") {
                let words = shlex::split(before).unwrap();
                let status = Command::new(&words[0]).args(&words[1..]).status();
                assert!(status.unwrap().success(), "{before}");
            } else if let Some(settings) = line.strip_prefix("Environment=") {
                let settings = settings.split(' ').map(|one| one.split_once('=').unwrap());
                command.envs(settings);
            } else {
                assert_eq!(line, "[Service]");
            }
        }
        // The loader would look for what the unit names where it is installed.
        let named = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
        assert_eq!(named.unwrap().1.unwrap(), shim().file_name().unwrap());
        let said = File::create(self.file("stderr")).unwrap();
        command
            .env("LD_PRELOAD", shim())
            .args(args)
            .current_dir(self.files.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        Server(net.host.spawn(command).unwrap())
    }

    /// Waits for a server's first sign of life.
    fn up<T>(&self, what: &str, server: &mut Server, mut look: impl FnMut() -> Option<T>) -> T {
        soon(what, || {
            let ended = server.0.wait(Duration::ZERO).unwrap();
            assert!(ended.is_none(), "{what}: {}", self.text("stderr"));
            look()
        })
    }
}

fn family(who: &str) -> usize {
    usize::from(who.contains(':'))
}

fn at(who: &str, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[family(who)]), port)
}

/// The number of records that the ring's readers saw; none must be lost.
#[track_caller]
fn records(weir: &Weir) -> u64 {
    let status = weir.json(&["status"]);
    assert!(
        status["alerts"].as_array().unwrap().is_empty(),
        "{}",
        status["alerts"]
    );
    // The status is a moment behind.
    let Some(ring) = status["rings"].get(0) else {
        return 0;
    };
    assert_eq!(ring["lost"], 0, "{ring}");
    ring["records"].as_u64().unwrap()
}

/// The subject of a ban: an IPv6 attacker is its /64.
fn subject(who: &str) -> String {
    match who.split_once("::") {
        None => who.to_owned(),
        Some(("2001:db8:bad", _)) => "2001:db8:bad::/64".to_owned(),
        Some((head, _)) => format!("{head}::/64"),
    }
}

#[track_caller]
fn banned_soon(weir: &Weir, who: &str) {
    let subject = subject(who);
    soon(&format!("a ban of {subject}"), || {
        weir.banned().contains(&subject).then_some(())
    });
}

const WEB: u16 = 80;

/// Asks for a path; the status.
#[track_caller]
fn get(net: &TestNet, from: &str, path: &str) -> u16 {
    let (mut stream, _) =
        traffic::tcp_open(&net.internet, Some(addr(from)), at(from, WEB), SOON).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.strip_prefix("HTTP/1.1 ").unwrap();
    status[..3].parse().unwrap()
}

#[test]
fn root_nginx_has_its_attackers_dropped() {
    if skipped(&["nginx"]) {
        return;
    }
    let place = ServerFiles::new();
    let net = TestNet::new();
    let recipe = place.recipe("web");
    fs::create_dir_all(place.file("nginx/root")).unwrap();
    fs::write(place.file("nginx/root/index.html"), "welcome\n").unwrap();
    let dir = place.file("nginx").display().to_string();
    let config = format!(
        "daemon off; worker_processes 2; user www-data;
         pid {dir}/pid; error_log {dir}/error.log;
         events {{ worker_connections 64; }}
         http {{
             access_log {dir}/access.log;
             client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
             fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
             server {{
                 listen {WEB}; listen [::]:{WEB};
                 root {dir}/root;
                 location ~ /\\. {{ deny all; }}
             }}
         }}"
    );
    fs::write(place.file("nginx/conf"), config).unwrap();
    let conf = format!("{dir}/conf");
    let mut nginx = place.start(&net, &recipe, "/usr/sbin/nginx", &["-c", &conf]);
    place.up("nginx", &mut nginx, || {
        net.connects(CUSTOMER[0], at(CUSTOMER[0], WEB))
            .then_some(())
    });
    let weir = place.weir(&net, &recipe);

    // What is merely not there anybody may ask for.
    let paths = [
        (ATTACKER, "/wp-login.php", 404),
        (OTHER, "/.env", 403),
        (CUSTOMER, "/gone.html", 404),
    ];
    for (who, path, status) in paths {
        for who in who {
            assert_eq!(get(&net, who, "/"), 200);
            for _ in 0..3 {
                assert_eq!(get(&net, who, path), status);
            }
        }
    }
    for who in [ATTACKER, OTHER].concat() {
        banned_soon(&weir, who);
        let before = weir.packets("banned-all");
        assert!(!net.connects(who, at(who, WEB)), "{who}");
        soon("its packets to be counted", || {
            (weir.packets("banned-all") > before).then_some(())
        });
    }
    for who in CUSTOMER {
        assert_eq!(get(&net, who, "/"), 200);
    }
    assert_eq!(weir.banned().len(), 4);
    soon("every line to be read", || {
        (records(&weir) == 26).then_some(())
    });
    // Of 26 requests 18 have a line in the error log, which is not read: there nginx
    // writes a client's line breaks as they are. With tee the files have what they
    // would have.
    soon("nginx's own files", || {
        let count = |name: &str| place.text(name).lines().count();
        ((count("nginx/access.log"), count("nginx/error.log")) == (26, 18)).then_some(())
    });
    let why = weir.why(ATTACKER[0]).to_string();
    assert!(why.contains("GET /wp-login.php HTTP/1.1"), "{why}");
}

const DNS: u16 = 53;

/// A question for an address (RFC 1035, 4.1).
fn question(name: &str) -> Vec<u8> {
    let mut packet = vec![0x77, 0x77, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

/// Is a question answered, with the one address that the name has?
fn answered(net: &TestNet, from: &str, name: &str, time: Duration) -> bool {
    let answer = traffic::udp_request(
        &net.internet,
        Some(addr(from)),
        at(from, DNS),
        &question(name),
        time,
    );
    answer.is_ok_and(|(answer, _)| answer[6..8] == [0, 1])
}

/// A user's number.
fn user(name: &str) -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let mut users = users.lines().map(|line| line.split(':'));
    users.find_map(|mut user| (user.next() == Some(name)).then(|| user.nth(1)?.parse().ok())?)
}

#[test]
fn root_bind_has_those_who_overrun_its_rate_limit_dropped() {
    if skipped(&["named"]) {
        return;
    }
    let Some(bind) = user("bind") else {
        println!("skipped: no user bind");
        return;
    };
    let place = ServerFiles::new();
    let net = TestNet::new();
    let recipe = place.recipe("dns");
    let dir = place.file("named");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(bind), None).unwrap();
    let config = format!(
        "options {{
             directory \"{dir}\"; pid-file \"pid\"; session-keyfile \"key\";
             listen-on {{ any; }}; listen-on-v6 {{ any; }};
             recursion no; dnssec-validation no; notify no;
             rate-limit {{
                 responses-per-second 5; ipv4-prefix-length 32; ipv6-prefix-length 64;
             }};
         }};
         controls {{ }};
         logging {{
             channel rate {{ file \"{dir}/rate.log\"; severity info; print-time iso8601-utc; }};
             category rate-limit {{ rate; }};
         }};
         zone \"test\" {{ type primary; file \"zone\"; }};",
        dir = dir.display(),
    );
    fs::write(dir.join("conf"), config).unwrap();
    let zone = "$TTL 60\n@ SOA ns hostmaster 1 60 60 60 60\n@ NS ns\n\
                ns A 192.0.2.1\nwww A 192.0.2.2\nmail A 192.0.2.3\n";
    fs::write(dir.join("zone"), zone).unwrap();
    let conf = dir.join("conf").display().to_string();
    let args = ["-f", "-n", "2", "-u", "bind", "-c", &conf];
    let mut named = place.start(&net, &recipe, "/usr/sbin/named", &args);
    place.up("named", &mut named, || {
        answered(&net, CUSTOMER[0], "ns.test", SILENCE).then_some(())
    });
    let weir = place.weir(&net, &recipe);

    for who in ATTACKER {
        assert!(answered(&net, who, "mail.test", SOON), "{who}");
        // Five of them are answered, and what is left is more than the jail bears.
        let ask = question("www.test");
        traffic::udp_send(&net.internet, Some(addr(who)), at(who, DNS), &ask, 60).unwrap();
        banned_soon(&weir, who);
        let before = weir.packets("banned-scope");
        // BIND would answer it: its limit is per name.
        assert!(!answered(&net, who, "ns.test", SILENCE), "{who}");
        soon("the question to be counted", || {
            (weir.packets("banned-scope") > before).then_some(())
        });
        // Whose address it really is can still ask by TCP.
        net.serves(who, at(who, DNS));
    }
    for who in CUSTOMER {
        assert!(answered(&net, who, "www.test", SOON), "{who}");
    }
    assert_eq!(weir.banned().len(), 2);
    // As many lines as the jail bears, for each of the two.
    soon("their lines in the status", || {
        (records(&weir) >= 40).then_some(())
    });
    let why = weir.why(ATTACKER[1]).to_string();
    assert!(why.contains("(www.test): rate limit "), "{why}");
    // All of it went to the ring, where weir's group may read it.
    assert_eq!(place.text("named/rate.log"), "");
    let segments = fs::read_dir(place.rings.path().join("dns")).unwrap();
    for segment in segments {
        let meta = segment.unwrap().metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (bind, 0));
        assert_eq!(meta.mode() & 0o777, 0o660);
    }
}

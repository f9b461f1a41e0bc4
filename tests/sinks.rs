//! Sinks as their receivers see them: HTTP servers, a ZeroMQ subscriber and a
//! log file, told by a real daemon; and what becomes of the daemon when they
//! are slow, dead, or refuse.

#[path = "common/plain.rs"]
mod plain;

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use plain::{DEADLINE, Plain};
use serde_json::Value;
use weir_libzmq::{CurveKeys, Kind, Libzmq, Socket};

const TOKEN: &str = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

/// A request as it came, with head and body.
#[derive(Clone, Debug)]
struct Request {
    head: String,
    body: String,
}

impl Request {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A server that notes what it is sent. Its first answers are those it is
/// given, all further ones 200. It ends with the test's process.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(answers: &[&str]) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answers)
    }

    fn on(listener: TcpListener, answers: &[&str]) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let mut answers: VecDeque<String> = answers.iter().map(|&a| a.to_owned()).collect();
        let seen = server.seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let ok = "200 OK\r\ncontent-length: 0".to_owned();
                let answer = answers.pop_front().unwrap_or(ok);
                // A client that goes away is its own affair.
                let _ = serve(&mut stream.unwrap(), &seen, &answer);
            }
        });
        server
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// The `reason`s and kinds of the events that came as JSON.
    fn events(&self) -> Vec<(String, String)> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let events = self.seen().into_iter().map(|r| r.json());
        events
            .map(|e| (text(&e["kind"]), text(&e["subject"])))
            .collect()
    }
}

fn serve(stream: &mut TcpStream, seen: &Mutex<Vec<Request>>, answer: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(n) = line.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = String::from_utf8(body).unwrap();
    seen.lock().unwrap().push(Request { head, body });
    write!(stream, "HTTP/1.1 {answer}\r\nconnection: close\r\n\r\n")
}

fn secret(host: &Plain, name: &str, text: &str) {
    let path = host.write(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn number(host: &Plain, sink: &str, key: &str) -> u64 {
    host.status_of("sinks", sink)[key].as_u64().unwrap()
}

/// A watch that names this many addresses at once.
fn flood(host: &Plain, bans: usize) -> String {
    let lines: String = (0..bans)
        .map(|n| format!("198.18.{}.{}\n", n / 256, n % 256))
        .collect();
    host.write("flood", &lines);
    host.filled(
        "[watch.flood]\ncommand = [\"/bin/sh\", \"-c\", \"cat {dir}/flood; exec sleep 1000\"]\n",
    )
}

#[test]
fn a_webhook_gets_each_event_as_the_api_has_it() {
    let server = Server::start(&[]);
    let mut host = Plain::new();
    secret(&host, "token", "s3cret-bearer");
    host.configure(&format!(
        "[sink.tower]\nkind = \"webhook\"\nurl = \"{}/hook/s3cret-path?x=1\"\ntoken_file = \"{{dir}}/token\"\n",
        server.url()
    ));
    host.start();
    host.done(&[
        "ban",
        "203.0.113.7",
        "--for",
        "1h",
        "--reason",
        "an\u{1b}[2J \"odd\" one",
    ]);
    host.done(&["unban", "203.0.113.7"]);
    host.until("three events", |_| server.seen().len() >= 3);
    let seen = server.seen();
    let first = &seen[0];
    assert!(
        first
            .head
            .starts_with("post /hook/s3cret-path?x=1 http/1.1"),
        "{}",
        first.head
    );
    assert!(
        first.head.contains("authorization: bearer s3cret-bearer"),
        "{}",
        first.head
    );
    assert!(
        first.head.contains("content-type: application/json"),
        "{}",
        first.head
    );
    let ban = seen[1].json();
    assert_eq!(first.json()["kind"], "start");
    assert_eq!(
        (&ban["kind"], &ban["subject"]),
        (&"ban".into(), &"203.0.113.7".into())
    );
    assert_eq!(
        (&ban["producer"], &ban["scope"]),
        (&"manual".into(), &"all ports".into())
    );
    assert_eq!(ban["reason"], "an\u{1b}[2J \"odd\" one");
    assert!(ban["until"].is_string());
    assert_eq!(seen[2].json()["kind"], "unban");

    // The verb, and what is shown of the sink.
    let text = host.done(&["sink", "test", "tower"]);
    assert!(
        text.contains(&format!("{} took the event", server.url())),
        "{text}"
    );
    let tried = server.seen().pop().unwrap().json();
    assert_eq!(tried["kind"], "test");
    let (code, text) = host.ask(&["sink", "test", "towr"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("there is no sink \"towr\"; enabled are: tower"),
        "{text}"
    );
    let status = host.done(&["status"]);
    assert!(
        status.contains("sink tower to http://127.0.0.1"),
        "{status}"
    );

    // The last thing that it hears.
    assert_eq!(host.end("TERM"), Some(0));
    assert_eq!(server.events().pop().unwrap().0, "stop");
    for text in [status, host.said()] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn telegram_gets_messages_and_its_token_is_nowhere() {
    let busy = "429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: 72\r\n\r\n{\"ok\":false,\"error_code\":429,\"parameters\":{\"retry_after\":1},\"d\":\"slow\"}";
    let server = Server::start(&[busy]);
    let mut host = Plain::new();
    secret(&host, "token", TOKEN);
    host.configure(&format!(
        "[sink.me]\nkind = \"telegram\"\ntoken_file = \"{{dir}}/token\"\nchat_id = \"-100123\"\napi = \"{}\"\nevents = [\"ban\"]\n",
        server.url()
    ));
    host.start();
    let begun = Instant::now();
    host.done(&["ban", "2001:db8::7", "--reason", "<b>x</b>\u{1b}"]);
    host.until("a second try", |_| server.seen().len() >= 2);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let request = server.seen().pop().unwrap();
    let path = format!("post /bot{TOKEN}/sendmessage http/1.1").to_ascii_lowercase();
    assert!(request.head.starts_with(&path), "{}", request.head);
    let message = request.json();
    assert_eq!(message["chat_id"], "-100123");
    assert_eq!(message["parse_mode"], Value::Null);
    let text = message["text"].as_str().unwrap();
    assert!(
        text.contains("ban 2001:db8::7, manual: <b>x</b>\\u{1b}"),
        "{text}"
    );
    host.until("it is delivered", |h| number(h, "me", "delivered") == 1);

    // Every way in which it can fail: refused, an error, nobody there.
    let port = server.address.port();
    for api in [
        "http://127.0.0.1:1",
        "http://localhost:1",
        "https://127.0.0.1:1",
    ] {
        host.configure(&format!(
            "[sink.me]\nkind = \"telegram\"\ntoken_file = \"{{dir}}/token\"\nchat_id = \"1\"\napi = \"{api}\"\n"
        ));
        host.done(&["reload"]);
        let (code, text) = host.ask(&["sink", "test", "me"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(!text.contains(TOKEN), "{text}");
    }
    let failing = Server::start(&["404 Not Found\r\ncontent-length: 0"; 9]);
    host.configure(&format!(
        "[sink.me]\nkind = \"telegram\"\ntoken_file = \"{{dir}}/token\"\nchat_id = \"1\"\napi = \"{}\"\n",
        failing.url()
    ));
    host.done(&["reload"]);
    host.done(&["ban", "203.0.113.9"]);
    host.until("an alert", |h| h.alerts().contains("404"));
    let (code, text) = host.ask(&["sink", "test", "me"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("404"), "{text}");
    let everything = [
        text,
        host.ask(&["status"]).1,
        host.ask(&["status", "--json"]).1,
        host.done(&["check"]),
        host.said(),
    ];
    for text in everything {
        assert!(!text.contains(TOKEN) && !text.contains("AAHdq"), "{text}");
    }
    assert_ne!(port, 1);
}

/// The longest frame that a subscriber receives, in bytes.
const FRAME: usize = 1 << 16;

/// A subscriber that binds, as ntopng and ipt_geofence's receiver do. libzmq
/// attends to a new publisher only while its socket is being read.
struct Subscriber {
    url: String,
    records: mpsc::Receiver<Value>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Subscriber {
    fn bind(url: &str, keys: Option<&CurveKeys>) -> Self {
        let socket = Socket::new(Libzmq::get().unwrap(), Kind::Sub).unwrap();
        if let Some(keys) = keys {
            socket.set_curve_server(keys).unwrap();
        }
        socket
            .set_receive_timeout(Duration::from_millis(20))
            .unwrap();
        socket.subscribe(b"ban").unwrap();
        let deadline = Instant::now() + DEADLINE;
        while let Err(error) = socket.bind(url) {
            assert!(Instant::now() < deadline, "{url}: {error}");
            thread::sleep(Duration::from_millis(20));
        }
        let url = socket.last_endpoint().unwrap();
        let (sender, records) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let read = move || {
            while !stopping.load(Ordering::Relaxed) {
                match socket.receive(FRAME) {
                    Ok(frames) => sender.send(record(&frames)).unwrap(),
                    Err(error) => assert!(error.is_again(), "{error}"),
                }
            }
        };
        Self {
            url,
            records,
            stop,
            thread: Some(thread::spawn(read)),
        }
    }

    fn anywhere(keys: Option<&CurveKeys>) -> Self {
        Self::bind("tcp://127.0.0.1:*", keys)
    }

    #[track_caller]
    fn next(&self) -> Value {
        self.records
            .recv_timeout(DEADLINE)
            .expect("a record in time")
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn curve_keys() -> CurveKeys {
    Libzmq::get().unwrap().curve_keys().unwrap()
}

/// The record in these frames, its header checked.
fn record(frames: &[Option<Vec<u8>>]) -> Value {
    let [Some(header), Some(json)] = frames else {
        panic!("{frames:?}");
    };
    assert_eq!(header.len(), 28);
    assert_eq!(&header[..16], b"ban\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(header[16], 2);
    let size = u16::from_ne_bytes([header[18], header[19]]);
    assert_eq!(usize::from(size), json.len());
    assert_eq!(header[20..24], [0; 4]);
    assert_eq!(header[24..28], 999_u32.to_ne_bytes());
    serde_json::from_slice(json).unwrap()
}

#[test]
fn a_subscriber_gets_ipt_geofences_records_over_curve() {
    let keys = curve_keys();
    let bus = Subscriber::anywhere(Some(&keys));
    let url = bus.url.clone();
    let mut host = Plain::new();
    host.write("zmq.key", &keys.public);
    let section = |url: &str| {
        format!(
            "[sink.bus]\nkind = \"zmq\"\nurl = \"{url}\"\nserver_key_file = \"{{dir}}/zmq.key\"\nformat = \"ipt_geofence\"\n"
        )
    };
    host.configure(&(section(&url) + &flood(&host, 3)));
    host.start();
    let start = bus.next();
    assert_eq!(start["action"], "start");
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(start["source"]["name"], name.trim());
    for key in ["ip", "epoch", "version"] {
        assert!(!start["source"][key].is_null(), "{key}: {start}");
    }
    for n in 0..3 {
        let ban = bus.next();
        assert_eq!(ban["host"], format!("198.18.0.{n}"));
        assert_eq!(
            (&ban["action"], &ban["reason"]),
            (&"ban".into(), &"ban-flood".into())
        );
    }
    host.done(&["unban", "198.18.0.1"]);
    let unban = bus.next();
    assert_eq!(
        (&unban["action"], &unban["host"]),
        (&"unban".into(), &"198.18.0.1".into())
    );
    host.done(&["sink", "test", "bus"]);
    assert_eq!(bus.next()["action"], "test");

    // While nobody is there events wait; the next subscriber gets them.
    drop(bus);
    host.until("nobody subscribes", |h| {
        h.ask(&["sink", "test", "bus"]).0 == Some(1)
    });
    host.done(&["ban", "203.0.113.7"]);
    host.done(&["ban", "203.0.113.8"]);
    let bus = Subscriber::bind(&url, Some(&keys));
    assert_eq!(bus.next()["host"], "203.0.113.7");
    assert_eq!(bus.next()["host"], "203.0.113.8");
    assert_eq!(host.end("TERM"), Some(0));
    assert_eq!(bus.next()["action"], "stop");

    // One who has another key, and one who speaks without any, hear nothing.
    let other = curve_keys();
    for keys in [Some(&other), None] {
        let bus = Subscriber::anywhere(keys);
        host.configure(&section(&bus.url));
        host.start();
        let (code, text) = host.ask(&["sink", "test", "bus"]);
        assert_eq!(code, Some(1));
        assert!(text.contains("its key is another one"), "{text}");
        host.until("an alert", |h| h.alerts().contains("sink:bus"));
        assert!(bus.records.try_recv().is_err());
        assert_eq!(host.end("TERM"), Some(0));
    }
}

/// G13: the predecessor logged a wrong key and went on in clear text.
#[test]
fn a_malformed_key_refuses_to_start() {
    let bus = Subscriber::anywhere(None);
    let url = &bus.url;
    let host = Plain::new();
    for key in [
        "",
        "not a key",
        &"~".repeat(40),
        &"a".repeat(41),
        &"z".repeat(80),
    ] {
        host.write("zmq.key", key);
        host.configure(&format!(
            "[sink.bus]\nkind = \"zmq\"\nurl = \"{url}\"\nserver_key_file = \"{{dir}}/zmq.key\"\n"
        ));
        let said = host.refuses_to_start();
        assert!(
            said.contains("weir.toml:9: server_key_file in [sink.bus]"),
            "{said}"
        );
    }
    assert!(bus.records.try_recv().is_err());

    // Clear text is possible, if it is asked for.
    let mut host = host;
    host.configure(&format!(
        "[sink.bus]\nkind = \"zmq\"\nurl = \"{url}\"\nplain = true\nevents = [\"ban\"]\n"
    ));
    host.start();
    host.done(&["ban", "203.0.113.7"]);
    assert_eq!(bus.next()["subject"], "203.0.113.7");
}

/// The shared libraries of a process, and what else it has mapped.
fn mapped(pid: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
}

const BUS: &str = "[sink.bus]\nkind = \"zmq\"\nurl = \"ipc:///nobody\"\nplain = true\n";
const LOG: &str = "[sink.log]\nkind = \"file\"\npath = \"{dir}/events.json\"\n";

/// What libzmq brings along has no place in a daemon that does not use it.
#[test]
fn libzmq_is_opened_for_a_sink_that_needs_it_and_not_before() {
    let mut host = Plain::new();
    host.configure(&format!("{LOG}{BUS}enabled = false\n"));
    host.start();
    for library in [
        "libzmq",
        "libsodium",
        "libstdc++",
        "libkrb5",
        "libpgm",
        "libnorm",
    ] {
        let mapped = mapped(&host.pid().to_string());
        assert!(!mapped.contains(library), "{library}: {mapped}");
    }
    host.configure(&format!("{LOG}{BUS}"));
    host.done(&["reload"]);
    assert!(mapped(&host.pid().to_string()).contains("libzmq"));
}

/// A host without libzmq: a mount namespace with links to all libraries but one
/// in place of their directory.
struct Without {
    links: tempfile::TempDir,
    whole: std::path::PathBuf,
}

impl Without {
    const NAME: &str = weir_libzmq::SONAME;

    fn libzmq(host: &mut Plain) -> Self {
        Libzmq::get().unwrap();
        let mapped = mapped("self");
        let line = mapped.lines().find(|line| line.contains(Self::NAME));
        let path = line.and_then(|line| line.split_whitespace().next_back());
        let directory = Path::new(path.unwrap()).parent().unwrap();
        let without = Self {
            links: tempfile::tempdir().unwrap(),
            whole: host.path("libraries"),
        };
        fs::create_dir(&without.whole).unwrap();
        for entry in fs::read_dir(directory).unwrap() {
            let name = entry.unwrap().file_name();
            if name != Self::NAME {
                without.link(name.to_str().unwrap());
            }
        }
        let mounts = r#"mount --bind "$1" "$2" && mount --bind "$3" "$1" && shift 3 && exec "$@""#;
        host.under = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            mounts,
            "sh",
        ]
        .map(str::to_owned)
        .to_vec();
        let directories = [directory, &without.whole, without.links.path()];
        host.under
            .extend(directories.map(|path| path.display().to_string()));
        without
    }

    fn link(&self, name: &str) {
        std::os::unix::fs::symlink(self.whole.join(name), self.links.path().join(name)).unwrap();
    }

    fn install(&self) {
        self.link(Self::NAME);
    }
}

#[test]
fn root_a_host_without_libzmq_lacks_nothing_but_zeromq_sinks() {
    if let Some(why) = weir_netlab::missing(&["unshare"]) {
        println!("skipped: {why}");
        return;
    }
    let mut host = Plain::new();
    let without = Without::libzmq(&mut host);
    let refused = |text: &str| {
        for words in [
            "weir.toml:9: [sink.bus] with kind = \"zmq\" needs libzmq: libzmq.so.5: cannot open shared object file",
            "install libzmq (package libzmq5 on Debian",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
    };
    host.configure(&format!("{LOG}{BUS}"));
    let (code, text) = host.ask(&["check"]);
    assert_eq!(code, Some(2), "{text}");
    refused(&text);
    refused(&host.refuses_to_start());

    // One that is turned off needs nothing.
    host.configure(&format!("{LOG}{BUS}enabled = false\n"));
    host.done(&["check"]);
    host.start();
    host.done(&["ban", "203.0.113.7"]);
    host.until("a line in the file", |h| {
        h.read("events.json").contains("203.0.113.7")
    });
    host.configure(&format!("{LOG}{BUS}"));
    let (code, text) = host.ask(&["reload"]);
    assert_eq!(code, Some(2), "{text}");
    refused(&text);
    assert!(host.is_banned("203.0.113.7"));

    // A package that is installed meanwhile is found.
    without.install();
    host.done(&["reload"]);
    assert_eq!(host.status_of("sinks", "bus")["kind"], "zmq");
}

#[test]
fn a_file_gets_lines_and_follows_its_rotation() {
    let mut host = Plain::new();
    fs::create_dir(host.path("log")).unwrap();
    host.configure(
        "[sink.log]\nkind = \"file\"\npath = \"{dir}/log/events.json\"\nevents = [\"ban\", \"unban\"]\n",
    );
    host.start();
    let subjects = |host: &Plain, name: &str| -> Vec<String> {
        host.read(&format!("log/{name}"))
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                event["subject"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    host.done(&["ban", "203.0.113.1"]);
    host.until("a line", |h| subjects(h, "events.json") == ["203.0.113.1"]);
    let mode = fs::metadata(host.path("log/events.json"))
        .unwrap()
        .permissions()
        .mode();
    // Not more than that; a umask may take from it.
    assert_eq!(mode & 0o777 & !0o640, 0);

    fs::rename(host.path("log/events.json"), host.path("log/events.json.1")).unwrap();
    host.done(&["ban", "203.0.113.2"]);
    host.until("a line in a new file", |h| {
        subjects(h, "events.json") == ["203.0.113.2"]
    });
    assert_eq!(subjects(&host, "events.json.1"), ["203.0.113.1"]);
    // Cut, as by copytruncate.
    fs::write(host.path("log/events.json"), "").unwrap();
    host.done(&["ban", "203.0.113.3"]);
    host.until("a line in the cut file", |h| {
        subjects(h, "events.json") == ["203.0.113.3"]
    });

    // Its directory goes: an alert, and the line is there when it is back.
    fs::remove_dir_all(host.path("log")).unwrap();
    host.done(&["ban", "203.0.113.4"]);
    host.until("an alert", |h| h.alerts().contains("cannot write to"));
    assert_eq!(host.ask(&["sink", "test", "log"]).0, Some(1));
    fs::create_dir(host.path("log")).unwrap();
    host.until("what waited", |h| {
        subjects(h, "events.json") == ["203.0.113.4"]
    });
    host.until("no alert", |h| h.alerts() == "[]");

    // A link or a FIFO in its place is neither followed nor waited for.
    fs::remove_file(host.path("log/events.json")).unwrap();
    std::os::unix::fs::symlink("/dev/null", host.path("log/events.json")).unwrap();
    let (code, text) = host.ask(&["sink", "test", "log"]);
    assert_eq!(code, Some(1), "{text}");
}

/// The daemon never waits for a sink, dead or hanging, and counts what it loses.
#[test]
fn dead_and_slow_receivers_slow_nobody() {
    const BANS: usize = 5000;
    // Takes connections and never answers.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = hangs.local_addr().unwrap();
    // Refuses connections, until it is there.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let reborn = dead.local_addr().unwrap();
    drop(dead);
    let mut host = Plain::new();
    let sinks = format!(
        "[sink.hangs]\nkind = \"webhook\"\nurl = \"http://{hanging}/\"\nqueue = 100\nevents = [\"ban\"]\nrate = 100000\n\
         [sink.dead]\nkind = \"webhook\"\nurl = \"http://{reborn}/\"\nqueue = 10\nevents = [\"ban\", \"error\"]\nrate = 100000\n\
         [sink.bus]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:1\"\nplain = true\nqueue = 10\nevents = [\"ban\"]\n\
         [sink.log]\nkind = \"file\"\npath = \"{{dir}}/events.json\"\nqueue = 10000\nevents = [\"ban\"]\n"
    );
    host.configure(&(sinks + &flood(&host, BANS)));
    let begun = Instant::now();
    host.start();
    host.until("all bans", |h| h.json(&["status"])["usage"]["bans"] == BANS);
    println!("{BANS} bans beside dead receivers: {:?}", begun.elapsed());
    host.until("the file has all of them", |h| {
        h.read("events.json").lines().count() == BANS
    });
    for (sink, cap) in [("hangs", 100), ("dead", 10), ("bus", 10)] {
        let status = host.status_of("sinks", sink);
        assert_eq!(status["queued"], cap, "{status}");
        // One is on its way; alerts are events, too.
        let lost = status["lost"].as_u64().unwrap() as usize;
        assert!(
            (BANS - cap - 1..=BANS - cap + 4).contains(&lost),
            "{status}"
        );
        assert_eq!(status["delivered"], 0);
    }
    let alerts = host.alerts();
    for about in [
        "sink:hangs:queue",
        "sink:dead:queue",
        "sink:bus:queue",
        "\"sink:dead\"",
    ] {
        assert!(alerts.contains(about), "no {about} in {alerts}");
    }
    assert!(
        alerts.matches("\"about\"").count() <= 8,
        "one each: {alerts}"
    );
    assert_eq!(number(&host, "log", "lost"), 0);

    // The dead comes back: what waited, then how much did not.
    let server = Server::on(TcpListener::bind(reborn).unwrap(), &[]);
    // Alerts about the others may come, and find no room, until it is back.
    host.until("it is told of its loss", |h| {
        let lost = format!("\"{} events were lost here", number(h, "dead", "lost"));
        server.seen().iter().any(|r| r.body.contains(&lost))
    });
    host.until("its alerts are over", |h| !h.alerts().contains("sink:dead"));

    // Nor does the end wait for long.
    let begun = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
}

/// Each reload gives the dead sinks new queues, which overflow at once.
#[test]
fn dead_sinks_are_mended_by_a_reload_while_they_overflow() {
    let mut host = Plain::new();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let configure = |host: &Plain, url: &str| {
        let sink = |name: &str| {
            format!(
                "[sink.{name}]\nkind = \"webhook\"\nurl = \"{url}\"\nqueue = 1\nevents = [\"found\", \"error\"]\nrate = 100000\n"
            )
        };
        host.configure(&format!(
            "[jail.sshd]\npaths = [\"{{dir}}/auth.log\"]\nmax_retry = 1000\n{}{}",
            sink("one"),
            sink("two")
        ));
    };
    host.write("auth.log", "");
    configure(&host, &nobody);
    host.start();
    let findings = |host: &Plain| {
        let mut log = fs::File::options()
            .append(true)
            .open(host.path("auth.log"))
            .unwrap();
        let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S");
        let line = |n| {
            format!(
                "{stamp} host sshd[77]: Failed password for root from 198.18.0.{n} port 22 ssh2\n"
            )
        };
        let lines: String = (0..200).map(line).collect();
        log.write_all(lines.as_bytes()).unwrap();
    };
    findings(&host);
    host.until("an overflow", |h| h.alerts().contains("sink:one:queue"));
    for turn in 0..20 {
        configure(&host, &format!("{nobody}/{turn}"));
        findings(&host);
        host.done_in_time(&["reload"]);
    }
    let server = Server::start(&[]);
    configure(&host, &server.url());
    host.done_in_time(&["reload"]);
    findings(&host);
    host.until("the mended sinks to be told", |_| !server.seen().is_empty());
}

#[test]
fn a_rate_holds_events_back_and_sums_them_up() {
    let server = Server::start(&[]);
    let mut host = Plain::new();
    host.configure(&format!(
        "[sink.tower]\nkind = \"webhook\"\nurl = \"{}/\"\nrate = 2\nevents = [\"ban\"]\n{}",
        server.url(),
        flood(&host, 50)
    ));
    host.start();
    host.until("48 held back", |h| number(h, "tower", "held_back") == 48);
    assert_eq!(server.seen().len(), 2);
    assert_eq!(host.end("TERM"), Some(0));
    let summary = server.seen().pop().unwrap().json();
    assert_eq!(summary["kind"], "summary");
    assert_eq!(summary["reason"], "and 48 more bans in the last minute");
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn what_a_receiver_refuses_is_given_up_and_what_fails_is_tried_again() {
    let refuses = "400 Bad Request\r\ncontent-length: 0";
    let fails = "503 Service Unavailable\r\ncontent-length: 0";
    let moved = "302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0";
    let server = Server::start(&[refuses, fails, moved]);
    let mut host = Plain::new();
    host.configure(&format!(
        "[sink.tower]\nkind = \"webhook\"\nurl = \"{}/\"\nevents = [\"ban\"]\n",
        server.url()
    ));
    host.start();
    host.done(&["ban", "203.0.113.1"]);
    host.until("a refusal", |h| number(h, "tower", "refused") == 1);
    assert!(host.alerts().contains("400"));
    host.done(&["ban", "203.0.113.2"]);
    host.until("it gets through", |h| number(h, "tower", "delivered") == 1);
    let subjects: Vec<_> = server.events().into_iter().map(|e| e.1).collect();
    assert_eq!(
        subjects,
        ["203.0.113.1", "203.0.113.2", "203.0.113.2", "203.0.113.2"]
    );
    host.until("no alert", |h| h.alerts() == "[]");
}

/// A wrong token or path is the administrator's to mend: the events behind it
/// do not wait for that.
#[test]
fn a_receiver_that_wants_other_settings_holds_up_no_queue() {
    let answers = [
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "410 Gone",
    ]
    .map(|status| format!("{status}\r\ncontent-length: 0"));
    let server = Server::start(&answers.each_ref().map(String::as_str));
    let mut host = Plain::new();
    host.configure(&format!(
        "[sink.tower]\nkind = \"webhook\"\nurl = \"{}/\"\nevents = [\"ban\"]\n",
        server.url()
    ));
    host.start();
    for (n, status) in ["401", "403", "404", "410"].into_iter().enumerate() {
        host.done(&["ban", &format!("203.0.113.{n}")]);
        host.until("it is given up", |h| {
            number(h, "tower", "refused") == n as u64 + 1
        });
        host.until("an alert", |h| h.alerts().contains(status));
        assert!(host.alerts().contains("sink:tower"), "{}", host.alerts());
        assert_eq!(number(&host, "tower", "queued"), 0);
    }
    assert_eq!(host.ask(&["status"]).0, Some(1));
    host.done(&["ban", "203.0.113.99"]);
    host.until("it gets through", |h| number(h, "tower", "delivered") == 1);
    host.until("no alert", |h| h.alerts() == "[]");
    assert_eq!(server.seen().len(), 5);
}

#[test]
fn alerts_reach_the_sinks_and_a_reload_changes_them() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let section = |name: &str, server: &Server| {
        format!(
            "[sink.{name}]\nkind = \"webhook\"\nurl = \"{}/\"\nevents = [\"ban\", \"error\"]\n",
            server.url()
        )
    };
    let mut host = Plain::new();
    // The rights to run watches are given up where there is none at the start.
    let idle = "[watch.idle]\ncommand = [\"/bin/sleep\", \"1000\"]\n";
    host.configure(&format!("{}{idle}", section("one", &first)));
    host.start();
    host.done(&["ban", "203.0.113.1"]);
    host.until("the first ban", |_| first.seen().len() == 1);
    let failing = "[watch.bad]\ncommand = [\"/bin/false\"]\n";
    host.configure(&format!(
        "{}{}{idle}{failing}",
        section("one", &first),
        section("two", &second)
    ));
    host.done(&["reload"]);
    host.until("both hear of the watch", |_| {
        [&first, &second].iter().all(|server| {
            server
                .seen()
                .iter()
                .any(|r| r.body.contains("watch:bad: /bin/false ended"))
        })
    });
    assert_eq!(number(&host, "one", "delivered"), first.seen().len() as u64);
    host.configure(&section("two", &second));
    host.done(&["reload"]);
    let before = first.seen().len();
    host.done(&["ban", "203.0.113.2"]);
    host.until("the second ban", |_| {
        second.events().iter().any(|e| e.1 == "203.0.113.2")
    });
    assert_eq!(first.seen().len(), before);
    assert_eq!(host.json(&["status"])["sinks"].as_array().unwrap().len(), 1);
    assert!(Path::new(&host.path("state")).exists());
}

/// An HTTPS server whose certificate is of an authority of its own, `ca.pem`;
/// it writes what it is sent to `posted`.
struct Tls {
    server: Child,
    port: String,
}

impl Tls {
    fn start(host: &Plain) -> Self {
        let script = "set -e; cd {dir}\n\
            new() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=weir-test \"$@\"; }\n\
            new -x509 -days 2 -keyout ca.key -out ca.pem\n\
            new -keyout key.pem -out csr.pem\n\
            echo subjectAltName=IP:127.0.0.1 >ext\n\
            openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem\n";
        let made = Command::new("/bin/sh")
            .args(["-c", &host.filled(script)])
            .output();
        let made = made.unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let script = r#"
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        with open('{dir}/posted', 'ab') as posted:
            posted.write(body + b'\n')
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('{dir}/cert.pem', '{dir}/key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;
        let mut server = Command::new("python3")
            .args(["-c", &host.filled(script)])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut said = BufReader::new(server.stdout.take().unwrap());
        said.read_line(&mut port).unwrap();
        Self {
            server,
            port: port.trim().to_owned(),
        }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn a_server_that_nobody_vouches_for_is_an_alert_and_hears_nothing() {
    let mut host = Plain::new();
    let tls = Tls::start(&host);
    let section = |host_name: &str, more: &str| {
        format!(
            "[sink.tower]\nkind = \"webhook\"\nurl = \"https://{host_name}:{}/\"\nevents = [\"ban\"]\n{more}\n",
            tls.port
        )
    };
    host.configure(&section("127.0.0.1", ""));
    host.start();
    host.done(&["ban", "203.0.113.7"]);
    host.until("an alert", |h| h.alerts().contains("UnknownIssuer"));
    // Vouched for, but by another name.
    host.configure(&section("localhost", "ca_file = \"{dir}/ca.pem\""));
    host.done(&["reload"]);
    let (code, text) = host.ask(&["sink", "test", "tower"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(host.read("posted"), "");
    host.configure(&section("127.0.0.1", "ca_file = \"{dir}/ca.pem\""));
    host.done(&["reload"]);
    host.done(&["ban", "203.0.113.8"]);
    host.until("the event", |h| h.read("posted").contains("203.0.113.8"));
    assert_eq!(host.alerts(), "[]");
}

#[test]
fn with_a_geofence_records_name_the_country() {
    let mut host = Plain::new();
    host.configure(
        "[geofence]\ndeny = [\"country:RU\"]\n[sink.log]\nkind = \"file\"\n\
         path = \"{dir}/events.json\"\nformat = \"ipt_geofence\"\nevents = [\"ban\", \"unban\"]\n",
    );
    host.start();
    let place = host.json(&["geo", "5.255.255.5"]);
    let country = &place["places"][0]["country"];
    let country = country.as_str().expect("a country").to_owned();
    host.done(&["ban", "5.255.255.5"]);
    host.done(&["unban", "5.255.255.5"]);
    host.until("two records", |h| {
        h.read("events.json").lines().count() == 2
    });
    let text = host.read("events.json");
    for (line, action) in text.lines().zip(["ban", "unban"]) {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&record["action"], &record["country"]),
            (&action.into(), &(*country).into())
        );
    }
}

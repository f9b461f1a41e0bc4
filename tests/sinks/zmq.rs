//! ZeroMQ, as a subscriber sees it, and hosts without its library.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_libzmq::{CurveKeys, Kind, Libzmq, Socket};

use super::{
    flood,
    plain::{DEADLINE, Plain},
};

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

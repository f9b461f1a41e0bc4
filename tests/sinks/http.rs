//! Webhooks and Telegram, as HTTP servers see them.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    number,
    plain::{DEADLINE, Plain},
    secret,
};

const TOKEN: &str = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

/// A request as it came, with head and body.
#[derive(Clone, Debug)]
pub(super) struct Request {
    head: String,
    pub(super) body: String,
}

impl Request {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A server that notes what it is sent. Its first answers are those it is
/// given, all further ones 200. It ends with the test's process.
#[derive(Clone)]
pub(super) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) fn start(answers: &[&str]) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answers)
    }

    pub(super) fn on(listener: TcpListener, answers: &[&str]) -> Self {
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

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn seen(&self) -> Vec<Request> {
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

//! A real nginx with two workers, on the loopback, as an operator has it but
//! for the paths.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::{DEADLINE, Running, ServerFiles, free_port, wait_for};

pub const PROGRAM: &str = "/usr/sbin/nginx";

pub struct Nginx {
    pub running: Running,
    port: u16,
}

impl Nginx {
    /// Starts it, `access.log` and `error.log` in the place; what it says on
    /// standard error goes to `stderr.txt`. `patterns` are diverted.
    pub fn start(place: &ServerFiles, patterns: &[&str], tee: bool) -> Nginx {
        let port = free_port();
        let at = |name: &str| place.file(name).display().to_string();
        let configuration = format!(
            "daemon off; worker_processes 2; pid {pid}; error_log {error} info;
             user {user};
             events {{ worker_connections 1024; }}
             http {{
                 access_log {access};
                 client_body_temp_path {tmp}; proxy_temp_path {tmp}; fastcgi_temp_path {tmp};
                 uwsgi_temp_path {tmp}; scgi_temp_path {tmp};
                 keepalive_requests 100000;
                 server {{
                     listen 127.0.0.1:{port} reuseport;
                     root {root};
                 }}
             }}",
            pid = at("nginx.pid"),
            error = at("error.log"),
            access = at("access.log"),
            tmp = at("tmp"),
            root = at("root"),
            user = "www-data",
        );
        std::fs::write(place.file("nginx.conf"), configuration).expect("its configuration");
        let errors = std::fs::File::create(place.file("stderr.txt")).expect("a file");
        let mut command = place.under_shim(PROGRAM, patterns, tee);
        command
            .arg("-c")
            .arg(place.file("nginx.conf"))
            .stderr(errors);
        let mut running = Running::start(&mut command);
        wait_for("nginx answers", || {
            assert!(!running.has_ended(), "{:?}", place.lines_of("stderr.txt"));
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Nginx { running, port }
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("nginx listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        Client(BufReader::new(stream))
    }

    /// `nginx -s reopen`, as logrotate does.
    pub fn reopen(&self, place: &ServerFiles) {
        let output = Command::new(PROGRAM)
            .arg("-c")
            .arg(place.file("nginx.conf"))
            .args(["-s", "reopen"])
            .stdin(Stdio::null())
            .output()
            .expect("nginx");
        assert!(output.status.success(), "{output:?}");
    }

    /// Processes whose parent is the master.
    pub fn workers(&self) -> Vec<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.running.id());
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children
            .split_whitespace()
            .map(|id| id.parse().expect("a process"))
            .collect()
    }
}

/// One connection, which one worker serves.
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Asks for a path and returns the status.
    pub fn get(&mut self, path: &str) -> u16 {
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
        let mut status = String::new();
        self.0.read_line(&mut status).expect("an answer");
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a header");
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("the body");
        status[9..12].parse().expect("a status")
    }
}

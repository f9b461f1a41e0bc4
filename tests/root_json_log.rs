//! A real nginx that logs in JSON, read by a filter of weir.toml as the guide has it: those who
//! are refused are banned, and what they write into their requests is nobody else's.

mod common;
#[path = "common/nginx.rs"]
mod nginx;

use std::{
    fs,
    io::{Read, Write},
    net::SocketAddr,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use nginx::{Nginx, base64};
use weir_testkit::traffic::{self, TcpServer};

const WEB: u16 = 80;

/// What the guide says about nginx: lines of nginx's configuration, and of weir.toml.
fn recipe() -> (&'static str, &'static str) {
    let guide = include_str!("../docs/guide/write-a-filter.md");
    let block = |language: &str, with: &str| {
        let fence = format!("```{language}\n");
        let blocks = guide.split(fence.as_str()).skip(1);
        let mut found = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
        let found = found.find(|block| block.contains(with));
        found.unwrap_or_else(|| panic!("no {language} in the guide with {with}"))
    };
    (
        block("nginx", "log_format"),
        block("toml", "/var/log/nginx/access.json"),
    )
}

fn at(who: &str, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[usize::from(who.contains(':'))]), port)
}

/// Asks for a path under a name; the status.
#[track_caller]
fn get(net: &TestNet, from: &str, path: &str, user: &str) -> u16 {
    let opened = traffic::tcp_open(&net.internet, Some(addr(from)), at(from, WEB), SOON);
    let (mut stream, _) = opened.unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let basic = base64(&format!("{user}:guess"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: shop\r\nUser-Agent: \\\",\"status\":401,\"x\":\"\r\nAuthorization: Basic {basic}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.strip_prefix("HTTP/1.1 ").unwrap()[..3]
        .parse()
        .unwrap()
}

#[test]
fn root_nginx_in_json_has_its_attackers_dropped() {
    if skipped(&["nginx"]) {
        return;
    }
    let (log_format, tables) = recipe();
    let net = TestNet::new();
    let dir = tempfile::Builder::new()
        .prefix("weir-test-")
        .tempdir()
        .unwrap();
    let at_dir = format!("{}/", dir.path().display());
    let log_format = log_format.replace("/var/log/nginx/", &at_dir);
    let tables = tables.replace("/var/log/nginx/", &at_dir);
    let http = format!(
        "{log_format}
         server {{
             listen {WEB}; listen [::]:{WEB};
             location /secret {{ return 401; }}
             location / {{ return 200 \"welcome\"; }}
         }}"
    );
    let _nginx = Nginx::start(&net.host, dir.path(), &http, || {
        net.connects(CUSTOMER[0], at(CUSTOMER[0], WEB))
    });
    let weir = Weir::start(&net.host, &format!("interfaces = [\"eth0\"]\n{tables}"));

    // The guide's jail bans at the fifth.
    let hostile = [
        "anna",
        "a\",\"status\"",
        "x\n401 203.0.113.5 y",
        "x\"}\n{\"status\"",
        "401 203.0.113.5",
    ];
    // A user ends at a colon, a path at a blank.
    let field = "?\",\"status\":401,\"remote\":{\"addr\":\"203.0.113.5\"},\"x\":\"\\";
    for family in [0, 1] {
        let (who, other) = (ATTACKER[family], OTHER[family]);
        for (n, user) in hostile.iter().enumerate() {
            assert_eq!(get(&net, who, &format!("/secret{field}"), user), 401);
            assert_eq!(get(&net, other, &format!("/{field}"), user), 200);
            if n == 3 {
                soon("four failures", || {
                    (weir.why(who)["tracked"][0]["findings"] == 4).then_some(())
                });
                assert!(weir.banned().is_empty());
            }
        }
        let subject = match family {
            0 => who.to_owned(),
            _ => format!("{}::/64", who.split_once("::").unwrap().0),
        };
        soon("the ban", || weir.banned().contains(&subject).then_some(()));
        assert_eq!(weir.banned(), std::slice::from_ref(&subject));
        let why = weir.why(who);
        assert_eq!(why["bans"][0]["producer"], "jail:nginx-json", "{why}");
        assert!(!net.connects(who, at(who, WEB)));
        // The jail is about the web's ports.
        let _server = TcpServer::start(&net.host, at(who, 8080), b"").unwrap();
        net.serves(who, at(who, 8080));
        for who in [CUSTOMER[family], other] {
            assert_eq!(get(&net, who, "/", "anna"), 200);
        }
        assert_eq!(weir.json(&["unban", &subject])["lifted"], 1);
    }
    let status = weir.json(&["status"]);
    assert_eq!(status["alerts"], serde_json::json!([]), "{status}");
    // What the guide tells to ask, of the very lines.
    let lines = fs::read_to_string(dir.path().join("access.json")).unwrap();
    let failures = lines
        .lines()
        .filter(|line| line.contains("\"status\":401,"));
    assert!(failures.count() >= 10, "{lines}");
}

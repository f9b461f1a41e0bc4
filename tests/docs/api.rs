//! docs/api.md against the daemon: its routes are those that are served, and
//! every field that it shows is in a real answer, of the status also the reverse.

use std::process::Command;

use serde_json::Value;

use crate::{plain::Plain, read};

#[test]
fn the_routes_of_the_document_are_those_that_are_served() {
    let document = read("docs/api.md");
    let rows = document.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split("` | `");
        Some((cells.next()?, cells.next()?.split('`').next()?))
    });
    let written: Vec<_> = rows.filter(|(_, path)| path.starts_with("/v1/")).collect();
    let served: Vec<_> = weir_daemon::api::routes().collect();
    assert_eq!(written, served);
}

/// The example below the heading of a route.
fn example(document: &str, route: &str) -> Value {
    let (_, rest) = document
        .split_once(&format!("### `{route}`\n"))
        .unwrap_or_else(|| panic!("{route} has no section"));
    let (_, rest) = rest.split_once("```json\n").expect("an example");
    let (text, _) = rest.split_once("```").expect("the example ends");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{route}: {error}"))
}

/// Has the answer every field of the example? Of lists the first items are compared.
fn compare(example: &Value, answer: &Value, at: &str) {
    match (example, answer) {
        (Value::Object(fields), _) => {
            for (name, value) in fields {
                let answer = answer.get(name);
                let answer = answer.unwrap_or_else(|| panic!("{at}: no {name} in the answer"));
                compare(value, answer, &format!("{at}.{name}"));
            }
        }
        (Value::Array(items), Value::Array(answers)) => {
            if let (Some(item), Some(answer)) = (items.first(), answers.first()) {
                compare(item, answer, at);
            }
            assert!(
                items.is_empty() || !answers.is_empty(),
                "{at}: the answer is empty, which shows nothing"
            );
        }
        (Value::Array(_), other) => panic!("{at}: no list, but {other}"),
        _ => {}
    }
}

#[test]
fn every_field_of_the_document_is_in_a_real_answer() {
    let document = read("docs/api.md");
    let mut host = Plain::new();
    host.write("auth.log", "");
    host.write("own.txt", "203.0.113.0/24\n");
    host.configure(
        "[jail.sshd]\nsource = \"file\"\npaths = [\"{dir}/auth.log\"]\n[list.own]\nfile = \"{dir}/own.txt\"\n\
         [pool.web]\nforward = \"proxy\"\nvip = [\"192.0.2.80\"]\nports = [\"8080/tcp\"]\n\
         reals = [{ address = \"192.0.2.81\" }]\ncheck = { command = \"/bin/true\" }\n",
    );
    host.start();
    let socket = host.path("weir.sock");
    let ask = |method: &str, path: &str, body: Option<&str>| -> Value {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "-X", method, "--unix-socket"])
            .arg(&socket)
            .arg(format!("http://weir{path}"));
        if let Some(body) = body {
            curl.args(["-d", body]);
        }
        let output = curl.output().expect("curl runs");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}: {output:?}"))
    };
    let ban = r#"{"subject": "192.0.2.7", "for": "1h", "port": "22/tcp"}"#;
    let banned = ask("POST", "/v1/bans", Some(ban));
    assert_eq!(banned["subject"], "192.0.2.7", "{banned}");
    for (route, path) in [
        ("GET /v1/status", "/v1/status"),
        ("GET /v1/jails", "/v1/jails"),
        ("GET /v1/bans", "/v1/bans"),
        ("GET /v1/why/ADDR", "/v1/why/192.0.2.7"),
        ("GET /v1/allow", "/v1/allow"),
        ("GET /v1/lists", "/v1/lists"),
        ("GET /v1/pools", "/v1/pools"),
    ] {
        let (example, answer) = (example(&document, route), ask("GET", path, None));
        compare(&example, &answer, route);
        // Answers are read by other programs: what is not written nobody may count on.
        if route == "GET /v1/status" {
            let fields = answer.as_object().unwrap().keys();
            let unknown: Vec<_> = fields.filter(|key| example.get(key).is_none()).collect();
            assert!(
                unknown.is_empty(),
                "{route} in docs/api.md lacks {unknown:?}"
            );
        }
    }
    let lifted = ask("DELETE", "/v1/bans", None);
    compare(&example(&document, "DELETE /v1/bans"), &lifted, "DELETE");
    let reloaded = ask("POST", "/v1/reload", None);
    compare(&example(&document, "POST /v1/reload"), &reloaded, "reload");
    let missing = ask("GET", "/v1/nothing", None);
    assert!(missing["error"].is_string(), "{missing}");
}

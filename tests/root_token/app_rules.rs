//! From program to program: a rule of `[app]` about nginx has curl of another host as its
//! peer, and nobody else gets to that port, nor curl to another program there.

use std::fs;

use super::{
    common::soon,
    lab::{CURL_AND_PYTHON, Host, Lab, OPEN, PORT, SERVER, url},
};

/// Libraries of python3 that it has no use for here, by family.
const MODULES: [[&str; 6]; 2] = [
    ["_bz2", "_ctypes", "_decimal", "_lzma", "_sqlite3", "_ssl"],
    [
        "_asyncio",
        "_curses",
        "_hashlib",
        "_multibytecodec",
        "mmap",
        "termios",
    ],
];

/// Asks twice for a connection: the third SYN would come after two seconds.
const TWO_SYNS: &str = "
import socket, sys
__import__(sys.argv[3])
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.9)
except OSError: pass
";

/// nginx, or another program, serves curl at one port, and everybody at the other.
fn serve(server: &Host, path: &str, curl: &str, more: &str) {
    server.configure(&format!(
        "[app]\ncgroup = \"{{cgroup}}\"\ndefault = \"drop\"\nunknown = \"drop\"\n\
         [app.rules.web]\nverdict = \"allow\"\npath = \"{path}\"\nports = [\"{PORT}/tcp\"]\npeer = \"{curl}\"\n{more}\
         [app.rules.open]\nverdict = \"allow\"\npath = \"/usr/sbin/nginx\"\ndirection = \"in\"\nports = [\"{OPEN}/tcp\"]\n\
         [token]\nkeys = \"{{dir}}/keys\"\n"
    ));
}

/// A start that finds no keys is refused before its rules about programs are in force.
#[test]
fn root_a_start_without_keys_changes_no_rule() {
    let Some(mut lab) = Lab::new("no-keys") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let client = &mut lab.client;
    let gets_out = |client: &Host| {
        for address in SERVER {
            soon("python3 to get out", || {
                (client.connects(address, OPEN) == "connected").then_some(())
            });
        }
    };
    gets_out(client);
    client.weir.end("TERM");
    let keys = client.keys();
    fs::rename(&keys, format!("{keys}-elsewhere")).unwrap();
    client.configure(
        "[app]\ncgroup = \"{cgroup}\"\ndefault = \"drop\"\nunknown = \"drop\"\n\
         [token]\nkeys = \"{dir}/keys\"\nsign_to = [\"192.0.2.2\"]\n",
    );
    let said = client.weir.refuses_to_start();
    assert!(said.contains("keys"), "{said}");
    gets_out(client);
}

#[test]
fn root_a_rule_names_the_program_at_the_other_end() {
    let Some(mut lab) = Lab::new("peer") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    // Before the server has rules, so that who asks is known by then.
    let curl = lab.aggregate_of_curl();
    lab.server.copy_keys(&lab.client);
    serve(&lab.server, "/usr/sbin/nginx", &curl, "");
    lab.server.weir.start();
    let (client, server) = (&lab.client, &lab.server);
    let status = server.token();
    assert_eq!(
        status["requirements"][0]["name"], "app.rules.web",
        "{status}"
    );
    for address in SERVER {
        soon("curl to get in", || {
            (client.curl(address, PORT) == "200").then_some(())
        });
        soon("python to be known", || {
            (client.connects(address, OPEN) == "connected").then_some(())
        });
        // It proves what it is, and that is another program than the rule names.
        let (refused, signed) = (server.outcome("not-named"), client.signing("signed"));
        assert_eq!(client.connects(address, PORT), "TimeoutError");
        assert!(server.outcome("not-named") > refused, "{}", server.token());
        assert!(client.signing("signed") > signed);
        let source = address
            .replace("192.0.2.2", "192.0.2.1")
            .replace("::2", "::1");
        let why = server.weir.json(&["token", "why", &source]);
        assert_eq!(why["packets"][0]["reason"], "not-named", "{why}");
        assert_eq!(why["packets"][0]["dropped"], true, "{why}");
        // Nor is the port open to who proves nothing.
        let missing = server.outcome("missing");
        let at = url(address, PORT);
        let words = ["--max-time", "2", "-s", at.as_str()];
        let other = lab.other.output("curl", &words).unwrap();
        assert_eq!(other.status.code(), Some(28));
        assert!(server.outcome("missing") > missing);
        assert_eq!(client.curl(address, PORT), "200");
    }
    let shown = server.weir.done(&["status"]);
    assert!(shown.contains("app.rules.web"), "{shown}");

    // A program that nobody knew until then, allowed by its file, proves what it is with its
    // second SYN, a second after the first: each of these runs maps another library.
    let port = PORT.to_string();
    let mut late = 0;
    for (address, modules) in SERVER.iter().zip(MODULES) {
        for module in modules {
            let refused = server.outcome("not-named");
            client.python(TWO_SYNS, &[address, &port, module]);
            late += u32::from(server.outcome("not-named") == refused);
        }
    }
    // A busy machine may need more than the second for one or the other.
    assert!(late <= 2, "{late} {} {}", server.token(), client.token());

    // The other half of the rule: curl proves itself, and it is not nginx that may serve.
    serve(server, "/usr/bin/python3", &curl, "");
    server.weir.done(&["reload"]);
    for address in SERVER {
        let valid = server.outcome("valid");
        assert_eq!(client.curl(address, PORT), "000");
        assert!(server.outcome("valid") > valid, "{}", server.token());
    }
    // Only sources that the rule is about have to prove anything.
    let from = "from = [\"192.0.2.1/32\", \"2001:db8::1/128\"]\n";
    let all =
        "[app.rules.others]\nverdict = \"allow\"\npath = \"/usr/sbin/nginx\"\ndirection = \"in\"\n";
    serve(server, "/usr/sbin/nginx", &curl, &format!("{from}{all}"));
    server.weir.done(&["reload"]);
    for address in SERVER {
        assert_eq!(client.connects(address, PORT), "TimeoutError");
        assert_eq!(client.curl(address, PORT), "200");
        let at = url(address, PORT);
        let other = lab.other.output("curl", &["-s", "-o", "/dev/null", &at]);
        assert_eq!(other.unwrap().status.code(), Some(0), "{}", server.token());
    }
    // A rule without keys is refused, and the one before stays in force.
    let text = std::fs::read_to_string(server.weir.path("weir.toml")).unwrap();
    let (without, _) = text.split_once("[token]").unwrap();
    std::fs::write(server.weir.path("weir.toml"), without).unwrap();
    let (code, told) = server.weir.ask(&["reload"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("peer in [app.rules.web] without [token]"),
        "{told}"
    );
    assert_eq!(client.connects(SERVER[0], PORT), "TimeoutError");
}

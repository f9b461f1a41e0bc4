//! A gateway with iptables and the other kinds of proof: datagrams of UDP, segments whose scope
//! is the payload, and signatures of DAF. The server behind it runs no weir.

use std::{
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use weir_netlab::Child;

use super::{
    common::{skipped, soon},
    datagrams::{self, Lab, SERVER},
    lab::{CURL_AND_PYTHON, Host, PORT, nginx_conf, url},
};

/// A lab whose router is the gateway, and nginx on the server; `None`: something is not here.
fn start(name: &str, kind: &str) -> Option<(Lab, Host, Child)> {
    let iptables = format!("iptables-{kind}");
    if skipped(&[&iptables, "/usr/sbin/nginx", "curl"]) {
        return None;
    }
    let lab = Lab::new(name)?;
    let gateway = Host::new(lab.router.clone(), &format!("{name}-g"));
    let conf = nginx_conf(&lab.server.weir.path(""));
    let mut command = Command::new("/usr/sbin/nginx");
    command
        .args(["-c", conf.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let nginx = lab.server.space.spawn(command).unwrap();
    Some((lab, gateway, nginx))
}

/// What the match does not take goes nowhere, for this protocol and port: each packet is asked
/// about.
fn filter(gateway: &Host, kind: &str, protocol: &str, port: u16) {
    let pin = format!("/sys/fs/bpf/weir/{}/token-iptables/match", gateway.instance);
    for (program, address) in [("iptables", SERVER[0]), ("ip6tables", SERVER[1])] {
        let of_port = format!("-p {protocol} -d {address} --dport {port}");
        for rest in [
            format!("{of_port} -m bpf --object-pinned {pin} -j ACCEPT"),
            format!("{of_port} -j DROP"),
        ] {
            let words: Vec<_> = ["-w", "-A", "FORWARD"]
                .into_iter()
                .chain(rest.split(' '))
                .collect();
            let program = format!("{program}-{kind}");
            gateway.space.run(&program, &words).unwrap();
        }
    }
}

#[test]
fn root_iptables_on_a_gateway_lets_only_signed_datagrams_through() {
    for kind in ["legacy", "nft"] {
        let Some((mut lab, mut gateway, _nginx)) = start("gate-udp", kind) else {
            return;
        };
        lab.client.configure(&format!(
            "[app]\ncgroup = \"{{cgroup}}\"\n{}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_udp_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n",
            datagrams::SENDERS
        ));
        lab.client.weir.start();
        let python = soon("python3 to be known", || {
            lab.ask(SERVER[0], datagrams::OPEN, "plain", &[40]);
            lab.client.aggregate("python3")
        });
        gateway.copy_keys(&lab.client);
        gateway.configure(&format!(
            "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n[token.require.echo]\nports = [\"{}/udp\"]\naggregate = \"{python}\"\n",
            datagrams::PORT
        ));
        gateway.weir.start();
        filter(&gateway, kind, "udp", datagrams::PORT);
        let lets_only_python_through = |when: &str| {
            for address in SERVER {
                soon("python3 to get through", || {
                    let said = lab.ask(address, datagrams::PORT, "plain", &[40, 1000]);
                    (said == "answer,answer").then_some(())
                });
                for from in [None, Some(&lab.other)] {
                    let said = lab.perl(from, address, datagrams::PORT);
                    assert_eq!(said, "silence", "{address} {kind} {when}");
                    let said = lab.perl(from, address, datagrams::OPEN);
                    assert_eq!(said, "answer", "{address} {kind} {when}");
                }
            }
        };
        lets_only_python_through("at first");
        for reason in ["valid", "not-named", "missing"] {
            assert!(
                gateway.outcome(reason) > 0,
                "{reason} {kind}: {}",
                gateway.token()
            );
        }
        // A full one has no room for a token, and passes for what came before it.
        for (address, full) in [(SERVER[0], 1472), (SERVER[1], 1452)] {
            let said = lab.ask(address, datagrams::PORT, "plain", &[40, full]);
            assert_eq!(said, "answer,answer", "{address} {kind}");
        }
        assert!(gateway.outcome("proven") > 0, "{}", gateway.token());
        gateway.weir.end("KILL");
        lets_only_python_through("without a daemon");
    }
}

#[test]
fn root_iptables_on_a_gateway_looks_at_each_segment() {
    for kind in ["legacy", "nft"] {
        let Some((mut lab, mut gateway, _nginx)) = start("gate-seg", kind) else {
            return;
        };
        let configure = |client: &Host, more: &str| {
            client.configure(&format!(
                "[app]\ncgroup = \"{{cgroup}}\"\n{CURL_AND_PYTHON}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = [\"198.51.100.0/24\", \"2001:db8:2::/64\"]\n{more}"
            ));
        };
        configure(&lab.client, "scope = \"payload\"\n");
        lab.client.weir.start();
        let curl = lab.client.known_curl(SERVER[0]);
        gateway.copy_keys(&lab.client);
        gateway.require(&curl, "scope = \"payload\"\n");
        gateway.weir.start();
        filter(&gateway, kind, "tcp", PORT);
        for address in SERVER {
            let proven = gateway.outcome("proven");
            soon("curl to get through", || {
                (lab.client.curl(address, PORT) == "200").then_some(())
            });
            assert!(gateway.outcome("proven") > proven + 2, "{address} {kind}");
            let at = url(address, PORT);
            let words = ["-s", "-o", "/dev/null", "--max-time", "2", &at];
            let done = lab.other.output("curl", &words).unwrap();
            assert_eq!(done.status.code(), Some(28), "{address} {kind}");
        }
        assert_eq!(gateway.outcome("wrong-mac"), 0, "{}", gateway.token());
        // With a token in the SYN alone nothing behind it gets through.
        configure(&lab.client, "");
        lab.client.weir.done(&["reload"]);
        for address in SERVER {
            let missing = gateway.outcome("missing");
            assert_eq!(lab.client.curl(address, PORT), "000", "{address} {kind}");
            assert!(gateway.outcome("missing") > missing, "{address} {kind}");
        }
    }
}

#[test]
fn root_iptables_on_a_gateway_lets_signatures_of_daf_through() {
    for kind in ["legacy", "nft"] {
        let Some((mut lab, mut gateway, _nginx)) = start("gate-daf", kind) else {
            return;
        };
        for host in [&lab.client, &gateway] {
            let key = host.weir.write("daf", "a key that DAF has");
            let mode = PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(key, mode).unwrap();
        }
        let of_daf = "compat = \"daf\"\ndaf_secret = \"{dir}/daf\"\n";
        let cgroup = "cgroup = \"{cgroup}\"\n";
        let to = format!("sign_to = [\"{}\"]\n", SERVER[0]);
        lab.client
            .configure(&format!("[token]\n{cgroup}{of_daf}{to}"));
        lab.client.weir.start();
        gateway.configure(&format!(
            "[token]\n{cgroup}daf_secret = \"{{dir}}/daf\"\n[token.require.web]\nports = [\"{PORT}/tcp\"]\ncompat = \"daf\"\n"
        ));
        gateway.weir.start();
        filter(&gateway, kind, "tcp", PORT);
        let valid = gateway.outcome("valid");
        soon("curl to get through", || {
            (lab.client.curl(SERVER[0], PORT) == "200").then_some(())
        });
        assert!(gateway.outcome("valid") > valid + 2, "{}", gateway.token());
        // IPv6 has no such signature; nor has who does not sign.
        assert_eq!(lab.client.curl(SERVER[1], PORT), "000", "{kind}");
        for address in SERVER {
            let at = url(address, PORT);
            let words = ["-s", "-o", "/dev/null", "--max-time", "2", &at];
            let done = lab.other.output("curl", &words).unwrap();
            assert_eq!(done.status.code(), Some(28), "{address} {kind}");
        }
        assert!(gateway.outcome("missing") > 0);
        // Another key.
        lab.client.weir.write("daf", "another key");
        lab.client.weir.done(&["reload"]);
        let wrong = gateway.outcome("wrong-mac");
        assert_eq!(lab.client.curl(SERVER[0], PORT), "000", "{kind}");
        assert!(gateway.outcome("wrong-mac") > wrong, "{kind}");
    }
}

//! Who is served by a pool with a proxy, and by which real.

use super::*;

/// One pool at both virtual addresses, with these reals and more keys; then more tables.
fn web(reals: &[&str], keys: &str, more: &str) -> String {
    let [vip, vip6] = VIP;
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"nft\"\n\
         [pool.web]\nforward = \"proxy\"\nvip = [\"{vip}\", \"{vip6}\"]\nports = [\"80/tcp\"]\n\
         reals = [{}]\n{keys}\n{CHECK}{more}",
        addresses(reals)
    )
}

const CHECK: &str = "check = { http = \"/\", port = 80, interval = \"1s\", rise = 1, fall = 1, timeout = \"5s\" }\n";
const DENIES: &str =
    "acl = [\"deny 192.0.2.66\", \"deny 2001:db8::66\"]\nacl_default = \"allow\"\n";

fn addresses(reals: &[&str]) -> String {
    let reals = reals
        .iter()
        .map(|real| format!("{{ address = \"{real}\" }}"));
    reals.collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn served_by_soon(weir: &Weir, who: &str) {
    soon(who, || {
        (pool(weir, "web")["served_by"] == who).then_some(())
    });
}

/// Both are reset, and counted as denied and as nothing else.
#[track_caller]
fn are_denied(networks: &Networks, weir: &Weir) {
    let counted = |family: usize, what: &str| {
        let web = pool(weir, "web");
        web["services"][family]["proxy"][what].as_u64().unwrap()
    };
    for (family, who) in BANNED.into_iter().enumerate() {
        let [denied, no_real, flows] =
            ["denied", "no_real", "flows"].map(|what| counted(family, what));
        networks.refuses(who, family);
        soon("it is counted", || {
            (counted(family, "denied") == denied + 1).then_some(())
        });
        assert_eq!(counted(family, "no_real"), no_real);
        assert_eq!(counted(family, "flows"), flows);
        let of = ["web", VIP[family], "80/tcp", "denied"];
        let refused = weir.metric("weir_pool_service_refused_flows_total", &of);
        assert_eq!(refused, Some(denied + 1));
    }
}

#[test]
fn root_access_lists_emergencies_and_methods_hold_for_a_proxy() {
    if skipped(&["nginx", "named"]) {
        return;
    }
    let mut networks = Networks::new();
    let emergency = format!("emergency = [{}]\n{DENIES}", addresses(&[REAL[1]]));
    let weir = Weir::start(&networks.host, &web(&[REAL[0]], &emergency, ""));
    live_soon(&weir, 1);
    assert_eq!(networks.all_served_by(20), [0].into());
    are_denied(&networks, &weir);

    // In an emergency others serve, and whom the list denies nobody does.
    networks.servers[0] = None;
    served_by_soon(&weir, "emergency");
    assert_eq!(networks.all_served_by(20), [1].into());
    are_denied(&networks, &weir);
    let mut kept = networks.open(CLIENT[0], 0, 80).unwrap();
    assert_eq!(kept.ask().unwrap().0, 1);
    networks.serve(0);
    served_by_soon(&weir, "reals");
    assert_eq!(networks.all_served_by(20), [0].into());
    assert_eq!(kept.ask().unwrap().0, 1);
    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    for words in ["emergency", "DENIED", "acl: deny 192.0.2.66, "] {
        assert!(shown.contains(words), "{shown}");
    }

    // So with another pool's reals, which have no part in it otherwise.
    let [vip, vip6] = VIP;
    let spare = format!(
        "[pool.spare]\nforward = \"proxy\"\nvip = [\"{vip}\", \"{vip6}\"]\nports = [\"82/tcp\"]\nreals = [{}]\n{CHECK}",
        addresses(&[REAL[1]])
    );
    let named = web(
        &[REAL[0]],
        &format!("emergency = \"spare\"\n{DENIES}"),
        &spare,
    );
    weir.configure(&named);
    weir.ask(&["reload"]).done();
    assert_eq!(networks.all_served_by(20), [0].into());
    weir.ask(&["real", "drain", "web", REAL[0]]).done();
    served_by_soon(&weir, "pool spare");
    assert_eq!(networks.all_served_by(20), [1].into());
    are_denied(&networks, &weir);
    weir.ask(&["real", "enable", "web", REAL[0]]).done();
    served_by_soon(&weir, "reals");
    assert_eq!(networks.all_served_by(20), [0].into());

    // Another list holds at once.
    weir.configure(&web(
        &REAL,
        "acl = [\"allow 192.0.2.66\"]\nacl_default = \"deny\"",
        "",
    ));
    weir.ask(&["reload"]).done();
    live_soon(&weir, 2);
    let mut flow = networks.open(BANNED[0], 0, 80).unwrap();
    assert!(flow.ask().is_some());
    let refused = networks.open(CLIENT[1], 1, 80);
    assert!(refused.is_none_or(|mut flow| flow.ask().is_none()));

    // By the client's address all connections of it are one real's; in turns each has half.
    let served = |method: &str| {
        weir.configure(&web(&REAL, &format!("method = \"{method}\""), ""));
        weir.ask(&["reload"]).done();
        live_soon(&weir, 2);
        // All of them: a check that this machine was too slow for ends those of its real.
        let served = soon("all to be answered", || {
            let served = (0..40).map(|n| {
                let family = n % 2;
                let mut flow = networks.open(CLIENT[family], family, 80)?;
                Some((family, flow.ask()?.0))
            });
            served.collect::<Option<Vec<_>>>()
        });
        [0, 1].map(|of| {
            let of_family = served.iter().filter(|(family, _)| *family == of);
            of_family.filter(|(_, real)| *real == 0).count()
        })
    };
    let by_source = served("source-hash");
    assert!(
        by_source.iter().all(|count| [0, 20].contains(count)),
        "{by_source:?}"
    );
    let by_port = served("source-port-hash");
    assert!(
        by_port.iter().all(|count| (1..20).contains(count)),
        "{by_port:?}"
    );
    assert_eq!(served("round-robin").iter().sum::<usize>(), 20);

    // A real may serve at a port of its own, and is checked there.
    let elsewhere = web(&[REAL[0]], "", "").replace("port = 80, ", "");
    let elsewhere = elsewhere.replace("\" }]", "\", port = 83 }]");
    assert!(elsewhere.contains("port = 83"), "{elsewhere}");
    weir.configure(&elsewhere);
    weir.ask(&["reload"]).done();
    live_soon(&weir, 1);
    for (family, client) in CLIENT.into_iter().enumerate() {
        let answer = soon("the other port to answer", || {
            networks.open(client, family, 80)?.ask()
        });
        assert_eq!(answer.1, "at 83");
    }
    assert_eq!(pool(&weir, "web")["reals"][0]["port"], 83);

    // Where connections have ended, the next ones go.
    drop(flow);
    weir.configure(&web(&REAL, "method = \"least-connections\"", ""));
    weir.ask(&["reload"]).done();
    live_soon(&weir, 2);
    let open = || {
        let mut flow = networks.open(CLIENT[0], 0, 80).unwrap();
        let (real, _) = flow.ask().unwrap();
        (real, flow)
    };
    let active = |count: [u64; 2]| {
        soon("connections to be counted", || {
            let reals = &pool(&weir, "web")["reals"];
            let now = [0, 1].map(|real| reals[real]["proxy"]["active"].as_u64().unwrap());
            (now == count).then_some(())
        });
    };
    active([0, 0]);
    let mut flows: Vec<_> = (0..20).map(|_| open()).collect();
    active([10, 10]);
    flows.retain(|(real, _)| *real == 0);
    active([10, 0]);
    flows.extend((0..8).map(|_| open()));
    active([10, 8]);
}

//! Reals that stand in while none of a pool's own takes new flows.

use super::*;

/// Two reals, of which the second is the first one's for an emergency.
pub(super) fn config_of(emergency: &str) -> String {
    let reals = format!(
        "[{{ address = \"{}\" }}, {{ address = \"{}\" }}]",
        REAL[0], REAL[1]
    );
    let with = format!("[{{ address = \"{}\" }}]\n{emergency}", REAL[0]);
    config("tcx").replace(&reals, &with)
}

#[track_caller]
pub(super) fn served_by_soon(weir: &Weir, who: &str) {
    soon(&format!("to be served by {who}"), || {
        (pool(weir)["served_by"] == who).then_some(())
    });
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

#[test]
fn root_emergency_reals_serve_while_no_real_does() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let emergency = format!("emergency = [{{ address = \"{}\" }}]", REAL[1]);
    let events = segment.dir.path().join("events.json");
    let sink = format!(
        "[sink.log]\nkind = \"file\"\npath = \"{}\"\nevents = [\"pool\"]\n",
        events.display()
    );
    let weir = Weir::start(&segment.host, &(config_of(&emergency) + &sink));
    let told = |words: &str| -> Value {
        soon(words, || {
            let lines = fs::read_to_string(&events).ok()?;
            let mut all = lines
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            all.find(|event: &Value| event["reason"].as_str().unwrap().contains(words))
        })
    };
    live_soon(&weir, 1);
    served_by_soon(&weir, "reals");
    assert_eq!(segment.all_served_by(20), [0].into());

    // Drained, for maintenance: those that it has stay with it.
    let before: Vec<_> = (0..2)
        .map(|family| {
            let mut flow = segment.open(CLIENT[family], family).unwrap();
            assert_eq!(flow.ask(CLIENT[family]), 0);
            (family, flow)
        })
        .collect();
    weir.ask(&["real", "drain", "web", REAL[0]]).done();
    assert_eq!(segment.all_served_by(20), [1].into());
    for (family, mut flow) in before {
        assert_eq!(flow.ask(CLIENT[family]), 0);
    }
    let event = told("is draining now");
    assert_eq!(event["kind"], "pool");
    assert_eq!(event["pool"], "web");
    assert_eq!(event["subject"], REAL[0]);
    told("its emergency reals take new flows");
    let why =
        "pool web has no live real, its emergency reals take new flows: 192.0.2.11 (draining)";
    assert!(alerts(&weir).contains(why), "{}", alerts(&weir));
    assert_eq!(weir.metric("weir_pool_emergency", &["web"]), Some(1));
    let listed = weir.ask(&["pool", "list"]).done().out;
    assert!(listed.contains("0/1   emergency"), "{listed}");
    assert_eq!(weir.ask(&["pool", "show", "web"]).code, Some(1));

    // When it is back it takes the new flows, and keeps away from those of the others.
    let mut kept: Vec<_> = (0..2)
        .map(|family| (family, segment.open(CLIENT[family], family).unwrap()))
        .collect();
    weir.ask(&["real", "enable", "web", REAL[0]]).done();
    told("its reals take new flows");
    assert_eq!(segment.all_served_by(20), [0].into());
    for (family, flow) in &mut kept {
        assert_eq!(flow.ask(CLIENT[*family]), 1);
    }
    assert_eq!(alerts(&weir), "[]");
    assert_eq!(weir.metric("weir_pool_emergency", &["web"]), Some(0));

    // Dead, by its check.
    segment.kill(0);
    served_by_soon(&weir, "emergency");
    told("real 192.0.2.11 is down: Connection refused");
    assert_eq!(segment.all_served_by(20), [1].into());
    segment.kill(1);
    served_by_soon(&weir, "nobody");
    told("pool web: new flows are dropped");
    let why = "192.0.2.12 (emergency; Connection refused";
    assert!(alerts(&weir).contains(why), "{}", alerts(&weir));
    assert!((0..2).all(|family| segment.open(CLIENT[family], family).is_none()));
}

/// Maintenance of a whole pool: what its reals have stays, and new flows go to who stands in.
#[test]
fn root_a_pool_is_drained_disabled_and_enabled_as_a_whole() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let emergency = format!("emergency = [{{ address = \"{}\" }}]", REAL[1]);
    let other = format!(
        "[pool.www]\nvip = [\"{}\"]\nports = [\"81/tcp\"]\nreals = [{{ address = \"{}\" }}]\n\
         check = {{ port = 80, interval = \"1s\" }}\n",
        VIP[0], REAL[0]
    );
    let mut weir = Weir::start(&segment.host, &(config_of(&emergency) + &other));
    live_soon(&weir, 1);
    let modes = |weir: &Weir| {
        let pools = weir.json(&["pool", "list"])["pools"].clone();
        let reals = { pools.as_array().unwrap().iter() }
            .flat_map(|pool| pool["reals"].as_array().unwrap().clone());
        let mode = |real: &Value| real["mode"].as_str().unwrap().to_owned();
        reals.map(|real| mode(&real)).collect::<Vec<_>>()
    };
    let mut before: Vec<_> = (0..2)
        .map(|family| {
            let mut flow = segment.open(CLIENT[family], family).unwrap();
            assert_eq!(flow.ask(CLIENT[family]), 0);
            (family, flow)
        })
        .collect();
    let said = weir.ask(&["pool", "drain", "web"]).done().out;
    let told = format!("{} of pool web: draining", REAL[0]);
    assert!(
        said.starts_with(&told) && said.lines().count() == 1,
        "{said}"
    );
    // Neither those for an emergency nor the same server in another pool.
    assert_eq!(modes(&weir), ["draining", "enabled", "enabled"]);
    served_by_soon(&weir, "emergency");
    assert_eq!(segment.all_served_by(20), [1].into());
    for (family, flow) in &mut before {
        assert_eq!(flow.ask(CLIENT[*family]), 0);
    }
    weir.kill();
    weir.run();
    served_by_soon(&weir, "emergency");
    assert_eq!(modes(&weir), ["draining", "enabled", "enabled"]);
    let answer = weir.json(&["pool", "disable", "web"]);
    assert_eq!(
        (&answer["reals"][0]["mode"], &answer["saved"]),
        (&"disabled".into(), &true.into())
    );
    weir.ask(&["pool", "enable", "web"]).done();
    served_by_soon(&weir, "reals");
    assert_eq!(segment.all_served_by(20), [0].into());
    weir.ask(&["pool", "drain", "nosuch"])
        .refused(&["there is no pool nosuch; there are: web, www"]);
}

#[test]
fn root_another_pool_serves_in_an_emergency() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let backup = format!(
        "[pool.backup]\nvip = [\"{}\"]\nports = [\"81/tcp\"]\nreals = [{{ address = \"{}\" }}]\n\
         check = {{ port = 80, interval = \"1s\" }}\n",
        VIP[0], REAL[1]
    );
    let config = config_of("emergency = \"backup\"") + &backup;
    let weir = Weir::start(&segment.host, &config);
    let web = |key: &str| {
        let pools = weir.json(&["pool", "list"])["pools"].clone();
        let pools = pools.as_array().unwrap().iter();
        pools.clone().find(|pool| pool["name"] == "web").unwrap()[key].clone()
    };
    let served_by = |who: &str| soon(who, || (web("served_by") == who).then_some(()));
    served_by("reals");
    assert_eq!(segment.all_served_by(20), [0].into());
    // It is asked beforehand at the addresses that its own pool has not.
    let address = format!("{}/128 dev lo", VIP[1]);
    segment.reals[1]
        .ip(&[format!("addr del {address}")])
        .unwrap();
    let lacks = format!(
        "pool web: in an emergency these reals of pool backup would not serve it: {} (no answer at the virtual address {}:",
        REAL[1], VIP[1]
    );
    soon("the alert", || alerts(&weir).contains(&lacks).then_some(()));
    let shown = weir.ask(&["pool", "show", "backup"]).done().out;
    assert!(shown.contains("up"), "{shown}");
    segment.reals[1]
        .ip(&[format!("addr add {address}")])
        .unwrap();
    soon("its end", || (alerts(&weir) == "[]").then_some(()));
    segment.kill(0);
    served_by("pool backup");
    assert_eq!(segment.all_served_by(20), [1].into());
    let why = "pool web has no live real, pool backup takes new flows: 192.0.2.11 (Connection";
    assert!(alerts(&weir).contains(why), "{}", alerts(&weir));
    // Its own state counts.
    weir.ask(&["real", "disable", "backup", REAL[1]]).done();
    served_by("nobody");
    weir.ask(&["real", "enable", "backup", REAL[1]]).done();
    served_by("pool backup");
    segment.serve(0);
    served_by("reals");
    assert_eq!(segment.all_served_by(20), [0].into());
}

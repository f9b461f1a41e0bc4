//! Reals that are asked at the virtual addresses of their pool.

use super::*;

impl PoolNetwork {
    /// Has a real lose a virtual address, or have it back.
    fn change_vip(&self, real: usize, change: &str, vip: &str) {
        let length = if vip.contains(':') { 128 } else { 32 };
        self.reals[real]
            .ip(&[format!("addr {change} {vip}/{length} dev lo")])
            .unwrap();
    }
}

/// As [`config`], with this in its check.
fn with_check(check: &str) -> String {
    config("tcx").replace(
        "check = { interval = \"1s\"",
        &format!("check = {{ interval = \"1s\", rise = 1, fall = 2, {check}"),
    )
}

#[test]
fn root_a_real_without_a_virtual_address_is_down_by_name() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let mut weir = Weir::start(&segment.host, &with_check("http = \"/healthz\""));
    live_soon(&weir, 2);
    for (number, real) in REAL.into_iter().enumerate() {
        for vip in VIP {
            segment.change_vip(number, "del", vip);
            live_soon(&weir, 1);
            assert_eq!(segment.all_served_by(20), [1 - number].into());
            let alerts = weir.json(&["status"])["alerts"].to_string();
            let why = format!(
                "pool web does without {real} (no answer at the virtual address {vip}: the real needs it on its loopback interface (weir real-side))"
            );
            assert!(alerts.contains(&why), "{alerts}");
            segment.change_vip(number, "add", vip);
            live_soon(&weir, 2);
        }
    }
    // Nothing is left half open at a real.
    for real in &segment.reals {
        let open = real.run("ss", &["-Htan", "state", "syn-recv"]).unwrap();
        assert_eq!(String::from_utf8_lossy(&open.stdout), "");
    }
    // What no real has is no reason to serve nobody.
    (0..2).for_each(|number| segment.change_vip(number, "del", VIP[1]));
    soon("the alert", || {
        let alerts = weir.json(&["status"])["alerts"].to_string();
        let told =
            "pool web: all reals fail at a virtual address, so that none is taken out for it";
        alerts.contains(told).then_some(())
    });
    live_soon(&weir, 2);
    (0..2).for_each(|number| segment.change_vip(number, "add", VIP[1]));
    soon("the end of the alert", || {
        let alerts = weir.json(&["status"])["alerts"].to_string();
        (!alerts.contains("virtual address")).then_some(())
    });
    // By a setting it is not asked.
    weir.configure(&with_check("vip = false"));
    weir.ask(&["reload"]).done();
    segment.change_vip(0, "del", VIP[0]);
    let since = std::time::Instant::now();
    while since.elapsed() < std::time::Duration::from_secs(5) {
        assert_eq!(pool(&weir)["live"], 2);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    // At a start as well.
    weir.configure(&with_check("port = 80"));
    weir.ask(&["reload"]).done();
    live_soon(&weir, 1);
    weir.kill();
    weir.run();
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
}

/// A server that listens at the real's own address, and not at those of the pool.
#[test]
fn root_a_real_that_does_not_listen_at_a_virtual_address_is_down() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &with_check("port = 80"));
    live_soon(&weir, 2);
    segment.kill(0);
    live_soon(&weir, 1);
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", "80", "--bind", REAL[0]]);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = segment.reals[0].spawn(server).unwrap();
    let of = |vip| format!("nobody listens at the virtual address {vip}, port 80");
    soon("the reason", || {
        let shown = weir.ask(&["pool", "show", "web"]).out;
        VIP.iter().any(|vip| shown.contains(&of(vip))).then_some(())
    });
    assert_eq!(pool(&weir)["live"], 1);
}

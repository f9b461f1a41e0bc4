//! As many virtual addresses as there may be, and a table of flows of another size.

use std::{net::IpAddr, time::Instant};

use super::*;

/// Addresses of each family beside those of the other pool, which serves two ports at two.
const VIPS: usize = (weir_bpf::balance::MAX_SERVICES - 4) / 2;

fn vip(family: usize, number: usize) -> IpAddr {
    let [high, low] = (number as u16).to_be_bytes();
    match family {
        0 => IpAddr::from([10, 80, high, low]),
        _ => IpAddr::from([0x2001, 0xdb8, 0x80, 0, 0, 0, 0, number as u16]),
    }
}

#[test]
fn root_ten_thousand_virtual_addresses_are_served() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let networks = ["10.80.0.0/16", "2001:db8:80::/64"];
    let via = ["192.0.2.1", "2001:db8::1"];
    for (network, via) in networks.into_iter().zip(via) {
        let line = format!("route add {network} via {via}");
        segment.client.ip(&[line]).unwrap();
        for real in &segment.reals {
            let line = format!("route add local {network} dev lo");
            real.ip(&[line]).unwrap();
        }
    }
    let of_family = |family| (0..VIPS).map(move |n| format!("\"{}\"", vip(family, n)));
    let vips: Vec<_> = of_family(0).chain(of_family(1)).collect();
    let many = |vips: &[String]| {
        format!(
            "{}[pool.many]\nvip = [{}]\nports = [\"80/tcp\"]\n\
             reals = [{{ address = \"{}\" }}, {{ address = \"{}\" }}]\ncheck = {{ interval = \"1s\" }}\n",
            config("tcx"),
            vips.join(", "),
            REAL[0],
            REAL[1]
        )
    };
    let begun = Instant::now();
    let weir = Weir::start(&segment.host, &many(&vips));
    println!("started after {:?}", begun.elapsed());
    soon("live reals", || {
        let pools = weir.json(&["pool", "list"])["pools"].clone();
        let live = pools.as_array().unwrap().iter();
        { live }.all(|pool| pool["live"] == 2).then_some(())
    });
    let ask = |family: usize, number: usize| {
        let (from, to) = (
            addr(CLIENT[family]),
            SocketAddr::new(vip(family, number), 80),
        );
        let opened = traffic::tcp_open(&segment.client, Some(from), to, SOON);
        let (stream, _) = opened.unwrap_or_else(|error| panic!("{to}: {error}"));
        stream.set_read_timeout(Some(SOON)).unwrap();
        Flow(stream).ask(CLIENT[family])
    };
    let served: BTreeSet<_> = (0..VIPS)
        .step_by(VIPS / 40)
        .chain([VIPS - 1])
        .flat_map(|number| [(0, number), (1, number)])
        .map(|(family, number)| ask(family, number))
        .collect();
    assert_eq!(served, BTreeSet::from([0, 1]));
    assert_eq!(segment.all_served_by(40), BTreeSet::from([0, 1]));
    let shown = weir.json(&["pool", "show", "many"]);
    let services = shown["services"].as_array().unwrap();
    assert_eq!(services.len(), 2 * VIPS);
    let last = services
        .iter()
        .find(|one| one["vip"] == vip(1, VIPS - 1).to_string());
    assert!(last.unwrap()["packets"].as_u64().unwrap() >= 5, "{last:?}");
    // Of a metric there are 1,024 samples.
    let label = vip(0, 0).to_string();
    let packets = weir.metric("weir_pool_service_packets_total", &["many", &label]);
    assert!(packets.unwrap() >= 5, "{packets:?}");

    // One more is refused, and nothing is changed.
    let more = [&vips[..], &["\"10.81.0.1\"".to_owned()]].concat();
    weir.configure(&many(&more));
    let refused = weir.ask(&["reload"]);
    refused.refused(&["16385 virtual addresses with a port; allowed: at most 16384"]);
    ask(0, VIPS - 1);
    // Half of them go, and the others are served as before.
    let begun = Instant::now();
    weir.configure(&many(&vips[VIPS..]));
    weir.ask(&["reload"]).done();
    println!("reloaded after {:?}", begun.elapsed());
    ask(1, 0);
    ask(1, VIPS - 1);
    let gone = SocketAddr::new(vip(0, 0), 80);
    traffic::tcp_connect(&segment.client, Some(addr(CLIENT[0])), gone, SILENCE).unwrap_err();
}

#[test]
fn root_another_number_of_flows_waits_for_detach() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let with = |flows: &str| config("tcx").replace("[pool.web]", &format!("{flows}\n[pool.web]"));
    let mut weir = Weir::start(&segment.host, &with("flows = 100000"));
    live_soon(&weir, 2);
    let shown = weir.ask(&["check"]).done().out;
    let told = "131072 remembered, in 4 MiB of the kernel's memory";
    assert!(shown.contains(told), "{shown}");
    let alerts = |weir: &Weir| weir.json(&["status"])["alerts"].to_string();
    assert_eq!(alerts(&weir), "[]");
    let mut flows = segment.flows();
    let mut go_on = |what: &str| {
        for (family, number, flow) in &mut flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number, "{what}");
        }
    };
    go_on("as they began");
    // Without the table one of two would move: new flows all go to the second real.
    weir.ask(&["real", "drain", "web", REAL[0]]).done();
    let told = "the kernel has room for 131072 flows, and [balance] wants flows = 1048576";
    weir.configure(&with("flows = 1048576"));
    weir.ask(&["reload"]).done();
    assert!(alerts(&weir).contains(told), "{}", alerts(&weir));
    go_on("after a reload");
    weir.stop();
    weir.run();
    assert!(alerts(&weir).contains(told), "{}", alerts(&weir));
    live_soon(&weir, 1);
    go_on("after a start");
    weir.configure(&with("flows = 131072"));
    weir.ask(&["reload"]).done();
    assert!(!alerts(&weir).contains(told), "{}", alerts(&weir));
    weir.configure(&with("flows = 1048576"));
    weir.stop();
    weir.detach().done();
    weir.run();
    assert!(!alerts(&weir).contains("flows ="), "{}", alerts(&weir));
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
}

//! Virtual addresses that weir holds itself: taken when nobody else has them, announced,
//! kept over SIGKILL, and taken away by whoever added them.

mod common;
#[path = "root_vips/vlan.rs"]
mod vlan;

use common::{
    Weir, addr,
    lan::{Lan, VIP, has, served_by},
    skipped, soon,
};
use serde_json::Value;
use weir_core::neighbour;
use weir_netlab::Namespace;
use weir_testkit::traffic;

fn config(announce: bool) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n\
         [balance]\ninterface = \"eth0\"\nannounce = {announce}\n\
         [pool.web]\nvip = [\"{}\", \"{}\", \"192.0.2.81\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"192.0.2.11\" }}]\ncheck = {{ interval = \"1s\" }}\n",
        VIP[0], VIP[1]
    )
}

fn vip(weir: &Weir, address: &str) -> Value {
    let vips = weir.json(&["status"])["vips"].clone();
    let mut vips = vips.as_array().unwrap().iter();
    let found = vips.find(|vip| vip["address"] == address);
    found.cloned().unwrap_or(Value::Null)
}

#[track_caller]
fn soon_is(weir: &Weir, state: &str) {
    for address in VIP {
        soon(&format!("{address} to be {state}"), || {
            (vip(weir, address)["state"] == state).then_some(())
        });
    }
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

/// What a client has in its cache for an address.
fn neighbour_of(client: &Namespace, address: &str) -> String {
    let shown = client.run("ip", &["neigh", "show", address]).unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn root_a_virtual_address_is_taken_announced_and_kept() {
    if skipped(&["nginx", "ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let (host, client) = (lan.join("host", 1), lan.join("client", 100));
    let real = lan.real(11);
    real.ip(&["addr add 192.0.2.81/32 dev lo".into()]).unwrap();
    host.ip(&["addr add 192.0.2.81/32 dev eth0".into()])
        .unwrap();
    // Somebody else had them, as the client remembers.
    let old = "02:00:00:00:00:99";
    for address in VIP {
        let line = format!("neigh replace {address} lladdr {old} nud stale dev eth0");
        client.ip(&[line]).unwrap();
    }
    let mut weir = Weir::start(&host, &config(true));
    soon_is(&weir, "held");
    let mac = lan.mac("host");
    for address in VIP {
        assert!(has(&host, address));
        soon("the client to hear of it", || {
            neighbour_of(&client, address).contains(&mac).then_some(())
        });
        soon("the real to answer", || {
            served_by(&client, None, addr(address))
        });
        assert_eq!(weir.metric("weir_vip_held", &[address]), Some(1));
    }
    assert_eq!(vip(&weir, "192.0.2.81")["state"], "unmanaged");
    let shown = weir.ask(&["status"]).out;
    let held = format!("virtual addresses held on eth0: {}, {}", VIP[0], VIP[1]);
    assert!(shown.contains(&held), "{shown}");
    assert_eq!(alerts(&weir), "[]");

    // Taken from the interface by somebody: it is back.
    host.ip(&[format!("addr del {}/32 dev eth0", VIP[0])])
        .unwrap();
    soon("it to be back", || has(&host, VIP[0]).then_some(()));

    // Without a daemon they are served on, and the next one knows its own.
    for is_crash in [true, false] {
        match is_crash {
            true => weir.kill(),
            false => weir.stop(),
        }
        for address in VIP {
            assert_eq!(
                served_by(&client, None, addr(address)),
                Some(11),
                "{address}"
            );
        }
        weir.run();
        soon_is(&weir, "held");
    }
    weir.configure(&config(false));
    weir.ask(&["reload"]).done();
    assert!(VIP.iter().all(|address| !has(&host, address)));
    weir.configure(&config(true));
    weir.ask(&["reload"]).done();
    soon_is(&weir, "held");
    weir.stop();
    let said = weir.detach().done().out;
    assert!(
        said.contains("took away 192.0.2.80 from eth0, 2001:db8::80 from eth0"),
        "{said}"
    );
    assert!(VIP.iter().all(|address| !has(&host, address)));
    // The administrator's own stays, until he hands it over.
    assert!(has(&host, "192.0.2.81"));
    weir.run();
    assert_eq!(vip(&weir, "192.0.2.81")["state"], "unmanaged");
    host.ip(&["addr del 192.0.2.81/32 dev eth0".into()])
        .unwrap();
    weir.ask(&["reload"]).done();
    soon("it to be weir's", || {
        (vip(&weir, "192.0.2.81")["state"] == "held").then_some(())
    });
}

#[test]
fn root_a_virtual_address_that_another_host_has_is_refused() {
    if skipped(&["ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let (host, other) = (lan.join("host", 1), lan.join("other", 7));
    let change = |verb: &str| {
        let lines = VIP.map(|vip| match vip.contains(':') {
            true => format!("addr {verb} {vip}/128 dev eth0 nodad"),
            false => format!("addr {verb} {vip}/32 dev eth0"),
        });
        other.ip(&lines).unwrap();
    };
    change("add");
    let weir = Weir::start(&host, &config(true));
    soon_is(&weir, "refused");
    let mac = lan.mac("other");
    for address in VIP {
        assert!(!has(&host, address));
        assert_eq!(vip(&weir, address)["other"], mac.as_str());
        let told = format!("{address} is not taken: {mac} on eth0 has it");
        assert!(alerts(&weir).contains(&told), "{}", alerts(&weir));
        assert_eq!(weir.metric("weir_vip_held", &[address]), Some(0));
    }
    let shown = weir.ask(&["status"]).out;
    assert!(
        shown.contains("virtual address 192.0.2.80 on eth0: refused, "),
        "{shown}"
    );

    // It is taken once he is gone.
    change("del");
    soon_is(&weir, "held");
    let of_vips = |alerts: &str| alerts.contains("vip-");
    assert!(!of_vips(&alerts(&weir)));

    // Who claims them later, again and again, is told of and answered once.
    let sent = || -> u64 {
        let shown = host
            .run("ip", &["-j", "-s", "link", "show", "eth0"])
            .unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
    };
    // The announcements of the taking are over.
    soon("the host to be quiet", || {
        let before = sent();
        std::thread::sleep(std::time::Duration::from_millis(2500));
        (sent() - before < 3).then_some(())
    });
    let from: Vec<u8> = mac
        .split(':')
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect();
    let from = from.try_into().unwrap();
    let frames: Vec<_> = VIP
        .iter()
        .flat_map(|vip| vec![neighbour::announcement(from, addr(vip)); 100])
        .collect();
    let before = sent();
    let all = frames.iter().map(Vec::as_slice);
    assert_eq!(traffic::send_frames(&other, "eth0", all).unwrap(), 200);
    soon_is(&weir, "contested");
    for address in VIP {
        soon("all of them to be counted", || {
            (vip(&weir, address)["conflicts"].as_u64()? >= 100).then_some(())
        });
        let told = format!("{mac} on eth0 says that it has {address}, which this host holds");
        assert!(alerts(&weir).contains(&told), "{}", alerts(&weir));
        assert!(has(&host, address));
    }
    assert!((2..20).contains(&(sent() - before)), "{}", sent() - before);

    // What is no ARP or neighbour discovery is counted, and says nothing of anybody.
    let malformed = || {
        weir.metric("weir_vip_malformed_frames_total", &["eth0"])
            .unwrap()
    };
    let before = malformed();
    let mut wrong = Vec::new();
    for vip in ["192.0.2.80", "2001:db8::80"] {
        let mut frame = neighbour::announcement([2, 0, 0, 0, 0, 0x55], addr(vip));
        let at = if vip.contains(':') { 21 } else { 18 };
        frame[at] ^= 1; // the hop limit, the length of an address
        wrong.extend(vec![frame; 100]);
    }
    let all = wrong.iter().map(Vec::as_slice);
    assert_eq!(traffic::send_frames(&other, "eth0", all).unwrap(), 200);
    soon("all of them to be counted", || {
        (malformed() - before == 200).then_some(())
    });
    assert!(!alerts(&weir).contains("02:00:00:00:00:55"));
}

//! A pool in a VLAN: the balancer, its client and its reals have their addresses on a device
//! of VLAN 10 each, and weir holds the virtual addresses there.

use std::{collections::BTreeSet, net::IpAddr};

use weir_testkit::traffic::ping;

use super::*;
use crate::common::{
    SOON,
    lan::{VLAN_DEVICE, device_has},
};

/// weir protects this interface, and balances in the VLAN.
fn in_vlan(protected: &str) -> String {
    format!(
        "interfaces = [\"{protected}\"]\nbackend = \"auto\"\n\
         [balance]\ninterface = \"{VLAN_DEVICE}\"\nannounce = true\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"192.0.2.11\" }}, {{ address = \"2001:db8::12\" }}]\n\
         check = {{ http = \"/\", interval = \"1s\", rise = 1, fall = 1, timeout = \"5s\" }}\n",
        VIP[0], VIP[1]
    )
}

#[track_caller]
fn live_soon(weir: &Weir, count: u64) {
    soon(&format!("{count} live reals"), || {
        (weir.json(&["pool", "list"])["pools"][0]["live"] == count).then_some(())
    });
}

/// The reals of so many connections to a virtual address.
#[track_caller]
fn served(client: &Namespace, vip: IpAddr, count: usize) -> BTreeSet<u8> {
    let served = (0..count).map(|_| served_by(client, None, vip).expect("an answer"));
    served.collect()
}

#[test]
fn root_a_pool_in_a_vlan_is_served_checked_and_announced() {
    if skipped(&["nginx", "ip", "bridge"]) {
        return;
    }
    for protected in ["eth0", VLAN_DEVICE] {
        let Some(mut lan) = Lan::of_vlan() else {
            return;
        };
        println!("interfaces = [{protected:?}]");
        let (host, client) = (lan.join("host", 1), lan.join("client", 100));
        for number in [11, 12] {
            lan.real(number);
        }
        // Somebody else had the virtual addresses, as the client remembers.
        for vip in VIP {
            let line =
                format!("neigh replace {vip} lladdr 02:00:00:00:00:99 nud stale dev {VLAN_DEVICE}");
            client.ip(&[line]).unwrap();
        }
        let mut weir = Weir::start(&host, &in_vlan(protected));
        live_soon(&weir, 2);
        soon_is(&weir, "held");
        let mac = lan.mac("host");
        for vip in VIP {
            assert!(device_has(&host, VLAN_DEVICE, vip) && !has(&host, vip));
            soon("the client to hear of it", || {
                neighbour_of(&client, vip).contains(&mac).then_some(())
            });
            // To whom nobody has told of it, it is answered for.
            let line = format!("neigh del {vip} dev {VLAN_DEVICE}");
            client.ip(&[line]).unwrap();
            ping(&client, None, addr(vip), SOON).unwrap();
            assert!(neighbour_of(&client, vip).contains(&mac));
            assert_eq!(served(&client, addr(vip), 40), BTreeSet::from([11, 12]));
        }
        let pool = weir.json(&["pool", "show", "web"]);
        for real in pool["reals"].as_array().unwrap() {
            assert!(real["flows"].as_u64() > Some(10), "{pool}");
        }
        assert_eq!(alerts(&weir), "[]");

        // Checks go through the VLAN, too.
        lan.part(["host", "real11"], true);
        live_soon(&weir, 1);
        for vip in VIP {
            assert_eq!(served(&client, addr(vip), 10), BTreeSet::from([12]));
        }
        lan.part(["host", "real11"], false);
        live_soon(&weir, 2);

        weir.kill();
        for vip in VIP {
            assert_eq!(served(&client, addr(vip), 40), BTreeSet::from([11, 12]));
        }
        weir.run();
        soon_is(&weir, "held");
        weir.stop();
        let said = weir.detach().done().out;
        let told =
            format!("took away 192.0.2.80 from {VLAN_DEVICE}, 2001:db8::80 from {VLAN_DEVICE}");
        assert!(said.contains(&told), "{said}");
    }
}

//! Virtual routers of one family alone: the kernel may be without the other one.

use super::*;

/// The raw sockets of VRRP in a namespace, of IPv4 and of IPv6.
fn sockets(host: &Namespace) -> [usize; 2] {
    let port = format!(":{PROTOCOL:04X}");
    ["/proc/net/raw", "/proc/net/raw6"].map(|file| {
        let shown = host.run("cat", &[file]).unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        let local = shown
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        local.filter(|local| local.ends_with(&port)).count()
    })
}

/// On a host with `ipv6.disable=1` any socket of IPv6 is refused, and with it all virtual
/// routers would be.
#[test]
fn root_a_virtual_router_has_sockets_of_its_own_families_alone() {
    if skipped(&["cat", "ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let host = lan.join("one", 2);
    let config = |addresses: &[&str]| {
        format!(
            "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[vrrp.edge]\nid = 51\n\
             interface = \"eth0\"\ninterval = {INTERVAL}\naddresses = {addresses:?}\n"
        )
    };
    let weir = Weir::start(&host, &config(&VIP[..1]));
    for (addresses, open) in [(&VIP[..1], [1, 0]), (&VIP[1..], [0, 1]), (&VIP, [1, 1])] {
        weir.configure(&config(addresses));
        weir.ask(&["reload"]).done();
        soon("all of its routers to be active", || {
            let routers = routers(&weir);
            let are_active = routers.iter().all(|router| router["state"] == "active");
            (are_active && routers.len() == addresses.len()).then_some(())
        });
        assert!(addresses.iter().all(|vip| has(&host, vip)));
        // Advertisements are sent by sockets that are open for a moment.
        soon(&format!("{open:?} sockets"), || {
            (sockets(&host) == open).then_some(())
        });
        assert_eq!(alerts(&weir), "[]");
    }
}

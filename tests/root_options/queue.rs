//! Options by way of netfilter's queue, for hosts without tcx.

use weir_netlab::Namespace;

use super::{
    common::soon,
    inject::from,
    lab::{Arrived, EAST, Injecting, Lab, WEST},
};

const CHAIN: &str = "weir.options-30565";
const TO_EAST: [&str; 4] = ["--to", EAST[0], "--to", EAST[1]];

fn lab() -> Option<Lab> {
    Lab::new(&["iptables-save", "ip6tables-save"])
}

fn inject(lab: &Lab, words: &[&str]) -> Injecting {
    let place = ["--interface", "eth0", "--queue"];
    let words = [words, &TO_EAST].concat();
    lab.inject_on(&lab.west, &place, &words, "on what leaves eth0")
}

/// Whether the tables of a family have something of ours.
fn has_chain(space: &Namespace, program: &str) -> bool {
    let saved = space.run(program, &["-t", "mangle"]).unwrap().stdout;
    String::from_utf8(saved).unwrap().contains(CHAIN)
}

fn has_rules(lab: &Lab) -> [bool; 2] {
    ["iptables-save", "ip6tables-save"].map(|program| has_chain(&lab.west, program))
}

/// Every packet of a download and an upload has the options, also of TCP: none is a
/// superpacket any more. The MSS leaves them room.
#[test]
fn root_curl_works_with_options_by_a_queue() {
    let Some(lab) = lab() else { return };
    for (site, v4, v6) in [
        (&lab.west, "192.0.2.2", "2001:db8:1::2"),
        (&lab.east, "198.51.100.2", "2001:db8:2::2"),
    ] {
        let routes = [v4, v6].map(|via| format!("route change default via {via} advmss 1300"));
        site.ip(&routes).unwrap();
    }
    type Has = fn(&Arrived) -> bool;
    let cases: [(&[&str], Has, bool); 7] = [
        (
            &["ip:rr"],
            |p| p.ip_options.len() == 40 && p.ip_options[0] == 7,
            true,
        ),
        (
            &["tcp:exp-254"],
            |p| p.tcp_options.starts_with(&[254, 6, 0xde, 0xad, 0, 1, 1, 1]),
            true,
        ),
        (
            &["tcp:exp-254"],
            |p| p.tcp_options.starts_with(&[254, 6, 0xde, 0xad, 0, 1, 1, 1]),
            false,
        ),
        (
            &["ip:94/8", "tcp:253/8"],
            |p| p.ip_options.len() == 8 && p.tcp_options.starts_with(&[253, 8]),
            true,
        ),
        (
            &["dst:exp-1e/20"],
            |p| p.extensions.len() == 1 && p.extensions[0].0 == 60 && p.extensions[0].1[2] == 0x1e,
            false,
        ),
        (
            &["ext:43", "hop:padn"],
            |p| p.extensions.iter().map(|e| e.0).eq([0, 43]),
            false,
        ),
        (
            &["dst:exp-1e", "hop:exp-1e", "tcp:exp-253"],
            |p| p.extensions.iter().map(|e| e.0).eq([0, 60]) && p.tcp_options[0] == 253,
            false,
        ),
    ];
    for (options, has, is_v4) in cases {
        let address = EAST[usize::from(!is_v4)];
        let capture = lab.capture(&lab.east);
        let words = [options, &["--protocol", "tcp"]].concat();
        let injecting = inject(&lab, &words);
        assert_eq!(has_rules(&lab), [true; 2]);
        assert!(lab.serves(address), "{options:?}");
        let said = injecting.end(2);
        let packets = from(&capture.frames(), WEST);
        let segments: Vec<_> = packets.iter().filter(|p| p.protocol == 6).collect();
        let with = segments.iter().filter(|packet| has(packet)).count();
        assert!(with > 500, "{options:?}: {with} of {}", segments.len());
        // Those of the last connection's end may come when it has ended.
        assert!(
            with + 2 >= segments.len(),
            "{options:?}: {with} of {}",
            segments.len()
        );
        let changed = said["changed"].as_u64().unwrap() as usize;
        assert!(with.abs_diff(changed) <= 2, "{options:?} {with} {said}");
        let left = said["left"].as_object().unwrap();
        assert!(left.values().all(|count| count == 0), "{options:?} {said}");
        for packet in &packets {
            assert!(packet.has_right_checksums, "{options:?} {packet:?}");
        }
        assert!(
            segments.iter().any(|p| has(p) && p.payload > 1000),
            "{options:?}"
        );
        assert_eq!(has_rules(&lab), [false; 2], "{options:?}");
        assert!(lab.serves(address));
        assert!(
            !from(&capture.frames(), WEST).iter().any(has),
            "{options:?}"
        );
    }
    assert_eq!(lab.checksum_errors(&lab.east), 0);
}

#[test]
fn root_datagrams_carry_options_by_a_queue() {
    let Some(lab) = lab() else { return };
    for address in EAST {
        let capture = lab.capture(&lab.east);
        let injecting = inject(&lab, &["udp:time", "udp:exp", "--protocol", "udp"]);
        for bytes in [0, 1, 40, 41, 1000, 1001] {
            assert!(lab.echoes(address, bytes), "{address} {bytes}");
        }
        // With the options it would not fit.
        let most = if address.contains(':') { 1440 } else { 1460 };
        assert!(lab.echoes(address, most), "{address}");
        let said = injecting.end(15);
        assert_eq!(
            (&said["changed"], &said["left"]["too_big"]),
            (&6.into(), &1.into()),
            "{said}"
        );
        let packets = from(&capture.frames(), WEST);
        let whole: Vec<_> = packets.iter().filter(|p| p.protocol == 17).collect();
        for packet in &whole {
            assert!(packet.has_right_checksums, "{packet:?}");
        }
        let with = whole.iter().filter(|packet| {
            let area = &packet.surplus;
            area.windows(4).any(|part| part == [127, 8, 0xde, 0xad])
        });
        assert_eq!(with.count(), 6, "{address}");
    }
    assert_eq!(lab.checksum_errors(&lab.east), 0);
}

/// Nobody is asked about a family whose packets are not meant: by that alone the old kind of
/// iptables makes a table of it, of which the new kind warns from then on.
#[test]
fn root_a_queue_for_ipv4_makes_no_table_of_ipv6() {
    let Some(lab) = lab() else { return };
    let tables = || {
        let names = lab.west.run("cat", &["/proc/net/ip6_tables_names"]);
        names.map_or_else(|_| Vec::new(), |names| names.stdout)
    };
    assert_eq!(tables(), b"");
    let place = ["--interface", "eth0", "--queue"];
    let words = ["ip:exp-94", "--to", "198.51.100.0/24"];
    let injecting = lab.inject_on(&lab.west, &place, &words, "on what leaves eth0");
    assert!(has_chain(&lab.west, "iptables-save"));
    injecting.end(2);
    assert_eq!(String::from_utf8_lossy(&tables()), "");
}

/// However it ends, packets go on: rules go by a signal, and with the next one after a SIGKILL.
#[test]
fn root_the_rules_of_a_queue_end_with_weir() {
    let Some(lab) = lab() else { return };
    let is_bare = || {
        let capture = lab.capture(&lab.east);
        assert!(lab.echoes(EAST[0], 100));
        let packets = from(&capture.frames(), WEST);
        !packets.is_empty() && packets.iter().all(|packet| packet.ip_options.is_empty())
    };
    for signal in [1, 2, 15] {
        let injecting = inject(&lab, &["ip:exp-94"]);
        assert!(!is_bare());
        injecting.end(signal);
        assert_eq!(has_rules(&lab), [false; 2], "signal {signal}");
        assert!(is_bare());
    }
    let injecting = inject(&lab, &["ip:exp-94"]);
    let second = ["options", "inject", "ip:rr", "-i", "eth0", "--queue"];
    lab.weir(&lab.west, &second).refused(&["queue 30565: "]);
    let another = [
        "options",
        "inject",
        "ip:rr",
        "-i",
        "eth0",
        "--queue=7",
        "--for",
        "1s",
    ];
    lab.weir(&lab.west, &another)
        .says_no(&["packets with the options: 0"]);
    assert!(!is_bare(), "the first one goes on");
    injecting.end(9);
    soon("packets without options", || is_bare().then_some(()));
    assert_eq!(
        has_rules(&lab),
        [true; 2],
        "nobody was left to take them away"
    );
    // The next one takes their place.
    let injecting = inject(&lab, &["ip:exp-94"]);
    let rules = || {
        let saved = lab
            .west
            .run("iptables-save", &["-t", "mangle"])
            .unwrap()
            .stdout;
        let text = String::from_utf8(saved).unwrap();
        let leads = |line: &&str| line.ends_with(&format!("-j {CHAIN}"));
        text.lines().filter(leads).count()
    };
    assert_eq!(rules(), 1, "one jump leads there");
    injecting.end(2);
    assert_eq!(has_rules(&lab), [false; 2]);
    for (words, said) in [
        (
            &["ip:rr", "-i", "nowhere0", "--queue"][..],
            "interface nowhere0: ",
        ),
        (
            &["ip:rr", "-i", "eth0", "--queue=65536"],
            "65536 is not in 0..=65535",
        ),
        (
            &["tcp:exp-254", "--cgroup", "/nowhere", "--queue"],
            "cannot be used with",
        ),
    ] {
        let words = [&["options", "inject"], words].concat();
        lab.weir(&lab.west, &words).refused(&[said]);
    }
}

//! What follows for weir from what was seen of an interface: what an
//! administrator should know before native XDP is tried there, or could change.

use super::result_file::SeenInterface;

/// Frames up to this length fit into a page with what native XDP needs beside
/// them; drivers differ by some bytes.
const PAGE_MTU: u32 = 3498;

/// In the order in which they matter; none where nothing is to be said.
pub(super) fn advice(seen: &SeenInterface, processors: u32) -> Vec<String> {
    let name = &seen.name;
    let on = |offload: &str| seen.offloads.iter().any(|on| on == offload);
    let mut advice = Vec::new();
    if !seen.ethernet {
        advice.push(
            "it carries no Ethernet frames, and the hooks of XDP and tc judge nothing else: \
             backend = \"auto\" takes netfilter"
                .to_owned(),
        );
        return advice;
    }
    if seen.driver == "bridge" {
        advice.push(
            "on a bridge weir sees what is for this host; name its ports for what it forwards, too"
                .to_owned(),
        );
    }
    if seen
        .programs
        .iter()
        .any(|program| program.starts_with("xdp"))
    {
        advice.push(
            "an XDP program is there, and an interface has one at most: unless it is weir's, \
             auto takes a hook behind it"
                .to_owned(),
        );
    }
    match seen.native_xdp {
        Some(true) => {}
        None => {
            advice.push(format!(
                "whether the driver carries native XDP shows when it is tried: \
                 --interface {name} --attach"
            ));
        }
        // Nothing below is of interest to the other hooks.
        Some(false) => return advice,
    }
    if let Some(mtu) = seen.mtu
        && mtu > PAGE_MTU
        && !is_software(&seen.driver)
        && seen.native_frags != Some(true)
    {
        advice.push(format!(
            "for frames of MTU {mtu} the driver carries no native XDP: `ip link set {name} mtu \
             {PAGE_MTU}` at most, or a hook behind it"
        ));
    }
    if on("lro") {
        advice.push(format!(
            "drivers refuse native XDP while LRO is on: `ethtool -K {name} lro off`"
        ));
    }
    if seen.driver == "virtio_net" {
        if on("rx-gro-hw") {
            advice.push(format!(
                "native XDP switches the host's GRO off, so that TCP takes more packets here; \
                 where it is refused, `ethtool -K {name} rx-gro-hw off`"
            ));
        }
        if let Some([now, most]) = seen.queues
            && now.saturating_add(processors) > most
        {
            advice.push(format!(
                "native XDP wants a queue for each of {processors} processors beside {now}, and \
                 there are {most}: Linux before 5.13 refuses, later ones are slower to answer for \
                 bans that reject and at decoy ports; the hypervisor gives more (`queues=` of qemu)"
            ));
        }
    }
    if let Some([now, most]) = seen.queues
        && now < processors.min(most)
    {
        advice.push(format!(
            "{now} receive {} for {processors} processors: a flood is dropped by as many; \
             `ethtool -L {name} combined {}`",
            if now == 1 { "queue" } else { "queues" },
            processors.min(most)
        ));
    }
    advice
}

/// Whether the driver's frames are in pages of the stack's.
fn is_software(driver: &str) -> bool {
    matches!(driver, "veth" | "tun" | "loopback")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(driver: &str, native: Option<bool>) -> SeenInterface {
        SeenInterface {
            name: "eth0".to_owned(),
            driver: driver.to_owned(),
            ethernet: true,
            mtu: Some(1500),
            native_xdp: native,
            native_frags: Some(false),
            offloads: vec!["gro".to_owned()],
            queues: None,
            programs: Vec::new(),
            tried: Vec::new(),
            advice: Vec::new(),
        }
    }

    #[test]
    fn each_obstacle_has_its_advice() {
        type Change = fn(&mut SeenInterface);
        let cases: [(&str, Option<bool>, Change, &[&str]); 13] = [
            ("igb", Some(true), |_| {}, &[]),
            ("veth", Some(true), |seen| seen.mtu = Some(9000), &[]),
            (
                "igb",
                Some(true),
                |seen| seen.mtu = Some(9000),
                &["for frames of MTU 9000"],
            ),
            (
                "mlx5_core",
                Some(true),
                |seen| (seen.mtu, seen.native_frags) = (Some(9000), Some(true)),
                &[],
            ),
            ("igb", None, |_| {}, &["--interface eth0 --attach"]),
            (
                "ixgbe",
                Some(true),
                |seen| seen.offloads = vec!["lro".to_owned()],
                &["`ethtool -K eth0 lro off`"],
            ),
            (
                "r8169",
                Some(false),
                |seen| seen.offloads = vec!["lro".to_owned()],
                &[],
            ),
            (
                "wireguard",
                Some(false),
                |seen| seen.ethernet = false,
                &["auto\" takes netfilter"],
            ),
            ("bridge", Some(false), |_| {}, &["name its ports"]),
            (
                "igb",
                Some(true),
                |seen| seen.programs = vec!["xdp: theirs (id 7)".to_owned()],
                &["an XDP program is there"],
            ),
            (
                "virtio_net",
                Some(true),
                |seen| {
                    seen.offloads = vec!["rx-gro-hw".to_owned()];
                    seen.queues = Some([4, 4]);
                },
                &[
                    "rx-gro-hw off",
                    "each of 4 processors beside 4, and there are 4",
                ],
            ),
            (
                "virtio_net",
                Some(true),
                |seen| seen.queues = Some([4, 8]),
                &[],
            ),
            (
                "igb",
                Some(true),
                |seen| seen.queues = Some([1, 8]),
                &[
                    "1 receive queue for 4 processors: a flood is dropped by as many; `ethtool -L eth0 combined 4`",
                ],
            ),
        ];
        for (driver, native, change, expected) in cases {
            let mut seen = seen(driver, native);
            change(&mut seen);
            let found = advice(&seen, 4);
            assert_eq!(found.len(), expected.len(), "{seen:?}: {found:?}");
            for (remark, words) in found.iter().zip(expected) {
                assert!(remark.contains(words), "{remark}");
            }
        }
    }
}

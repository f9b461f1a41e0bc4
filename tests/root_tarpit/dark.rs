//! Addresses that are found out to be nobody's: asked for by real kernels and in the name of
//! others, with a neighbour that talks to nobody but whoever asks for it.

use super::*;

/// Addresses of [`DARK`], once nobody has answered for two seconds.
const LEARNED: &str =
    "[tarpit]\ndark = [\"192.0.2.64/26\", \"2001:db8::40:0/112\"]\ndark_after = \"2s\"\n";
/// The last number of a neighbour's address, who only answers.
const QUIET: u8 = 100;

impl Pit {
    /// `asked` and `resolved`.
    fn questions(&self) -> [u64; 2] {
        let status = self.tarpit();
        ["asked", "resolved"].map(|key| status[key].as_u64().unwrap())
    }

    /// An ARP request of another host's on the segment, which hears no answer to it.
    fn asks(&self, last: u8) {
        let asker = self.net.veth.mac(Side::B);
        let mut frame = [&[0xff; 6], &asker[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend([&asker[..], &[192, 0, 2, 3], &[0; 6], &[192, 0, 2, last]].concat());
        let frames = [frame.as_slice()].into_iter();
        traffic::send_frames(&self.net.internet, "eth0", frames).unwrap();
    }

    /// Once the daemon has told from which address, a question is passed on.
    fn asks_soon(&self) {
        soon("a question to be passed on", || {
            self.asks(99);
            (self.questions()[0] > 0).then_some(())
        });
    }
}

#[test]
fn root_tarpit_finds_out_which_addresses_nobody_has() {
    if skipped(&[]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::with(backend, LEARNED);
        let [host, internet] = [&pit.net.host, &pit.net.internet];
        // The interface's own, to ask from and to be asked from.
        host.ip(&["addr add fe80::1/64 dev eth0 nodad".to_owned()])
            .unwrap();
        internet
            .ip(&["addr add fe80::2/64 dev eth0 nodad".to_owned()])
            .unwrap();
        // Whoever answers whom he is asked by, and says nothing else.
        internet
            .ip(&[format!("addr add 192.0.2.{QUIET}/32 dev eth0")])
            .unwrap();
        pit.asks_soon();

        // Nobody has these: found out by the questions of a kernel that wants to connect.
        for family in [0, 1] {
            let dark = |port| SocketAddr::new(addr(DARK[family]), port);
            assert!(
                !pit.net.connects(ATTACKER[family], dark(22)),
                "{backend}: at once"
            );
            pit.net.serves_soon(ATTACKER[family], dark(22));
            pit.net.serves(ATTACKER[family], dark(443));
        }
        // And somebody has this one, though he never speaks but to whoever asks him.
        let mut asked = 0;
        let resolved = pit.questions()[1];
        soon("99 to be answered for, and 100 not", || {
            pit.asks(QUIET);
            pit.asks(99);
            asked += 1;
            (asked > 30 && pit.questions()[1] > resolved).then_some(())
        });
        let before = pit.questions();
        for _ in 0..3 {
            pit.asks(QUIET);
        }
        // Frames of one sender come in their order.
        pit.asks(99);
        soon("the last question to be answered", || {
            (pit.questions()[1] > before[1]).then_some(())
        });
        assert_eq!(pit.questions(), [before[0], before[1] + 1], "{backend}");
        let shown = pit.weir.ask(&["status"]).out;
        assert!(shown.contains("dark 192.0.2.64/26"), "{shown}");
        let metric = pit.weir.metric("weir_tarpit_asked_total", &[]);
        assert_eq!(metric, Some(pit.questions()[0]));
        assert_eq!(pit.weir.metric("weir_tarpit_crowded_total", &[]), Some(0));
    }
}

/// What comes for a container is asked for on this host, so an interface that carries
/// frames for one asks nobody, and takes nobody's address.
#[test]
fn root_tarpit_takes_no_address_behind_a_port_of_a_bridge() {
    if skipped(&[]) {
        return;
    }
    let pit = Pit::with("tcx", LEARNED);
    pit.asks_soon();
    let bridge = [
        "link add br0 type bridge",
        "link set br0 up",
        "link set eth0 master br0",
    ];
    pit.net.host.ip(&bridge.map(str::to_owned)).unwrap();
    let seen = || pit.weir.packets("not-ip") + pit.weir.packets("tarpit");
    soon("the port to be told from an interface", || {
        let (before, frames) = (pit.questions(), seen());
        pit.asks(98);
        soon("the frame to be counted", || {
            (seen() > frames).then_some(())
        });
        (pit.questions() == before).then_some(())
    });
}

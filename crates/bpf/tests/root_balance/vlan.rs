//! Frames with a VLAN tag: they go to reals of that VLAN, and the tag stays. Native XDP
//! finds it in the frame (BPF_PROG_RUN); of an skb the kernel has taken it off, which only
//! a wire shows.

use std::net::IpAddr;

use weir_bpf::{
    attachment::{Hook, Link},
    generator::Generator,
};
use weir_netlab::{Net, Side, VethOpts};
use weir_testkit::{packet::Packet, traffic};

use super::{Path, SYN, VIP, addr, error, mac, quoted};

pub(super) const VLAN: u16 = 10;

fn client(family: usize, host: u8) -> IpAddr {
    addr(&match family {
        0 => format!("203.0.113.{host}"),
        _ => format!("2001:db8:c::{host:x}"),
    })
}

fn to_vip(frame: Packet, family: usize, host: u8) -> Packet {
    frame.ip(client(family, host), addr(VIP[family]))
}

/// Puts a tag into a frame.
pub(super) fn tagged(mut frame: Vec<u8>, tci: u16) -> Vec<u8> {
    let tag = [[0x81, 0], tci.to_be_bytes()].concat();
    frame.splice(12..12, tag);
    frame
}

#[test]
fn root_a_tagged_frame_goes_to_reals_of_its_vlan_as_it_is() {
    let mut path = Path::new();
    path.vlan = VLAN;
    path.write_reals(&[true, true]);
    for family in 0..2 {
        for host in 1..40 {
            let syn = to_vip(Packet::eth(), family, host).tcp(4000, 80);
            let syn = syn.tcp_flags(SYN).build();
            // With a priority and without.
            let real = path.forwarded(Hook::Xdp, &tagged(syn.clone(), VLAN));
            assert_eq!(path.forwarded(Hook::Xdp, &tagged(syn, 0xa000 | VLAN)), real);
            let about = error(family, [3, 2][family], &quoted(family, host, 4000));
            assert_eq!(path.forwarded(Hook::Xdp, &tagged(about, VLAN)), real);
            let part = |offset, more| {
                let part = to_vip(Packet::eth(), family, host).fragment(offset, more);
                tagged(part.udp(4000, 443).payload_len(64).build(), VLAN)
            };
            let real = path.forwarded(Hook::Xdp, &part(0, true));
            assert_eq!(path.forwarded(Hook::Xdp, &part(9, false)), real);
        }
        let syn = || to_vip(Packet::eth(), family, 7).tcp(4000, 80).build();
        let stays = [
            ("no tag", syn()),
            ("a priority tag", tagged(syn(), 0)),
            ("another VLAN", tagged(syn(), VLAN + 1)),
            ("two tags", tagged(tagged(syn(), VLAN), VLAN)),
            ("a service tag", {
                let mut frame = tagged(syn(), VLAN);
                frame[12..14].copy_from_slice(&[0x88, 0xa8]);
                frame
            }),
        ];
        for (what, frame) in &stays {
            path.passes(Hook::Xdp, what, frame);
        }
        // To reals without a VLAN a priority tag makes no difference.
        path.vlan = 0;
        path.write_reals(&[true, true]);
        let real = path.forwarded(Hook::Xdp, &syn());
        assert_eq!(path.forwarded(Hook::Xdp, &tagged(syn(), 0x6000)), real);
        path.passes(Hook::Xdp, "a tag", &tagged(syn(), VLAN));
        path.vlan = VLAN;
        path.write_reals(&[true, true]);
    }
}

/// Shows a frame from one link-layer address as it comes in: its VLAN, which the kernel may
/// have taken off, and the rest.
const RECEIVE: &str = "
import socket, struct, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('g0', 0))
s.setsockopt(263, 8, 1)
s.settimeout(20)
wanted = bytes.fromhex(sys.argv[1])
end = time.monotonic() + 20
while time.monotonic() < end:
    frame, data, _, _ = s.recvmsg(2048, 256)
    if frame[6:12] != wanted:
        continue
    vlan = -1
    for level, kind, value in data:
        status, _, _, _, _, tci, _ = struct.unpack('IIIHHHH', value[:20])
        if (level, kind) == (263, 8) and status & 0x10:
            vlan = tci & 0xfff
    if frame[12:14] == bytes.fromhex('8100'):
        vlan = struct.unpack('!H', frame[14:16])[0] & 0xfff
        frame = frame[:12] + frame[16:]
    print(vlan, frame.hex())
    break
";

#[test]
fn root_a_tag_stays_on_the_wire() {
    for hook in [Hook::Tcx, Hook::Xdp] {
        for family in 0..2 {
            for vlan in [0, VLAN] {
                on_the_wire(hook, family, vlan);
            }
        }
    }
}

fn on_the_wire(hook: Hook, family: usize, vlan: u16) {
    let net = Net::new().unwrap();
    let [outside, host] = ["outside", "host"].map(|name| net.namespace(name).unwrap());
    let opts = VethOpts::new(&[], &[]).unwrap();
    let veth = net.veth(&outside, "g0", &host, "d0", opts).unwrap();
    // A veth end with a program takes frames from native XDP at the other.
    let accept = Generator::load().unwrap();
    let accepting = outside.ifindex("g0").unwrap();
    let attach = || Link::attach(accept.accept(), accepting, Hook::Xdp);
    let _accepts = outside.enter(attach).unwrap().unwrap();
    let mut path = Path::new();
    path.ifindex = host.ifindex("d0").unwrap();
    path.mac = veth.mac(Side::B);
    path.vlan = vlan;
    path.write_reals(&[true, true]);
    let program = path.generation.program(hook).unwrap();
    let index = path.ifindex;
    let _link = host.enter(|| Link::attach(program, index, hook)).unwrap();
    let _link = _link.unwrap();
    let frame = Packet::eth_between(veth.mac(Side::A), veth.mac(Side::B));
    let syn = to_vip(frame, family, 7)
        .tcp(4000, 80)
        .tcp_flags(SYN)
        .build();
    let sent = match vlan {
        0 => syn.clone(),
        _ => tagged(syn.clone(), vlan),
    };
    let from = hex::encode(path.mac);
    let shown = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| outside.run("python3", &["-c", RECEIVE, &from]));
        // Again and again, for it has to open its socket first.
        while !receiving.is_finished() {
            traffic::send_frames(&outside, "g0", [&sent[..]].into_iter()).unwrap();
            std::thread::yield_now();
        }
        receiving.join().unwrap().unwrap()
    });
    let shown = String::from_utf8(shown.stdout).unwrap();
    let shown = shown.trim().split_once(' ');
    let (tag, frame) = shown.expect("a frame comes back");
    let wanted = if vlan == 0 { -1 } else { vlan.into() };
    assert_eq!(tag.parse::<i32>().unwrap(), wanted, "on {}", hook.name());
    // The real's address, this host's, and the packet without its tag.
    assert!(frame.starts_with("02000000000"), "{frame}");
    let [a, b] = [mac(10), mac(11)].map(hex::encode);
    assert!(frame[..12] == a || frame[..12] == b, "{frame}");
    assert_eq!(frame[24..28], ["0800", "86dd"][family][..]);
}

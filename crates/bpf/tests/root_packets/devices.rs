//! Packets that come over a device, whose buffers BPF_PROG_RUN cannot make.

use std::{net::IpAddr, time::Duration};

use weir_bpf::{
    BanCounts, Generation, Geometry, Options,
    attachment::{Hook, Link},
};
use weir_core::Reason;
use weir_netlab::{Side, VethOpts, wait_for};
use weir_testkit::{packet::Packet, traffic};

use crate::{
    cases::cases,
    path::{HOST4, HOST6, Path},
};

/// A TAP with NAPI_FRAGS hands the tc hook skbs whose linear part ends after
/// 34 bytes or less: the packet path must pull what it needs.
#[test]
fn root_packets_with_short_heads() {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("tap").unwrap();
    let path = Path::new();
    host.enter(|| {
        let tap = tap::open("t0").expect("a TAP with NAPI_FRAGS");
        host.run("ip", &["link", "set", "t0", "up"]).unwrap();
        let index = host.ifindex("t0").unwrap();
        let tcx = path.generation.program(Hook::Tcx).unwrap();
        let _link = match Link::attach(tcx, index, Hook::Tcx) {
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
                println!("skipped: no tcx (Linux 6.6)");
                return;
            }
            attached => attached.expect("tcx attaches to a TAP"),
        };
        for (name, packet, reason) in cases() {
            let frame = packet.pad().build();
            let before = path.counters();
            tap::write(&tap, &frame).unwrap_or_else(|e| panic!("{name}: {e}"));
            let after = path.counters();
            let counted: Vec<_> = Reason::ALL
                .into_iter()
                .filter(|r| after[*r as usize].0 != before[*r as usize].0)
                .collect();
            // The stack itself throws away what it cannot parse before tc.
            if counted.is_empty() && matches!(reason, Reason::Malformed | Reason::TooManyTags) {
                continue;
            }
            assert_eq!(counted, [reason], "{name}");
        }
    })
    .unwrap();
}

/// What passes XDP's generic mode comes to whatever is behind it as it was: of a
/// program for frames of many pages the kernel would copy them and leave the
/// Ethernet header out (docs/kernel.md). The one behind it is weir's own, by tcx.
#[test]
fn root_generic_xdp_leaves_frames_whole() {
    let net = weir_netlab::Net::new().unwrap();
    let (host, peer) = (net.namespace("h").unwrap(), net.namespace("p").unwrap());
    let opts = VethOpts::new(&["203.0.113.1/24"], &["203.0.113.2/24"]).unwrap();
    let veth = net.veth(&host, "e0", &peer, "e0", opts.mtu(9000)).unwrap();
    let index = host.ifindex("e0").unwrap();
    let options = Options::bans(Geometry::for_bans(BanCounts::each(200)));
    let first = Generation::create(1, &options, None).unwrap();
    let behind = Path::new();
    let hook = Hook::XdpGeneric;
    let attach = |program, hook| host.enter(|| Link::attach(program, index, hook)).unwrap();
    let _generic =
        attach(first.program(hook).unwrap(), hook).expect("generic mode takes any device");
    let _tcx = match attach(behind.generation.program(Hook::Tcx).unwrap(), Hook::Tcx) {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            println!("skipped: no tcx (Linux 6.6)");
            return;
        }
        attached => attached.expect("tcx attaches behind it"),
    };
    let wire = || Packet::eth_between(veth.mac(Side::B), veth.mac(Side::A));
    let frames: Vec<_> = [0, 40, 300, 1400, 3000, 4000, 8900]
        .into_iter()
        .flat_map(|len| ["192.0.2.7", "2001:db8:1::1"].map(|source| (len, source)))
        .map(|(len, source)| {
            let source: IpAddr = source.parse().unwrap();
            let own = match source {
                IpAddr::V4(_) => IpAddr::from(HOST4),
                IpAddr::V6(_) => HOST6.into(),
            };
            wire().ip(source, own).udp(9, 22).payload_len(len).build()
        })
        .collect();
    const TIMES: usize = 20;
    let all = frames.iter().cycle().take(frames.len() * TIMES);
    let sent = traffic::send_frames(&peer, "e0", all.map(Vec::as_slice)).unwrap();
    assert_eq!(sent as usize, frames.len() * TIMES);
    let what = "all of them behind generic XDP, their headers whole";
    wait_for(what, Duration::from_secs(60), || {
        let seen = behind.counters();
        let others: u64 = seen.iter().map(|(packets, _)| packets).sum();
        let banned = seen[Reason::BannedAll as usize].0;
        assert!(
            others - banned < 50,
            "{banned} whole, {} not",
            others - banned
        );
        Ok((banned == sent).then_some(()))
    })
    .unwrap();
}

mod tap {
    #![allow(unsafe_code, reason = "no safe crate makes a TAP with NAPI_FRAGS")]

    use std::{
        fs::File,
        io::{self, IoSlice, Write},
        os::fd::AsRawFd,
    };

    pub fn open(name: &str) -> io::Result<File> {
        const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
        let tap = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_NAPI | libc::IFF_NAPI_FRAGS)
                as libc::c_short;
        // SAFETY: TUNSETIFF reads the ifreq, which outlives the call.
        if unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(tap)
    }

    /// Each part becomes a page fragment of its own.
    pub fn write(mut tap: &File, frame: &[u8]) -> io::Result<usize> {
        let (head, rest) = frame.split_at(20);
        let (middle, tail) = rest.split_at(rest.len() / 2);
        tap.write_vectored(&[IoSlice::new(head), IoSlice::new(middle), IoSlice::new(tail)])
    }
}

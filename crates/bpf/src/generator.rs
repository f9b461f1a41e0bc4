//! The in-kernel packet generator (`bpf/tools/generator.bpf.c`), for benchmarks and
//! tests: live frames, some 6–7 million packets a second on one core.

use std::{
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    attachment::Hook,
    error::{Context, Result},
    prog_test_run,
    skeleton::generator::{GeneratorSkelBuilder, types::flood},
};

/// A flood of UDP packets, or of TCP SYNs.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// How many sources, a power of two.
    pub sources: u32,
    /// Sources of different salts differ, `salt` being a multiple of `sources`.
    pub salt: u32,
    /// The destination address, which decides the family.
    pub dest: IpAddr,
    /// The destination port.
    pub port: u16,
    /// Destination and source on the wire.
    pub macs: [[u8; 6]; 2],
    /// Out through this interface of the calling thread's namespace; 0 drops
    /// in the generator, which measures it alone.
    pub ifindex: u32,
}

fn mix32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

pub(crate) fn mix64(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

impl Flood {
    /// The address of source `n` (below `sources`).
    pub fn source(&self, n: u32) -> IpAddr {
        let n = n.wrapping_add(self.salt);
        if self.dest.is_ipv4() {
            let addr = ((u64::from(mix32(n)) * 0xb000_0000) >> 32) as u32 + 0x1000_0000;
            let addr = if addr >> 24 == 127 {
                addr - 0x0100_0000
            } else {
                addr
            };
            Ipv4Addr::from(addr).into()
        } else {
            let hi = mix64(n.into());
            let lo = mix64(hi);
            let hi = 0x2a00 << 48 | hi >> 16;
            Ipv6Addr::from(u128::from(hi) << 64 | u128::from(lo)).into()
        }
    }
}

/// The loaded generator, and the bare drop programs.
pub struct Generator {
    generate: OwnedFd,
    drop_xdp: OwnedFd,
    drop_tcx: OwnedFd,
    look_up_xdp: OwnedFd,
    forward_xdp: OwnedFd,
    forward_known_xdp: OwnedFd,
    forward_tcx: OwnedFd,
    sink: OwnedFd,
    accept: OwnedFd,
    bss: MapHandle,
    sunk: MapHandle,
    dests: AtomicU32,
}

impl Generator {
    /// Loads the programs.
    pub fn load() -> Result<Self> {
        Self::load_with_lines(1)
    }

    /// Loads the programs, with so many cache lines, a power of two, for
    /// [`Self::bare_forward_known`].
    pub fn load_with_lines(lines: u32) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let skel = GeneratorSkelBuilder::default()
            .open(&mut storage)
            .and_then(|mut open| {
                open.maps.lines.set_max_entries(lines)?;
                let data = open.maps.rodata_data.as_deref_mut();
                data.expect("it has constants").line_mask = lines - 1;
                open.load()
            })
            .context(|| "load the generator".into())?;
        let keep = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(|| "keep a program".into());
        Ok(Self {
            generate: keep(skel.progs.weir_generate.as_fd())?,
            drop_xdp: keep(skel.progs.weir_drop_xdp.as_fd())?,
            drop_tcx: keep(skel.progs.weir_drop_tcx.as_fd())?,
            look_up_xdp: keep(skel.progs.weir_look_up_xdp.as_fd())?,
            forward_xdp: keep(skel.progs.weir_forward_xdp.as_fd())?,
            forward_known_xdp: keep(skel.progs.weir_forward_known_xdp.as_fd())?,
            forward_tcx: keep(skel.progs.weir_forward_tcx.as_fd())?,
            sink: keep(skel.progs.weir_sink.as_fd())?,
            accept: keep(skel.progs.weir_accept.as_fd())?,
            bss: MapHandle::try_from(&skel.maps.bss).context(|| "keep a map".into())?,
            sunk: MapHandle::try_from(&skel.maps.data_sunk).context(|| "keep a map".into())?,
            dests: AtomicU32::new(0),
        })
    }

    /// The unconditional drop on this hook: the limit.
    pub fn bare_drop(&self, hook: Hook) -> BorrowedFd<'_> {
        match hook {
            Hook::Xdp | Hook::XdpGeneric => self.drop_xdp.as_fd(),
            Hook::Netfilter => panic!("there is none for netfilter"),
            Hook::Tcx | Hook::ClsBpf | Hook::Egress | Hook::EgressClsBpf => self.drop_tcx.as_fd(),
        }
    }

    /// An XDP program that checks the headers, reads one word by the source's hash, counts and
    /// drops: what any filter of sources does at least.
    pub fn bare_look_up(&self) -> BorrowedFd<'_> {
        self.look_up_xdp.as_fd()
    }

    /// New link-layer addresses, those of the last [`Flood`] turned round, and out of the
    /// interface again, on this hook: the limit of a balancer.
    pub fn bare_forward(&self, hook: Hook) -> BorrowedFd<'_> {
        match hook {
            Hook::Xdp | Hook::XdpGeneric => self.forward_xdp.as_fd(),
            Hook::Netfilter => panic!("there is none for netfilter"),
            Hook::Tcx | Hook::ClsBpf | Hook::Egress | Hook::EgressClsBpf => {
                self.forward_tcx.as_fd()
            }
        }
    }

    /// [`Self::bare_forward`] on XDP that reads one cache line as well, by the packet's source: the
    /// limit of a balancer that remembers its flows in so much memory.
    pub fn bare_forward_known(&self) -> BorrowedFd<'_> {
        self.forward_known_xdp.as_fd()
    }

    /// An XDP program that counts and drops what comes back, but for ARP.
    pub fn sink(&self) -> BorrowedFd<'_> {
        self.sink.as_fd()
    }

    /// The number of packets that the generator's sink has dropped.
    ///
    /// # Errors
    /// The kernel does not let the map be read.
    pub fn sunk(&self) -> Result<u64> {
        let value = self.sunk.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.context(|| "read what came back".into())?;
        let value = value.unwrap_or_default();
        Ok(u64::from_ne_bytes(
            value[..8].try_into().expect("eight bytes"),
        ))
    }

    /// A native XDP program that passes everything: a veth end without one
    /// takes no redirected frames.
    pub fn accept(&self) -> BorrowedFd<'_> {
        self.accept.as_fd()
    }

    /// The program that sends. Attached to any idle device meanwhile, it makes a
    /// call of [`Self::send`] some 25 ms cheaper, as with
    /// [`Clients::request`](crate::clients::Clients::request).
    pub fn program(&self) -> BorrowedFd<'_> {
        self.generate.as_fd()
    }

    /// Floods from now on go to so many destinations, from [`Flood::dest`] on, each source
    /// to one of them; 0: to that one.
    pub fn spread(&self, dests: u32) {
        self.dests.store(dests, Ordering::Relaxed);
    }

    /// Sends this many packets as fast as they go, and returns how long that
    /// took by the caller's clock: receiving them is part of it where the
    /// receiver runs in the same softirq.
    pub fn send(&self, flood: &Flood, packets: u32) -> Result<std::time::Duration> {
        self.send_sized(flood, Payload::least(flood.dest), 0, packets)
    }

    /// [`Self::send`] of TCP SYNs without an option.
    pub fn send_syns(&self, flood: &Flood, packets: u32) -> Result<std::time::Duration> {
        let frame = if flood.dest.is_ipv4() {
            60
        } else {
            14 + 40 + 20
        };
        self.send_frames(flood, (Payload(0), true), frame, 0, packets)
    }

    /// [`Self::send`] with this much payload, the first packet from source
    /// number `first`: what goes on where an earlier call ended, visits all
    /// sources however few packets a call sends.
    pub fn send_sized(
        &self,
        flood: &Flood,
        payload: Payload,
        first: u32,
        packets: u32,
    ) -> Result<std::time::Duration> {
        let frame = payload.frame(flood.dest);
        self.send_frames(flood, (payload, false), frame, first, packets)
    }

    fn send_frames(
        &self,
        flood: &Flood,
        (payload, syn): (Payload, bool),
        frame: usize,
        first: u32,
        packets: u32,
    ) -> Result<std::time::Duration> {
        assert!(
            flood.sources.is_power_of_two(),
            "sources must be a power of two"
        );
        let mut dest = [0u8; 16];
        match flood.dest {
            IpAddr::V4(a) => dest[..4].copy_from_slice(&a.octets()),
            IpAddr::V6(a) => dest = a.octets(),
        }
        let state = self::flood {
            dest_mac: flood.macs[0],
            source_mac: flood.macs[1],
            mask: flood.sources - 1,
            salt: flood.salt,
            ifindex: flood.ifindex,
            seq: first,
            port: flood.port,
            payload: payload.0,
            ipv6: flood.dest.is_ipv6().into(),
            syn: syn.into(),
            pad: [0; 2],
            dest,
            dests: self.dests.load(Ordering::Relaxed),
        };
        // SAFETY: plain old data without padding (its size is asserted).
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const state).cast::<u8>(), size_of_val(&state))
        };
        let mut value = bytes.to_vec();
        value.resize(self.bss.value_size() as usize, 0);
        self.bss
            .update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .context(|| "set the generator up".into())?;

        let start = std::time::Instant::now();
        prog_test_run::live(self.generate.as_fd(), packets, frame, flood.ifindex)?;
        Ok(start.elapsed())
    }
}

/// Bytes behind the UDP header, at most [`Payload::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload(u16);

impl Payload {
    /// What an Ethernet frame has room for beside an IPv4 header; IPv6 has 20
    /// bytes less.
    pub const MAX: u16 = 1472;

    /// A payload of so many bytes; `None` if the frame would have no room for them.
    pub fn new(bytes: u16, dest: IpAddr) -> Option<Self> {
        let max = if dest.is_ipv4() {
            Self::MAX
        } else {
            Self::MAX - 20
        };
        (bytes <= max).then_some(Self(bytes))
    }

    /// Makes the shortest packets: 60 bytes of an IPv4 frame, 62 of IPv6.
    pub fn least(dest: IpAddr) -> Self {
        Self(if dest.is_ipv4() { 18 } else { 0 })
    }

    /// How many bytes of payload a frame has.
    pub fn bytes(self) -> u16 {
        self.0
    }

    /// The whole frame's length.
    pub fn frame(self, dest: IpAddr) -> usize {
        let headers = if dest.is_ipv4() {
            14 + 20 + 8
        } else {
            14 + 40 + 8
        };
        headers + usize::from(self.0)
    }
}

const _: () = assert!(size_of::<flood>() == 56, "abi");

//! Where something is measured: a veth pair under the in-kernel generator,
//! another one under a TCP stream, in four network namespaces of their own.

use std::{
    fs, io,
    net::IpAddr,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bpf::{
    attachment::{Hook, Link},
    device::set_gro,
    generator::{Flood, Generator, Payload},
};
use weir_core::Prefix;
use weir_netlab::{Namespace, Net, Side, Veth, VethOpts};

use super::{
    CalibrateError,
    processor::pin,
    stream::{Ends, spent},
};

type Result<T> = std::result::Result<T, CalibrateError>;

/// Bans in the table of each family, and sources of the flood: more than fit
/// the nearest caches, as under a real attack.
pub(super) const BANS: u32 = 1 << 16;
/// Innocent sources: a salt far from the banned ones.
const INNOCENT: u32 = 1 << 30;
const PORT: u16 = 12345;
/// The receiver, and an address that nobody has: the stack lets go of packets
/// to it as soon as it has looked up the route, so that the hook's own cost
/// stands out.
const HERE: [&str; 2] = ["10.9.0.2", "2001:db8:9::2"];
const NOBODY: [&str; 2] = ["10.9.0.77", "2001:db8:9::77"];

/// A pair of values, of IPv4 and of IPv6.
pub(super) type Families<T> = [T; 2];

/// One end of a veth pair, where something is attached.
pub(super) struct TestEnd {
    pub(super) namespace: Namespace,
    pub(super) dev: String,
    pub(super) ifindex: u32,
}

impl TestEnd {
    fn of(veth: &Veth, side: Side) -> Result<Self> {
        let (namespace, dev) = (veth.namespace(side).clone(), veth.dev(side).to_owned());
        let ifindex = namespace.ifindex(&dev)?;
        Ok(Self {
            namespace,
            dev,
            ifindex,
        })
    }

    /// By a hook, for as long as the answer lives. `pin` is a free place for
    /// a hook that needs one.
    pub(super) fn attach(
        &self,
        program: BorrowedFd<'_>,
        hook: Hook,
        pin: Option<&Path>,
    ) -> io::Result<AttachedLink> {
        let attach = || match pin {
            Some(pin) => Link::attach_pinned(program, self.ifindex, hook, pin),
            None => Link::attach(program, self.ifindex, hook),
        };
        let link = self.namespace.enter(attach).map_err(io::Error::other)??;
        Ok(AttachedLink {
            link,
            namespace: self.namespace.clone(),
            pin: pin.map(Path::to_owned),
        })
    }
}

/// Dropping a link's last descriptor frees its hook a little later, and a
/// filter has none.
pub(super) struct AttachedLink {
    link: Link,
    namespace: Namespace,
    pin: Option<PathBuf>,
}

impl Drop for AttachedLink {
    fn drop(&mut self) {
        // What fails here ends with the namespace.
        let _ = self.namespace.enter(|| self.link.detach());
        if let Some(pin) = &self.pin {
            let _ = fs::remove_file(pin);
        }
    }
}

/// The sender of test packets.
pub(super) struct Source {
    generator: Generator,
}

/// Packets of each family in one measurement: some 15 ms of the dearest.
pub(super) const PACKETS: u32 = 25_000;

impl Source {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            generator: Generator::load()?,
        })
    }

    /// Attached to an idle device, the generator's program makes floods
    /// cheaper; see [`Generator::program`].
    pub(super) fn keep_ready(&self, net: &Net) -> Result<Option<AttachedLink>> {
        let (a, b) = (net.namespace("idle-a")?, net.namespace("idle-b")?);
        let idle = net.veth(&a, "i0", &b, "i1", VethOpts::new(&[], &[])?)?;
        let place = TestEnd::of(&idle, Side::A)?;
        Ok(place.attach(self.generator.program(), Hook::Xdp, None).ok())
    }
}

/// Four namespaces with the links between them.
pub(super) struct Testbed {
    sender: Namespace,
    /// Where packets are dropped, and where TCP is served.
    pub(super) target: TestEnd,
    pub(super) served: TestEnd,
    ends: Ends,
    banned: Families<Flood>,
    innocent: Families<Flood>,
    alone: Families<Flood>,
}

impl Testbed {
    /// `name` is one of few letters.
    pub(super) fn new(net: &Net, name: &str) -> Result<Self> {
        let namespace = |role: &str| net.namespace(&format!("{name}-{role}"));
        let (sender, receiver) = (namespace("flood")?, namespace("target")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "2001:db8:9::1/64"],
            &["10.9.0.2/24", "2001:db8:9::2/64"],
        )?;
        let wire = net.veth(&sender, "g0", &receiver, "d0", opts)?;
        // Without an XDP program a veth end takes redirected frames with GRO only.
        receiver
            .enter(|| set_gro("d0", true))?
            .map_err(CalibrateError::system("switch GRO on"))?;
        // As container runtimes make them: no GRO.
        let (client, server) = (namespace("client")?, namespace("server")?);
        let opts = VethOpts::new(
            &["10.9.1.1/24", "2001:db8:a::1/64"],
            &["10.9.1.2/24", "2001:db8:a::2/64"],
        )?;
        let pipe = net.veth(&client, "c0", &server, "s0", opts)?;

        let flood = Flood {
            sources: BANS,
            salt: 0,
            dest: addr(HERE[0]),
            port: PORT,
            macs: [wire.mac(Side::B), wire.mac(Side::A)],
            ifindex: sender.ifindex("g0")?,
        };
        let to = |dests: [&str; 2], salt, ifindex| {
            dests.map(|dest| Flood {
                dest: addr(dest),
                salt,
                ifindex,
                ..flood
            })
        };
        Ok(Self {
            target: TestEnd::of(&wire, Side::B)?,
            served: TestEnd::of(&pipe, Side::B)?,
            ends: Ends::new(client, server, ["10.9.1.2", "2001:db8:a::2"].map(addr)),
            sender,
            banned: to(HERE, 0, flood.ifindex),
            innocent: to(NOBODY, INNOCENT, flood.ifindex),
            alone: to(HERE, 0, 0),
        })
    }

    /// Prefixes to ban: addresses of IPv4, /64 of IPv6.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Prefix> {
        self.banned.iter().flat_map(|flood| {
            (0..BANS).map(|n| {
                let source = flood.source(n);
                let len = if source.is_ipv4() { 32 } else { 64 };
                Prefix::new(source, len).expect("the length suits the family")
            })
        })
    }

    /// The processor time that the packets themselves take.
    pub(super) fn alone(&self, source: &Source, round: u32) -> Result<Families<Duration>> {
        self.send(source, &self.alone, round)
    }

    /// What a packet of a banned source costs one core beyond making it, ns.
    pub(super) fn unwanted(
        &self,
        source: &Source,
        round: u32,
        alone: Families<Duration>,
    ) -> Result<Families<f64>> {
        self.nanos(source, &self.banned, round, alone)
    }

    /// The cost of an innocent packet to one core beyond making it, ns.
    pub(super) fn innocent(
        &self,
        source: &Source,
        round: u32,
        alone: Families<Duration>,
    ) -> Result<Families<f64>> {
        self.nanos(source, &self.innocent, round, alone)
    }

    /// TCP that a core carries from client to server, Gbit/s.
    pub(super) fn stream(&self) -> Result<f64> {
        self.ends.gbit()
    }

    fn nanos(
        &self,
        source: &Source,
        floods: &Families<Flood>,
        round: u32,
        alone: Families<Duration>,
    ) -> Result<Families<f64>> {
        let took = self.send(source, floods, round)?;
        let beyond = |family: usize| took[family].as_secs_f64() - alone[family].as_secs_f64();
        Ok([0, 1].map(|family| beyond(family) * 1e9 / f64::from(PACKETS)))
    }

    /// The receiving softirq runs in the context of the thread that sends. Each
    /// round goes on with the sources where the last one ended.
    fn send(
        &self,
        source: &Source,
        floods: &Families<Flood>,
        round: u32,
    ) -> Result<Families<Duration>> {
        let first = round.wrapping_mul(PACKETS);
        let [v4, v6] = self.sender.enter(|| {
            pin(0);
            floods.each_ref().map(|flood| {
                let payload = Payload::least(flood.dest);
                let send = || source.generator.send_sized(flood, payload, first, PACKETS);
                let (spent, sent) = spent(send);
                sent.map(|_| spent)
            })
        })?;
        Ok([v4?, v6?])
    }
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("a constant address")
}

//! A generator and the host that is measured, in network namespaces of their own.

use anyhow::Context;
use weir_bpf::{
    attachment::{Hook, Link},
    device::set_gro,
    generator::{Flood, Generator},
};
use weir_netlab::{Net, Side, Veth, VethOpts};

use crate::cores;

/// Cache lines of [`Generator::bare_forward_known`]: those of a table of a million flows.
const LINES: u32 = 1 << 19;

/// The generator's side and the receiver's of one veth pair.
pub struct Wire {
    /// What sends, in the namespace of side A.
    pub generator: Generator,
    /// Side A sends, side B is measured.
    pub veth: Veth,
    _net: Net,
}

impl Wire {
    /// Two namespaces and the veth pair between them.
    pub fn new() -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (sender, receiver) = (net.namespace("gen")?, net.namespace("dut")?);
        let opts = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"])?;
        let veth = net.veth(&sender, "g0", &receiver, "d0", opts)?;
        receiver
            .enter(|| set_gro("d0", true))?
            .context("switch GRO on")?;
        Ok(Self {
            generator: Generator::load_with_lines(LINES)?,
            veth,
            _net: net,
        })
    }

    /// The number of the interface at one end.
    pub fn ifindex(&self, side: Side) -> anyhow::Result<u32> {
        Ok(self.veth.namespace(side).ifindex(self.veth.dev(side))?)
    }

    /// Million packets a second, generator and receiver on core 0.
    pub fn rate(&self, flood: &Flood, packets: u32) -> anyhow::Result<f64> {
        let took = self.veth.namespace(Side::A).enter(|| {
            cores::pin(0); // the softirq of the receiver runs where it sends
            self.generator.send(flood, packets)
        })??;
        Ok(f64::from(packets) / took.as_secs_f64() / 1e6)
    }

    /// Million TCP SYNs a second, generator and receiver on core 0.
    pub fn syn_rate(&self, flood: &Flood, packets: u32) -> anyhow::Result<f64> {
        let took = self.veth.namespace(Side::A).enter(|| {
            cores::pin(0); // the softirq of the receiver runs where it sends
            self.generator.send_syns(flood, packets)
        })??;
        Ok(f64::from(packets) / took.as_secs_f64() / 1e6)
    }

    /// Attaches at the measured end.
    pub fn attach(&self, prog: std::os::fd::BorrowedFd<'_>, hook: Hook) -> anyhow::Result<Link> {
        let index = self.ifindex(Side::B)?;
        self.veth
            .namespace(Side::B)
            .enter(|| Link::attach(prog, index, hook))?
            .with_context(|| format!("attach by {}", hook.name()))
    }
}

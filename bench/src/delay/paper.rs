//! The paper's own method, on one machine: a sample of packets, each of its own
//! flow, is sent to a host that routes all of them back; both directions are
//! captured at the sender, and D_g is equation 1 over the round trips with and
//! without the geofence. Its flaws are in the report (`table`).

use std::{
    io::IoSliceMut,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::sys::{
    socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, setsockopt, sockopt},
    time::{TimeSpec, TimeValLike},
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use weir_testkit::packet::Packet;

use super::{
    layout::LOAD_CORE,
    test_net::{BACKGROUND, TestNet},
};
use crate::cores;

/// The address behind the host; its default route goes back to the sender.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// A sample of 100,000 packets, out and back, stays in the socket's buffer.
const CAPTURE_BUFFER: usize = 1 << 30;
/// The last packet has come when none has for so long.
const SILENCE: Duration = Duration::from_millis(300);
/// An Ethernet header.
const ETH: usize = 14;

/// How one path did in one simulation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Simulation {
    /// Name of the path.
    pub path: String,
    /// The number of the round in which the path was measured.
    pub round: u32,
    /// Packets a second as ordered; `None` is as fast as the sender goes.
    pub rate: Option<u32>,
    /// The number of packets sent.
    pub sent: usize,
    /// Packets a second, by their times.
    pub send_rate: f64,
    /// Packets that came back.
    pub returned: usize,
    /// The median of RTT, µs.
    #[serde(deserialize_with = "super::clients::or_nan")]
    pub rtt_p50: f64,
    /// The 99th percentile of RTT, µs.
    #[serde(deserialize_with = "super::clients::or_nan")]
    pub rtt_p99: f64,
    /// The mean distance between two packets that come back, µs: the paper's T_e
    /// in an overloaded run.
    pub spacing: f64,
    /// Equation 1 against the path `nothing` of the round.
    pub delay: Option<Delay>,
}

/// Equation 1, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Delay {
    /// D_g: the mean of the addends that count.
    pub mean: f64,
    /// The standard deviation of those addends.
    pub sigma: f64,
    /// Half of the 95 % confidence interval as the paper has it.
    pub half_interval: f64,
    /// Addends that count.
    pub counted: usize,
    /// Negative ones, which the method throws away.
    pub negative: usize,
    /// The mean of all addends.
    pub mean_of_all: f64,
}

/// Round trip times by packet, in µs; `None` did not come back.
pub struct Trips(Vec<Option<f64>>);

/// Sends the sample through a net. Each call needs a port of its own, so that
/// no flow was seen before.
pub fn simulate(
    net: &TestNet,
    packets: usize,
    rate: Option<u32>,
    port: u16,
    round: u32,
) -> anyhow::Result<(Simulation, Trips)> {
    let (sender, capture) = net.outside().enter(open)??;
    let sample: Vec<Vec<u8>> = (0..packets)
        .map(|n| {
            let source = IpAddr::from(Ipv4Addr::from(BACKGROUND.to_bits() + n as u32));
            let frame = Packet::eth()
                .ip(source, BEYOND.into())
                .udp(1024, port)
                .build();
            frame[ETH..].to_vec()
        })
        .collect();
    net.outside().enter(|| {
        cores::pin(LOAD_CORE);
        send(&sender, &sample, rate)
    })??;
    let mut out = vec![None; packets];
    let mut back = vec![None; packets];
    let mut returns = Vec::with_capacity(packets);
    let mut buffer = [0u8; 128];
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut last = Instant::now();
    while last.elapsed() < SILENCE {
        let Some((len, at)) = receive(&capture, &mut buffer, &mut control)? else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        let Some(n) = index(&buffer[..len], port).filter(|n| *n < packets) else {
            continue;
        };
        last = Instant::now();
        // The first sight is the packet on its way out, the second on its way back.
        if out[n].is_none() {
            out[n] = Some(at);
        } else if back[n].is_none() {
            back[n] = Some(at);
            returns.push(at);
        }
    }
    let times: Vec<i64> = out.iter().flatten().copied().collect();
    ensure!(
        times.len() == packets,
        "{} of {packets} packets were captured",
        times.len()
    );
    let trips: Vec<_> = out
        .iter()
        .zip(&back)
        .map(|(out, back)| Some((back.as_ref()? - out.as_ref()?) as f64 / 1e3))
        .collect();
    let returned: Vec<f64> = trips.iter().flatten().copied().collect();
    let of = |share| match returned.as_slice() {
        [] => f64::NAN,
        some => crate::report::percentile(some, share),
    };
    let spacing = |times: &[i64]| {
        let span = times.iter().max().zip(times.iter().min());
        let span = span.map_or(0, |(last, first)| last - first);
        span as f64 / 1e3 / (times.len().max(2) - 1) as f64
    };
    let simulation = Simulation {
        path: net.path.name(),
        round,
        rate,
        sent: packets,
        send_rate: 1e6 / spacing(&times),
        returned: returned.len(),
        rtt_p50: of(0.5),
        rtt_p99: of(0.99),
        spacing: spacing(&returns),
        delay: None,
    };
    Ok((simulation, Trips(trips)))
}

/// Equation 1: `with` the path, `without` it. As in the paper, negative addends
/// and the least and the greatest of the others do not count.
pub fn delay(with: &Trips, without: &Trips) -> Option<Delay> {
    let all: Vec<f64> = with
        .0
        .iter()
        .zip(&without.0)
        .filter_map(|(with, without)| Some((*with)? - (*without)?))
        .collect();
    let mut counted: Vec<f64> = all
        .iter()
        .copied()
        .filter(|addend| *addend >= 0.0)
        .collect();
    let negative = all.len() - counted.len();
    counted.sort_by(f64::total_cmp);
    let counted = counted.get(1..counted.len().checked_sub(1)?)?;
    if counted.is_empty() {
        return None;
    }
    let n = counted.len() as f64;
    let mean = counted.iter().sum::<f64>() / n;
    let variance = counted.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / n;
    Some(Delay {
        mean,
        sigma: variance.sqrt(),
        half_interval: 1.96 * (variance / n).sqrt(),
        counted: counted.len(),
        negative,
        mean_of_all: all.iter().sum::<f64>() / all.len() as f64,
    })
}

/// What sends ready-made IP packets, and what sees all that goes by.
fn open() -> anyhow::Result<(Socket, Socket)> {
    const RAW: i32 = 255;
    const ALL: u16 = 3;
    let sender = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
    sender.set_send_buffer_size(8 << 20)?;
    let all = Protocol::from(i32::from(ALL.to_be()));
    let capture = Socket::new(Domain::PACKET, Type::RAW, Some(all))?;
    setsockopt(&capture, sockopt::RcvBufForce, &CAPTURE_BUFFER)?;
    setsockopt(&capture, sockopt::ReceiveTimestampns, &true)?;
    Ok((sender, capture))
}

fn send(socket: &Socket, sample: &[Vec<u8>], rate: Option<u32>) -> anyhow::Result<()> {
    let to = SocketAddr::from((BEYOND, 0)).into();
    let start = Instant::now();
    for (n, packet) in sample.iter().enumerate() {
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(n as f64 / f64::from(rate));
            while start.elapsed() < due {
                std::hint::spin_loop();
            }
        }
        socket.send_to(packet, &to).context("send a packet")?;
    }
    Ok(())
}

/// A frame and when the kernel saw it, in ns; `None` when there is none.
fn receive(
    socket: &Socket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> anyhow::Result<Option<(usize, i64)>> {
    let mut slices = [IoSliceMut::new(buffer)];
    let fd = socket.as_raw_fd();
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = match recvmsg::<UnixAddr>(fd, &mut slices, Some(control), flags) {
        Ok(message) => message,
        Err(nix::errno::Errno::EAGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let at = message.cmsgs()?.find_map(|cmsg| match cmsg {
        ControlMessageOwned::ScmTimestampns(at) => Some(at.num_nanoseconds()),
        _ => None,
    });
    Ok(Some((
        message.bytes,
        at.context("a captured frame's time")?,
    )))
}

/// The place in the sample of the packet in a frame; `None` for other frames.
fn index(frame: &[u8], port: u16) -> Option<usize> {
    let packet = frame.get(ETH..)?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let from: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    if to != BEYOND.octets() || packet.get(22..24)? != port.to_be_bytes() {
        return None;
    }
    u32::from_be_bytes(from)
        .checked_sub(BACKGROUND.to_bits())
        .map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equation_one_counts_no_negative_and_no_extreme_addends() {
        let without = Trips(vec![Some(10.0); 7]);
        let with = [15.0, 20.0, 12.0, 30.0, 5.0, 10.5];
        let mut with: Vec<_> = with.map(Some).to_vec();
        with.push(None);
        let delay = delay(&Trips(with), &without).unwrap();
        // 5, 10, 2, 20, -5, 0.5: without -5, 0.5 and 20 there are 5, 10 and 2.
        assert_eq!((delay.counted, delay.negative), (3, 1));
        assert!((delay.mean - 17.0 / 3.0).abs() < 1e-9, "{delay:?}");
        assert!((delay.mean_of_all - 32.5 / 6.0).abs() < 1e-9, "{delay:?}");
    }

    #[test]
    fn too_few_addends_make_no_delay() {
        let trips = |n| Trips(vec![Some(1.0); n]);
        assert_eq!(delay(&trips(2), &trips(2)), None);
        assert_eq!(delay(&trips(0), &trips(0)), None);
    }
}

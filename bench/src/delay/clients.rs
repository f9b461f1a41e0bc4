//! The allowed client: connections and first datagrams, each a new flow, one
//! after the other, timed.

use std::{
    io::Read,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use serde::{Deserialize, Deserializer, Serialize};
use socket2::{Domain, Socket, Type};

use super::{
    layout::CLIENT_CORE,
    test_net::{CLIENT, TestNet},
};
use crate::cores;
use crate::report::percentile;

/// A round trip that takes longer counts as lost; a queue of 8,192 packets that is served
/// at 80 k a second takes half of it.
pub const LOST_AFTER: Duration = Duration::from_millis(200);

/// The number of probes that a client sends, and their pace.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The most probes in one window.
    pub most: usize,
    /// The longest time that a client probes.
    pub window: Duration,
    /// The client's sleep between two probes.
    pub pause: Duration,
}

/// Round trips, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// New flows tried.
    pub tried: usize,
    /// New flows without an answer within [`LOST_AFTER`].
    pub lost: usize,
    #[allow(missing_docs, reason = "percentiles of those that were answered")]
    #[serde(deserialize_with = "or_nan")]
    pub p50: f64,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "or_nan")]
    pub p90: f64,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "or_nan")]
    pub p99: f64,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "or_nan")]
    pub p999: f64,
    /// The longest round trip; NaN when none came back.
    #[serde(deserialize_with = "or_nan")]
    pub max: f64,
}

/// What no answer made has no number; JSON has `null` for it.
pub fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Latency {
    fn of(micros: &[f64], tried: usize) -> Self {
        let at = |share| match micros {
            [] => f64::NAN,
            some => percentile(some, share),
        };
        Self {
            tried,
            lost: tried - micros.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }

    /// Flows without an answer in time, in percent of those tried.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / self.tried.max(1) as f64
    }
}

/// Opens connections from the client's namespace.
pub fn tcp(net: &TestNet, pace: Pace) -> anyhow::Result<Latency> {
    measure(net, pace, || connect(TestNet::server(true)))
}

/// Sends datagrams, each from a new socket, and waits for each answer.
pub fn udp(net: &TestNet, pace: Pace) -> anyhow::Result<Latency> {
    measure(net, pace, || ask(TestNet::server(false)))
}

fn measure(
    net: &TestNet,
    pace: Pace,
    once: impl Fn() -> std::io::Result<Option<Duration>> + Sync,
) -> anyhow::Result<Latency> {
    net.outside().enter(|| {
        cores::pin(CLIENT_CORE);
        let mut micros = Vec::new();
        let mut tried = 0;
        let start = Instant::now();
        while tried < pace.most && start.elapsed() < pace.window {
            tried += 1;
            micros.extend(once()?.map(|took| took.as_secs_f64() * 1e6));
            if !pace.pause.is_zero() {
                std::thread::sleep(pace.pause);
            }
        }
        Ok(Latency::of(&micros, tried))
    })?
}

/// The time of connect() alone; `None` when it is lost.
fn connect(to: SocketAddr) -> std::io::Result<Option<Duration>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Closing resets: no port waits for a minute.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_write_timeout(Some(LOST_AFTER))?;
    socket.bind(&SocketAddr::from((CLIENT, 0)).into())?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let start = Instant::now();
    let Ok(()) = socket.connect(&to.into()) else {
        return Ok(None);
    };
    let took = start.elapsed();
    // The server takes the connection and ends it. Without this wait its backlog
    // fills up, for on one core the client need not give way to it.
    let _ = (&socket).read(&mut [0]);
    Ok(Some(took))
}

/// The time from sending a datagram to its answer; `None` when it is lost.
fn ask(to: SocketAddr) -> std::io::Result<Option<Duration>> {
    let socket = UdpSocket::bind((CLIENT, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let mut answer = [0; 64];
    let start = Instant::now();
    let answered = socket
        .send(b"new flow")
        .and_then(|_| socket.recv(&mut answer));
    Ok(answered.ok().map(|_| start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_whose_flows_were_all_lost_survives_json() {
        let none = Latency::of(&[], 3);
        let text = serde_json::to_string(&none).unwrap();
        let again: Latency = serde_json::from_str(&text).unwrap();
        assert_eq!((again.tried, again.lost), (3, 3));
        assert!(again.p50.is_nan() && again.max.is_nan(), "{text}");
    }
}

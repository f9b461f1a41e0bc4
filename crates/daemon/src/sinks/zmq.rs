//! A ZeroMQ publisher that connects to its subscriber, as ipt_geofence's does:
//! two frames per event, a header and JSON. The socket is an XPUB, which is a
//! PUB that sees subscriptions: an event waits in this sink's queue, counted,
//! until somebody takes it, where a PUB would drop it unseen. With a key all
//! of it is CURVE; libzmq falls back to nothing else.

use std::time::{Duration, Instant};

use super::{Deliver, Failure, record::Records};
use crate::events::Event;

/// How long an event waits for a subscriber before that is an alert.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(3);
/// Messages within libzmq, in all.
const UNDER_WAY: i32 = 1000;
/// On closing, what is under way has this long.
const LINGER_MS: i32 = 1000;
/// A connection that is dead is noticed within some of these.
const HEARTBEAT_MS: i32 = 5000;

/// The header's topic, version and source; its size field has 16 bits.
const TOPIC: &[u8] = b"ban";
const VERSION: u8 = 2;
const SOURCE: u32 = 999;

/// The first frame. Offsets and the host's byte order are the interface: a C
/// structure `{char url[16]; u8 version; u16 size; u32 msg_id; u32 source_id}`
/// with its padding.
fn header(size: u16) -> [u8; 28] {
    let mut header = [0; 28];
    header[..TOPIC.len()].copy_from_slice(TOPIC);
    header[16] = VERSION;
    header[18..20].copy_from_slice(&size.to_ne_bytes());
    header[20..24].copy_from_slice(&0_u32.to_ne_bytes());
    header[24..28].copy_from_slice(&SOURCE.to_ne_bytes());
    header
}

pub(super) struct Publisher {
    socket: zmq::Socket,
    url: String,
    records: Records,
    /// Topics that the subscriber wants; none: nobody is there.
    topics: usize,
}

impl Publisher {
    pub(super) fn new(
        url: String,
        server_key: Option<&[u8; 32]>,
        records: Records,
    ) -> Result<Self, zmq::Error> {
        let socket = zmq::Context::new().socket(zmq::XPUB)?;
        socket.set_linger(LINGER_MS)?;
        socket.set_sndhwm(UNDER_WAY)?;
        socket.set_ipv6(true)?;
        // No queue for one who is not connected: ours is bounded and shown.
        socket.set_immediate(true)?;
        socket.set_heartbeat_ivl(HEARTBEAT_MS)?;
        if let Some(key) = server_key {
            let own = zmq::CurveKeyPair::new()?;
            socket.set_curve_serverkey(key)?;
            socket.set_curve_publickey(&own.public_key)?;
            socket.set_curve_secretkey(&own.secret_key)?;
        }
        socket.connect(&url)?;
        Ok(Self {
            socket,
            url,
            records,
            topics: 0,
        })
    }

    /// Takes note of who has come and gone.
    fn note_subscriptions(&mut self) {
        while let Ok(message) = self.socket.recv_bytes(zmq::DONTWAIT) {
            match message.split_first() {
                Some((1, topic)) if TOPIC.starts_with(topic) || header(0).starts_with(topic) => {
                    self.topics += 1;
                }
                Some((0, topic)) if TOPIC.starts_with(topic) || header(0).starts_with(topic) => {
                    self.topics = self.topics.saturating_sub(1);
                }
                _ => {}
            }
        }
    }
}

impl Deliver for Publisher {
    fn deliver(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(json) = self.records.json(event) else {
            return Ok(());
        };
        let Ok(size) = u16::try_from(json.len()) else {
            return Err(Failure::Refused("an event of more than 64 KiB".into()));
        };
        let deadline = Instant::now() + SUBSCRIBED_WITHIN;
        self.note_subscriptions();
        while self.topics == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::later(format!(
                    "nobody at {} subscribes to \"ban\": it cannot be reached, or its key is another one",
                    self.url
                )));
            }
            let _ = self.socket.poll(zmq::POLLIN, left.as_millis() as i64 + 1);
            self.note_subscriptions();
        }
        let frames = [header(size).to_vec(), json.into_bytes()];
        self.socket
            .send_multipart(frames, zmq::DONTWAIT)
            .map_err(|error| Failure::later(format!("cannot send to {}: {error}", self.url)))
    }

    /// libzmq attends to a connection that has ended while it is called, in
    /// several steps: without them the next event would go nowhere.
    fn idle(&mut self) {
        self.note_subscriptions();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_laid_out_as_subscribers_read_it() {
        let header = header(0x0102);
        assert_eq!(&header[..4], b"ban\0");
        assert_eq!(header[4..16], [0; 12]);
        assert_eq!((header[16], header[17]), (2, 0));
        assert_eq!(header[18..20], 0x0102_u16.to_ne_bytes());
        assert_eq!(header[20..24], [0; 4]);
        assert_eq!(header[24..], 999_u32.to_ne_bytes());
    }
}

//! A ZeroMQ publisher that connects to its subscriber, as ipt_geofence's does:
//! two frames per event, a header and JSON. The socket is an XPUB, which is a
//! PUB that sees subscriptions: an event waits in this sink's queue, counted,
//! until somebody takes it, where a PUB would drop it unseen. With a key all
//! of it is CURVE; libzmq falls back to nothing else.

use std::time::{Duration, Instant};

use weir_libzmq::{Kind, Libzmq, Socket};

use crate::{Deliver, Failure, format::Records};
use weir_events::Event;

/// How long an event waits for a subscriber before that is an alert.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(3);
/// Messages within libzmq, in all.
const UNDER_WAY: i32 = 1000;
/// On closing, what is under way has this long.
const LINGER: Duration = Duration::from_secs(1);
/// A connection that is dead is noticed within some of these.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// No subscription that is for us is longer: a zero or one, and a topic that
/// the header begins with.
const SUBSCRIPTION: usize = 1 + HEADER;

/// The header's topic, version and source; its size field has 16 bits.
const TOPIC: &[u8] = b"ban";
const VERSION: u8 = 2;
const SOURCE: u32 = 999;
const HEADER: usize = 28;

/// The first frame. Offsets and the host's byte order are the interface: a C
/// structure `{char url[16]; u8 version; u16 size; u32 msg_id; u32 source_id}`
/// with its padding.
fn header(size: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..TOPIC.len()].copy_from_slice(TOPIC);
    header[16] = VERSION;
    header[18..20].copy_from_slice(&size.to_ne_bytes());
    header[20..24].copy_from_slice(&0_u32.to_ne_bytes());
    header[24..28].copy_from_slice(&SOURCE.to_ne_bytes());
    header
}

pub(crate) struct Publisher {
    socket: Socket,
    url: String,
    records: Records,
    /// Topics that the subscriber wants; none: nobody is there.
    topics: usize,
}

fn connected(
    library: &'static Libzmq,
    url: &str,
    server_key: Option<&[u8; 32]>,
) -> Result<Socket, weir_libzmq::Error> {
    let socket = Socket::new(library, Kind::XPub)?;
    socket.set_linger(LINGER)?;
    socket.set_send_queue(UNDER_WAY)?;
    socket.set_ipv6()?;
    // No queue for one who is not connected: ours is bounded and shown.
    socket.set_immediate()?;
    socket.set_heartbeat(HEARTBEAT)?;
    if let Some(key) = server_key {
        socket.set_curve_client(key, &library.curve_keys()?)?;
    }
    socket.connect(url)?;
    Ok(socket)
}

impl Publisher {
    pub(crate) fn new(
        url: String,
        server_key: Option<&[u8; 32]>,
        records: Records,
    ) -> Result<Self, String> {
        let library = Libzmq::get().map_err(|error| error.to_string())?;
        let socket = connected(library, &url, server_key)
            .map_err(|error| format!("cannot connect to {url}: {error}"))?;
        Ok(Self {
            socket,
            url,
            records,
            topics: 0,
        })
    }

    /// Takes note of who has come and gone.
    fn note_subscriptions(&mut self) {
        while let Ok(message) = self.socket.try_receive(SUBSCRIPTION) {
            match message.as_deref().and_then(<[u8]>::split_first) {
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
            self.socket.wait(left + Duration::from_millis(1));
            self.note_subscriptions();
        }
        self.socket
            .try_send(&[&header(size), json.as_bytes()])
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

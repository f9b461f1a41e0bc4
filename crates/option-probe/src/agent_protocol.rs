//! What `weir options probe` and the agents at its sites say to each other: lines of JSON, one
//! answer to each request. Either side's lines are an attacker's to the other: they are read
//! with bounds.

use std::{
    io::{self, BufRead, Write},
    net::IpAddr,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::probe_packet::MAX_PROBE;

/// The version of the protocol: both sides have the same.
pub const VERSION: u32 = 2;
/// Bytes of a line at most.
pub const MAX_LINE: u64 = 8 << 20;
/// Packets of one request, or of one answer, at most.
pub const MAX_PACKETS: usize = 4096;
/// Bytes of a packet that is captured at most.
pub const MAX_CAPTURED: usize = 1500;
/// Addresses that an agent tells at most.
pub const MAX_ADDRESSES: usize = 64;

/// Why a line is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The line cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has ended.
    #[error("it has ended")]
    End,
    /// The line is too long.
    #[error("a line has more than {MAX_LINE} bytes")]
    TooLong,
    /// The line is no message.
    #[error("a line is no message of this protocol ({0})")]
    Malformed(String),
}

/// A request to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Says who it is.
    Hello {
        /// The protocol's version.
        version: u32,
    },
    /// Begins to keep packets of this run that arrive.
    Listen {
        /// The run's number.
        run: u32,
    },
    /// Sends packets, each whole from its IP header on.
    Send {
        /// Packets to be sent, each whole.
        packets: Vec<HexBytes>,
        /// Microseconds between two of them.
        gap_us: u32,
    },
    /// Ends the listening.
    Collect {},
}

/// An agent's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase", deny_unknown_fields)]
pub enum Response {
    /// The agent is there.
    Hello {
        /// The protocol's version.
        version: u32,
        /// Its host's global addresses, as the interfaces have them.
        addresses: Vec<IpAddr>,
    },
    /// The agent listens from now on.
    Listening {},
    /// The packets were handed to the kernel.
    Sent {
        /// Those that it refused, by their places in the request.
        refused: Vec<usize>,
        /// The first error of these, if any.
        error: Option<String>,
    },
    /// Packets of the run that arrived.
    Arrived {
        /// Packets of the run, in their order.
        packets: Vec<Captured>,
        /// Packets of the run beyond what is kept.
        beyond: u64,
        /// Packets that arrived and were lost at the agent's socket, of this run or others.
        lost: u64,
    },
    /// The agent could not do what it was asked for.
    Error {
        /// The reason, in words for a person.
        message: String,
    },
}

/// A packet as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Captured {
    /// Nanoseconds since 1970, by the clock of the agent's host.
    pub time_ns: u64,
    /// The packet from its IP header on.
    pub packet: HexBytes,
}

/// Bytes that are hexadecimal digits in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HexBytes(pub Vec<u8>);

impl TryFrom<String> for HexBytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = hex::decode(&text).map_err(|_| "not pairs of hexadecimal digits")?;
        match bytes.len() {
            1..=MAX_CAPTURED => Ok(Self(bytes)),
            length => Err(format!(
                "a packet of {length} bytes; allowed: 1 to {MAX_CAPTURED}"
            )),
        }
    }
}

impl From<HexBytes> for String {
    fn from(bytes: HexBytes) -> Self {
        hex::encode(bytes.0)
    }
}

impl Request {
    /// Whether an agent does that: the version is its own, packets are not too many or long.
    ///
    /// # Errors
    /// In words for the other side.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Hello { version } if *version != VERSION => Err(format!(
                "protocol version {version}; this weir has {VERSION}: install the same weir on both hosts"
            )),
            Self::Send { packets, .. } if packets.len() > MAX_PACKETS => Err(format!(
                "{} packets; allowed: up to {MAX_PACKETS}",
                packets.len()
            )),
            Self::Send { packets, .. } if packets.iter().any(|p| p.0.len() > MAX_PROBE) => {
                Err(format!("a packet has more than {MAX_PROBE} bytes"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads one message.
///
/// # Errors
/// The other side has ended, or the line is too long or no message.
pub fn read_message<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<T, ProtocolError> {
    let mut line = Vec::new();
    let mut bounded = io::Read::take(input, MAX_LINE);
    bounded.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(ProtocolError::End);
    }
    if line.last() != Some(&b'\n') {
        return Err(match line.len() as u64 == MAX_LINE {
            true => ProtocolError::TooLong,
            false => ProtocolError::End,
        });
    }
    serde_json::from_slice(&line).map_err(|error| ProtocolError::Malformed(error.to_string()))
}

/// Writes one message.
///
/// # Errors
/// Those of the writer.
pub fn write_message(out: &mut impl Write, message: &impl Serialize) -> Result<(), ProtocolError> {
    let mut text = serde_json::to_vec(message).map_err(io::Error::from)?;
    text.push(b'\n');
    out.write_all(&text)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let requests = [
            Request::Hello { version: VERSION },
            Request::Listen { run: 7 },
            Request::Send {
                packets: vec![HexBytes(vec![0x45, 0])],
                gap_us: 5,
            },
            Request::Collect {},
        ];
        let mut bytes = Vec::new();
        for request in &requests {
            assert_eq!(request.check(), Ok(()));
            write_message(&mut bytes, request).unwrap();
        }
        let mut input = &bytes[..];
        for request in requests {
            assert_eq!(read_message::<Request>(&mut input).unwrap(), request);
        }
        let end = read_message::<Request>(&mut input);
        assert!(matches!(end, Err(ProtocolError::End)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for line in [
            "\n",
            "{}\n",
            "{\"op\":\"collect\",\"more\":1}\n",
            "{\"op\":\"send\",\"packets\":[\"4\"],\"gap_us\":0}\n",
            "{\"op\":\"send\",\"packets\":[\"\"],\"gap_us\":0}\n",
            "\u{1b}[2J\n",
        ] {
            let read = read_message::<Request>(&mut line.as_bytes());
            assert!(matches!(read, Err(ProtocolError::Malformed(_))), "{line}");
        }
        let cut = read_message::<Request>(&mut &b"{\"op\":\"coll"[..]);
        assert!(matches!(cut, Err(ProtocolError::End)));
        let mut endless = io::BufReader::new(io::repeat(b' '));
        let long = read_message::<Response>(&mut endless);
        assert!(matches!(long, Err(ProtocolError::TooLong)));
        let packets = vec![HexBytes(vec![0x45; MAX_PROBE + 1])];
        let refused = Request::Send { packets, gap_us: 0 }.check().unwrap_err();
        assert_eq!(refused, "a packet has more than 600 bytes");
        let packets = vec![HexBytes(vec![0x45]); MAX_PACKETS + 1];
        assert!(Request::Send { packets, gap_us: 0 }.check().is_err());
        assert!(Request::Hello { version: 1 }.check().is_err());
        assert!(HexBytes::try_from("00".repeat(MAX_CAPTURED + 1)).is_err());
    }
}

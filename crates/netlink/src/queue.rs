//! netfilter's queue (NFQUEUE): packets that wait in the kernel until a program has said what
//! becomes of each.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    Attributes, Message, Messages, NLM_F_ACK, NLM_F_REQUEST, Outcome, Protocol, Request, Socket,
    Writer, errno, read::malformed,
};

/// `NFNL_SUBSYS_QUEUE` of linux/netfilter/nfnetlink.h, with the kinds of its messages
/// (linux/netfilter/nfnetlink_queue.h).
const PACKET: u16 = 3 << 8;
const VERDICT: u16 = PACKET | 1;
const CONFIG: u16 = PACKET | 2;
const VERDICT_BATCH: u16 = PACKET | 3;

const CFG_CMD: u16 = 1;
const CFG_PARAMS: u16 = 2;
const CFG_QUEUE_MAXLEN: u16 = 3;
const CFG_MASK: u16 = 4;
const CFG_FLAGS: u16 = 5;
const CMD_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const FLAG_FAIL_OPEN: u32 = 1;
const FLAG_GSO: u32 = 4;

const ATTR_PACKET_HDR: u16 = 1;
const ATTR_VERDICT_HDR: u16 = 2;
const ATTR_MARK: u16 = 3;
const ATTR_IFINDEX_INDEV: u16 = 5;
const ATTR_IFINDEX_OUTDEV: u16 = 6;
const ATTR_PAYLOAD: u16 = 10;

/// `ENOENT` of asm-generic/errno-base.h.
const ENOENT: i32 = 2;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// `struct nfgenmsg`: AF_UNSPEC, version 0, and the queue.
fn fixed(queue: u16) -> [u8; 4] {
    let [high, low] = queue.to_be_bytes();
    [0, 0, high, low]
}

/// How packets wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// So many wait in the kernel at most.
    pub packets: u32,
    /// Of more each passes as it is, and is not dropped.
    pub fails_open: bool,
    /// So many bytes of each are copied to the program.
    pub copied: u32,
    /// So many bytes of them wait to be read.
    pub bytes: usize,
    /// Superpackets (GSO) come as they are, with checksums that are not finished, and not segment
    /// by segment: nothing is written to them.
    pub whole: bool,
    /// That there was no room is an error of reading (ENOBUFS), and not counted alone.
    pub tells_overflow: bool,
}

/// One packet that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The queue that it waits in.
    pub queue: u16,
    /// The packet's number in this queue.
    pub id: u32,
    /// The interface that it came by, or goes by; 0: none is known.
    pub interface: u32,
    /// Its first bytes, from the IP header on.
    pub bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet of a message; `None`: it is another message.
    ///
    /// # Errors
    /// The kernel refuses what was sent to it before, or the message is cut.
    pub fn of(message: Message<'a>) -> io::Result<Option<Self>> {
        match message.outcome() {
            Outcome::Acknowledged(outcome) | Outcome::Done(outcome) => {
                return outcome.map(|()| None);
            }
            Outcome::Nothing => return Ok(None),
            Outcome::Data if message.kind != PACKET => return Ok(None),
            Outcome::Data => {}
        }
        let queue = message.body.get(2..4).ok_or_else(malformed)?;
        let attributes = Attributes::behind(message.body, 4);
        let head = attributes.get(ATTR_PACKET_HDR).ok_or_else(malformed)?;
        let id = head.first_chunk().ok_or_else(malformed)?;
        let interface = |kind| attributes.number(kind);
        Ok(Some(Self {
            queue: u16::from_be_bytes([queue[0], queue[1]]),
            id: u32::from_be_bytes(*id),
            interface: interface(ATTR_IFINDEX_INDEV)
                .or_else(|| interface(ATTR_IFINDEX_OUTDEV))
                .unwrap_or(0),
            bytes: attributes.get(ATTR_PAYLOAD).unwrap_or(&[]),
        }))
    }
}

/// Appends the verdict on one packet, and its mark from then on if one is given.
pub fn verdict(to: &mut Writer, queue: u16, id: u32, passes: bool, mark: Option<u32>) {
    let mark = mark.map(u32::to_be_bytes);
    let mark = mark.as_ref().map(|mark| (ATTR_MARK, &mark[..]));
    put_verdict(to, VERDICT, queue, id, passes, mark);
}

/// Appends that a packet passes, with these bytes in place of its own if there are some.
pub fn pass_as(to: &mut Writer, queue: u16, id: u32, bytes: Option<&[u8]>) {
    let bytes = bytes.map(|bytes| (ATTR_PAYLOAD, bytes));
    put_verdict(to, VERDICT, queue, id, true, bytes);
}

/// Appends that all packets of a queue pass up to this one (`NFQNL_MSG_VERDICT_BATCH`).
pub fn all_pass(to: &mut Writer, queue: u16, last: u32) {
    put_verdict(to, VERDICT_BATCH, queue, last, true, None);
}

fn put_verdict(
    to: &mut Writer,
    kind: u16,
    queue: u16,
    id: u32,
    passes: bool,
    more: Option<(u16, &[u8])>,
) {
    let mut head = [0; 8];
    let code = if passes { NF_ACCEPT } else { NF_DROP };
    head[..4].copy_from_slice(&code.to_be_bytes());
    head[4..].copy_from_slice(&id.to_be_bytes());
    let begin = to.begin(kind, NLM_F_REQUEST, 0, &fixed(queue));
    to.attribute(ATTR_VERDICT_HDR, &head);
    if let Some((kind, value)) = more {
        to.attribute(kind, value);
    }
    to.end(begin);
}

/// A queue of this process's network namespace: its packets come here, and nowhere else.
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: u16,
}

impl Queue {
    /// Takes a queue (CAP_NET_ADMIN).
    ///
    /// # Errors
    /// The kernel lacks queues, or another program has this one (EBUSY, or EPERM).
    pub fn take(number: u16, room: Room) -> io::Result<Self> {
        let socket = Socket::open(Protocol::Netfilter)?;
        let params = [&room.copied.to_be_bytes()[..], &[COPY_PACKET]].concat();
        let mask = (FLAG_GSO | FLAG_FAIL_OPEN).to_be_bytes();
        let whole = if room.whole { FLAG_GSO } else { 0 };
        let fails_open = if room.fails_open { FLAG_FAIL_OPEN } else { 0 };
        let flags = (whole | fails_open).to_be_bytes();
        let requests: [&[(u16, &[u8])]; 4] = [
            &[(CFG_CMD, &[CMD_BIND, 0, 0, 2])],
            &[(CFG_QUEUE_MAXLEN, &room.packets.to_be_bytes())],
            &[(CFG_FLAGS, &flags), (CFG_MASK, &mask)],
            // Packets come from now on.
            &[(CFG_PARAMS, &params)],
        ];
        socket.make_room_for_answers(room.bytes)?;
        for attributes in requests {
            let mut request = Request::new(CONFIG, NLM_F_ACK, &fixed(number));
            for (kind, value) in attributes {
                request = request.attribute(*kind, value);
            }
            socket.ask(&request.finish(), |_, _: &mut Vec<()>| ())?;
        }
        if !room.tells_overflow {
            socket.ignore_overflow()?;
        }
        Ok(Self { socket, number })
    }

    /// Says what becomes of packets for which there is no room from now on: they pass, or are
    /// dropped.
    ///
    /// # Errors
    /// The request cannot be sent. What the kernel says to it comes as packets do.
    pub fn set_fail_open(&self, fails_open: bool) -> io::Result<()> {
        let flags = if fails_open { FLAG_FAIL_OPEN } else { 0 };
        let mut request = Writer::default();
        let begin = request.begin(CONFIG, NLM_F_REQUEST, 0, &fixed(self.number));
        request.attribute(CFG_FLAGS, &flags.to_be_bytes());
        request.attribute(CFG_MASK, &FLAG_FAIL_OPEN.to_be_bytes());
        request.end(begin);
        self.send(&request)
    }

    /// The number of the queue.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Calls `each` with the packets of the next datagram; false: there is none yet.
    ///
    /// # Errors
    /// Those of the socket, or the kernel refuses a verdict: but that the packet is gone, as
    /// when its interface is, is none.
    pub fn receive_now(
        &self,
        buffer: &mut [u8],
        mut each: impl FnMut(Packet<'_>),
    ) -> io::Result<bool> {
        let Some(datagram) = self.socket.receive_now(buffer)? else {
            return Ok(false);
        };
        for message in Messages::of(datagram) {
            match Packet::of(message) {
                Ok(packet) => packet.into_iter().for_each(&mut each),
                Err(error) if errno(&error) == Some(ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Gives verdicts. When this returns those packets have gone on their way.
    ///
    /// # Errors
    /// The kernel does not take them.
    pub fn send(&self, verdicts: &Writer) -> io::Result<()> {
        self.socket.put(verdicts.bytes())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What the kernel has dropped of queues because there was no room, by their numbers: the text
/// of `/proc/net/netfilter/nfnetlink_queue`.
pub fn dropped(text: &str) -> impl Iterator<Item = (u16, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let full: u64 = words.nth(4)?.parse().ok()?;
        let unread: u64 = words.next()?.parse().ok()?;
        Some((number, full + unread))
    })
}

/// A packet's number in the queue of a message, for tests of who reads them.
#[doc(hidden)]
pub fn message_for_test(queue: u16, id: u32, packet: &[u8]) -> Vec<u8> {
    let mut head = id.to_be_bytes().to_vec();
    head.extend([8, 0, 3]);
    let request = Request::new(PACKET, 0, &fixed(queue)).attribute(ATTR_PACKET_HDR, &head);
    request.attribute(ATTR_PAYLOAD, packet).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half;

    #[test]
    fn packets_are_read_whatever_is_cut() {
        let message = message_for_test(7, 4711, &[0x45, 0, 0, 20]);
        let read = |bytes: &[u8]| {
            let message = Messages::of(bytes).next();
            message.map(|message| {
                Packet::of(message).map(|found| found.map(|p| (p.queue, p.id, p.bytes.to_vec())))
            })
        };
        let expected = Some((7, 4711, vec![0x45, 0, 0, 20]));
        assert_eq!(read(&message).unwrap().unwrap(), expected);
        for cut in 0..message.len() {
            // Its length is wrong: it is no message.
            assert!(read(&message[..cut]).is_none(), "cut at {cut}");
        }
        let mut short = Request::new(PACKET, 0, &fixed(7)).finish();
        assert!(read(&short).unwrap().is_err(), "no number");
        let cut = Request::new(PACKET, 0, &fixed(7)).attribute(ATTR_PACKET_HDR, &[1, 2]);
        assert!(read(&cut.finish()).unwrap().is_err(), "half a number");
        short.truncate(18);
        short[0] = 18;
        assert!(read(&short).unwrap().is_err(), "no queue");
    }

    #[test]
    fn verdicts_are_as_the_kernel_has_them() {
        let mut writer = Writer::default();
        verdict(&mut writer, 7, 0x0102, true, Some(1000));
        verdict(&mut writer, 7, 0x0103, false, None);
        let bytes = writer.into_bytes();
        assert_eq!(half(&bytes, 4), Some(0x301));
        assert_eq!(bytes[16..20], [0, 0, 0, 7]);
        assert_eq!(bytes[20..32], [12, 0, 2, 0, 0, 0, 0, 1, 0, 0, 1, 2]);
        assert_eq!(bytes[32..40], [8, 0, 3, 0, 0, 0, 3, 0xe8]);
        assert_eq!(bytes[64..], [0, 0, 0, 0, 0, 0, 1, 3]);
    }

    #[test]
    fn a_packet_passes_with_other_bytes_or_as_it_was() {
        let pass = |id, bytes| {
            let mut writer = Writer::default();
            pass_as(&mut writer, 7, id, bytes);
            writer.into_bytes()
        };
        let bytes = pass(0x0102, Some(&[0x45, 9][..]));
        assert_eq!(bytes[..8], [40, 0, 0, 0, 1, 3, 1, 0]);
        assert_eq!(bytes[16..20], [0, 0, 0, 7]);
        assert_eq!(bytes[20..32], [12, 0, 2, 0, 0, 0, 0, 1, 0, 0, 1, 2]);
        assert_eq!(bytes[32..], [6, 0, 10, 0, 0x45, 9, 0, 0]);
        assert_eq!(pass(1, None).len(), 32);
    }

    #[test]
    fn what_was_dropped_is_read() {
        let text =
            "    7  31337     3 2   256     5     1       12  1\n  bad\n 8 1 0 2 0 0 0 1 1\n";
        let all: Vec<_> = dropped(text).collect();
        assert_eq!(all, [(7, 6), (8, 0)]);
    }
}

//! netfilter's queue (NFQUEUE) for a program that changes packets: each comes in one piece, for
//! the kernel cuts superpackets (GSO) and finishes checksums first, and goes on with other bytes
//! or as it was. Where there is no room in the queue packets go on as they are.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    Attributes, Message, Messages, NLM_F_ACK, Outcome, Protocol, Request, Socket, read::malformed,
};

/// `NFNL_SUBSYS_QUEUE` of linux/netfilter/nfnetlink.h, with the kinds of its messages
/// (linux/netfilter/nfnetlink_queue.h).
const PACKET: u16 = 3 << 8;
const VERDICT: u16 = PACKET | 1;
const CONFIG: u16 = PACKET | 2;

const CFG_CMD: u16 = 1;
const CFG_PARAMS: u16 = 2;
const CFG_QUEUE_MAXLEN: u16 = 3;
const CFG_MASK: u16 = 4;
const CFG_FLAGS: u16 = 5;
const CMD_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// What finds no room passes.
const FLAG_FAIL_OPEN: u32 = 1;

const ATTR_PACKET_HDR: u16 = 1;
const ATTR_VERDICT_HDR: u16 = 2;
const ATTR_PAYLOAD: u16 = 10;

const NF_ACCEPT: u32 = 1;

/// So many packets wait in the kernel at most.
const PACKETS: u32 = 4096;
/// So many bytes of them wait to be read.
const ROOM: usize = 8 << 20;
/// A packet is copied as a whole.
const COPIED: u32 = 0xffff;
/// Bytes of one message at most: a packet and what the kernel says of it.
const MESSAGE: usize = 2 * 0x1_0000;

/// A queue of this process's network namespace.
#[derive(Debug)]
pub struct RewriteQueue {
    socket: Socket,
    number: u16,
    buffer: Vec<u8>,
}

/// `struct nfgenmsg`: AF_UNSPEC, version 0, and the queue.
fn fixed(queue: u16) -> [u8; 4] {
    let [high, low] = queue.to_be_bytes();
    [0, 0, high, low]
}

/// The number of a packet that waits, and its bytes from the IP header on; `None`: it is another
/// message.
///
/// # Errors
/// The kernel refuses what was sent to it before, or the message is cut.
pub fn packet_of(message: Message<'_>) -> io::Result<Option<(u32, &[u8])>> {
    match message.outcome() {
        Outcome::Acknowledged(outcome) | Outcome::Done(outcome) => outcome.map(|()| None),
        Outcome::Data if message.kind == PACKET && message.body.len() >= 4 => {
            let attributes = Attributes::behind(message.body, 4);
            let head = attributes.get(ATTR_PACKET_HDR).ok_or_else(malformed)?;
            let id = head.first_chunk().ok_or_else(malformed)?;
            let bytes = attributes.get(ATTR_PAYLOAD).unwrap_or(&[]);
            Ok(Some((u32::from_be_bytes(*id), bytes)))
        }
        Outcome::Data | Outcome::Nothing => Ok(None),
    }
}

/// The verdict that a packet goes on, with these bytes if there are some.
fn pass(queue: u16, id: u32, bytes: Option<&[u8]>) -> Vec<u8> {
    let head = [NF_ACCEPT.to_be_bytes(), id.to_be_bytes()].concat();
    let request = Request::new(VERDICT, 0, &fixed(queue)).attribute(ATTR_VERDICT_HDR, &head);
    match bytes {
        Some(bytes) => request.attribute(ATTR_PAYLOAD, bytes).finish(),
        None => request.finish(),
    }
}

impl RewriteQueue {
    /// Takes a queue (CAP_NET_ADMIN).
    ///
    /// # Errors
    /// The kernel lacks queues, or another program has this one (EBUSY, or EPERM).
    pub fn take(number: u16) -> io::Result<Self> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.make_room_for_answers(ROOM)?;
        let params = [&COPIED.to_be_bytes()[..], &[COPY_PACKET]].concat();
        let flags = FLAG_FAIL_OPEN.to_be_bytes();
        let requests: [&[(u16, &[u8])]; 4] = [
            &[(CFG_CMD, &[CMD_BIND, 0, 0, 0])],
            &[(CFG_QUEUE_MAXLEN, &PACKETS.to_be_bytes())],
            &[(CFG_FLAGS, &flags), (CFG_MASK, &flags)],
            // Packets come from now on.
            &[(CFG_PARAMS, &params)],
        ];
        for attributes in requests {
            let mut request = Request::new(CONFIG, NLM_F_ACK, &fixed(number));
            for (kind, value) in attributes {
                request = request.attribute(*kind, value);
            }
            socket.ask(&request.finish(), |_, _: &mut Vec<()>| ())?;
        }
        socket.ignore_overflow()?;
        Ok(Self {
            socket,
            number,
            buffer: vec![0; MESSAGE],
        })
    }

    /// Asks `change` about the packets of the next datagram: the bytes that each is to have from
    /// then on, or `None` where it stays as it is. False: none waits.
    ///
    /// # Errors
    /// Those of the socket, or the kernel refuses a verdict.
    pub fn change_next(
        &mut self,
        mut change: impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> io::Result<bool> {
        let Some(datagram) = self.socket.receive_now(&mut self.buffer)? else {
            return Ok(false);
        };
        for message in Messages::of(datagram) {
            if let Some((id, bytes)) = packet_of(message)? {
                // A longer one is no packet.
                let changed = change(bytes).filter(|bytes| bytes.len() <= 0xffff - 4);
                self.socket
                    .put(&pass(self.number, id, changed.as_deref()))?;
            }
        }
        Ok(true)
    }
}

impl AsFd for RewriteQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &[u8], payload: &[u8]) -> Vec<u8> {
        let request = Request::new(PACKET, 0, &fixed(7)).attribute(ATTR_PACKET_HDR, id);
        request.attribute(ATTR_PAYLOAD, payload).finish()
    }

    #[test]
    fn packets_are_read_whatever_is_cut() {
        let whole = message(&[0, 0, 0x12, 0x67, 8, 0, 3], &[0x45, 0, 0, 20]);
        let read = |bytes: &[u8]| {
            let mut messages = Messages::of(bytes);
            let found = messages.next().map(packet_of);
            found.map(|found| found.map(|found| found.map(|(id, bytes)| (id, bytes.to_vec()))))
        };
        let expected = Some((0x1267, vec![0x45, 0, 0, 20]));
        assert_eq!(read(&whole).unwrap().unwrap(), expected);
        for cut in 0..whole.len() {
            // Its length is wrong: it is no message.
            assert!(read(&whole[..cut]).is_none(), "cut at {cut}");
        }
        assert!(read(&message(&[1, 2], &[])).unwrap().is_err(), "no number");
        let bare = Request::new(PACKET, 0, &fixed(7)).finish();
        assert!(read(&bare).unwrap().is_err(), "no attributes");
    }

    #[test]
    fn verdicts_are_as_the_kernel_has_them() {
        let bytes = pass(7, 0x0102, Some(&[0x45, 9]));
        assert_eq!(bytes[..8], [40, 0, 0, 0, 1, 3, 1, 0]);
        assert_eq!(bytes[16..20], [0, 0, 0, 7]);
        assert_eq!(bytes[20..32], [12, 0, 2, 0, 0, 0, 0, 1, 0, 0, 1, 2]);
        assert_eq!(bytes[32..], [6, 0, 10, 0, 0x45, 9, 0, 0]);
        assert_eq!(pass(7, 1, None).len(), 32);
    }
}

//! netfilter's queue (NFQUEUE) for a program that changes packets: each comes in one piece, for
//! the kernel cuts superpackets (GSO) and finishes checksums first, and goes on with other bytes
//! or as it was. Where there is no room in the queue packets go on as they are.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    Writer,
    queue::{Queue, Room, pass_as},
};

/// Packets are copied as a whole.
const ROOM: Room = Room {
    packets: 4096,
    fails_open: true,
    copied: 0xffff,
    bytes: 8 << 20,
    whole: false,
    tells_overflow: false,
};
/// Bytes of one message at most: a packet and what the kernel says of it.
const MESSAGE: usize = 2 * 0x1_0000;

/// A queue of this process's network namespace.
#[derive(Debug)]
pub struct RewriteQueue {
    queue: Queue,
    buffer: Vec<u8>,
}

impl RewriteQueue {
    /// Takes a queue (CAP_NET_ADMIN).
    ///
    /// # Errors
    /// The kernel lacks queues, or another program has this one (EBUSY, or EPERM).
    pub fn take(number: u16) -> io::Result<Self> {
        Ok(Self {
            queue: Queue::take(number, ROOM)?,
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
        let mut verdicts = Writer::default();
        let number = self.queue.number();
        let more = self.queue.receive_now(&mut self.buffer, |packet| {
            // A longer one is no packet.
            let changed = change(packet.bytes).filter(|bytes| bytes.len() <= 0xffff - 4);
            pass_as(&mut verdicts, number, packet.id, changed.as_deref());
        })?;
        if !verdicts.bytes().is_empty() {
            self.queue.send(&verdicts)?;
        }
        Ok(more)
    }
}

impl AsFd for RewriteQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

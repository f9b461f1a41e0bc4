//! Bytes of a connection on their way from one socket to the other. At most one buffer or
//! one pipe of them is held: as long as the receiver takes none, none are read.

use std::os::fd::OwnedFd;

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
    pipe::{SpliceFlags, splice},
};

use crate::pipes::{Pipe, Pipes};

/// What is read at once where bytes are copied, and what a receiver that takes none makes
/// of memory.
pub(crate) const COPY_SIZE: usize = 16 << 10;
/// A direction may move so many bytes until others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Reads of less than [`COPY_SIZE`] in a row after which a pipe costs more than it saves.
const SMALL_READS: u8 = 4;

/// One end of a connection as its socket is known to be.
pub(crate) struct End {
    pub socket: OwnedFd,
    /// There may be something to read.
    pub readable: bool,
    /// There may be room to write.
    pub writable: bool,
    /// What can be read now is the last of it.
    pub ended: bool,
    /// The connection was reset at this end, or has another error.
    pub failed: bool,
}

impl End {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: true,
            writable: true,
            ended: false,
            failed: false,
        }
    }
}

/// The progress of a direction after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A socket must have something to read, or room to write, first.
    Waits,
    /// The direction has had its turn and could go on.
    HasMore,
    /// All was sent, and the end is reached.
    Done,
    /// The sender was reset; what it had sent before is sent on.
    SenderFailed,
    /// The receiver takes nothing any more.
    ReceiverFailed,
}

/// A direction of a connection, with the bytes on their way.
#[derive(Default)]
pub(crate) struct Direction {
    /// Read and not yet sent, from `sent` on.
    held: Vec<u8>,
    sent: usize,
    pipe: Option<(Pipe, usize)>,
    is_large: bool,
    small_reads: u8,
    /// The sender sends no more.
    is_over: bool,
    /// The number of writes.
    pub writes: u32,
    /// Bytes that went through since [`Self::take_moved`].
    moved: u64,
    /// Bytes still to come that are not the sender's.
    ahead: u64,
}

impl Direction {
    /// Sends this ahead of the sender's bytes.
    pub fn put_first(&mut self, bytes: Vec<u8>) {
        self.ahead = bytes.len() as u64;
        self.held = bytes;
    }

    /// The sender's bytes that were sent since the last call.
    pub fn take_moved(&mut self) -> u64 {
        let moved = std::mem::take(&mut self.moved);
        let ahead = self.ahead.min(moved);
        self.ahead -= ahead;
        moved - ahead
    }

    /// Gives its pipe back.
    pub fn close(&mut self, pipes: &mut Pipes) {
        match self.pipe.take() {
            Some((pipe, 0)) => pipes.give(pipe),
            Some((pipe, _)) => pipes.forget(pipe),
            None => (),
        }
    }

    /// Moves what can be moved.
    pub fn go_on(
        &mut self,
        from: &mut End,
        to: &mut End,
        buffer: &mut [u8; COPY_SIZE],
        pipes: &mut Pipes,
    ) -> Progress {
        let progress = self.move_bytes(from, to, buffer, pipes);
        if let Some((pipe, 0)) = self.pipe.take_if(|(_, held)| *held == 0) {
            pipes.give(pipe);
        }
        progress
    }

    fn move_bytes(
        &mut self,
        from: &mut End,
        to: &mut End,
        buffer: &mut [u8; COPY_SIZE],
        pipes: &mut Pipes,
    ) -> Progress {
        let until = self.moved + TURN_BYTES as u64;
        while self.moved < until {
            if let Err(progress) = self.send_held(to) {
                return progress;
            }
            if self.is_over {
                return Progress::Done;
            }
            if !from.readable {
                return Progress::Waits;
            }
            if self.is_large && self.pipe.is_none() {
                self.pipe = pipes.take().map(|pipe| (pipe, 0));
            }
            let read = match self.pipe {
                Some(_) => self.read_into_pipe(from),
                None => self.copy(from, to, buffer),
            };
            match read {
                Ok(0) if from.failed => return Progress::SenderFailed,
                Ok(0) => self.is_over = true,
                Ok(_) => (),
                Err(Errno::AGAIN) => {
                    from.readable = false;
                    return Progress::Waits;
                }
                Err(Errno::INTR) => (),
                Err(_) => return Progress::SenderFailed,
            }
        }
        Progress::HasMore
    }

    /// Sends what was read before.
    fn send_held(&mut self, to: &mut End) -> Result<(), Progress> {
        while !self.held.is_empty() {
            if !to.writable {
                return Err(Progress::Waits);
            }
            self.writes += 1;
            match send(&to.socket, &self.held[self.sent..], SendFlags::NOSIGNAL) {
                Ok(len) => {
                    self.moved += len as u64;
                    self.sent += len;
                    if self.sent == self.held.len() {
                        // Not cleared: the memory of idle connections is given back.
                        (self.held, self.sent) = (Vec::new(), 0);
                    }
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => to.writable = false,
                Err(_) => return Err(Progress::ReceiverFailed),
            }
        }
        while let Some((pipe, held)) = self.pipe.as_mut().filter(|(_, held)| *held > 0) {
            if !to.writable {
                return Err(Progress::Waits);
            }
            self.writes += 1;
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            match splice(&pipe.reader, None, &to.socket, None, *held, flags) {
                Ok(len) => {
                    self.moved += len as u64;
                    *held -= len;
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => to.writable = false,
                Err(_) => return Err(Progress::ReceiverFailed),
            }
        }
        Ok(())
    }

    fn read_into_pipe(&mut self, from: &mut End) -> Result<usize, Errno> {
        let Some((pipe, held)) = &mut self.pipe else {
            unreachable!("there is one")
        };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let len = splice(&from.socket, None, &pipe.writer, None, pipe.size, flags)?;
        *held += len;
        self.note_read(len);
        Ok(len)
    }

    fn copy(
        &mut self,
        from: &mut End,
        to: &mut End,
        buffer: &mut [u8; COPY_SIZE],
    ) -> Result<usize, Errno> {
        let (len, _) = recv(&from.socket, &mut buffer[..], RecvFlags::empty())?;
        self.note_read(len);
        // The socket is empty, unless its end is still to be read.
        if len < buffer.len() && !from.ended {
            from.readable = false;
        }
        if len > 0 && to.writable {
            self.writes += 1;
            match send(&to.socket, &buffer[..len], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.moved += sent as u64;
                    if sent == len {
                        return Ok(len);
                    }
                    self.held = buffer[sent..len].to_vec();
                    return Ok(len);
                }
                Err(Errno::AGAIN) => to.writable = false,
                // Sending it again says why not.
                Err(_) => (),
            }
        }
        self.held = buffer[..len].to_vec();
        Ok(len)
    }

    fn note_read(&mut self, len: usize) {
        if len >= COPY_SIZE {
            (self.is_large, self.small_reads) = (true, 0);
        } else if self.is_large {
            self.small_reads += 1;
            if self.small_reads == SMALL_READS {
                (self.is_large, self.small_reads) = (false, 0);
            }
        }
    }
}

//! A netlink socket: requests, and their answers read to the end.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with, sockopt,
    },
};

use crate::{
    Message, Messages, NLM_F_DUMP, Outcome,
    read::{Refused, half, malformed},
};

/// The kernel's datagrams are never longer.
pub const DATAGRAM: usize = 1 << 16;
/// Tries to read a table that others change meanwhile.
const DUMPS: usize = 16;

/// Which part of the kernel answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Interfaces, addresses, routes, neighbours, traffic control (NETLINK_ROUTE).
    Route,
    /// nf_tables and the rest of netfilter (NETLINK_NETFILTER).
    Netfilter,
    /// Sockets (NETLINK_SOCK_DIAG).
    SockDiag,
}

/// A netlink socket of this process's network namespace.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket, on which errors come with the kernel's words and without the request.
    ///
    /// # Errors
    /// The kernel lacks the protocol, or there are too many files.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let protocol = match protocol {
            // It is number 0, the default.
            Protocol::Route => None,
            Protocol::Netfilter => Some(netlink::NETFILTER),
            Protocol::SockDiag => Some(netlink::SOCK_DIAG),
        };
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        switch_on(&socket, libc::NETLINK_EXT_ACK)?;
        switch_on(&socket, libc::NETLINK_CAP_ACK)?;
        Ok(Self(socket))
    }

    /// Makes room for so many bytes of answers that wait (CAP_NET_ADMIN).
    ///
    /// # Errors
    /// The capability is not there.
    pub fn make_room_for_answers(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size_force(&self.0, bytes)?)
    }

    /// Makes room for a request of so many bytes (CAP_NET_ADMIN): the kernel takes one only
    /// whole.
    ///
    /// # Errors
    /// The capability is not there.
    pub fn make_room_for_request(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size_force(&self.0, bytes)?)
    }

    /// Sends messages; what is left of an earlier answer is thrown away first.
    ///
    /// # Errors
    /// The kernel does not take them.
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        self.drain();
        send(&self.0, messages, SendFlags::empty())?;
        Ok(())
    }

    /// Sends messages to which no answer is awaited; what has come stays to be read.
    ///
    /// # Errors
    /// The kernel does not take them.
    pub fn put(&self, messages: &[u8]) -> io::Result<()> {
        send(&self.0, messages, SendFlags::empty())?;
        Ok(())
    }

    /// Has what finds no room be counted where it comes from, and be no error of reading.
    ///
    /// # Errors
    /// The kernel lacks the option.
    pub fn ignore_overflow(&self) -> io::Result<()> {
        switch_on(&self.0, libc::NETLINK_NO_ENOBUFS)
    }

    /// Throws away what was not read of answers.
    pub fn drain(&self) {
        let mut buffer = [0; 64];
        loop {
            match recv(&self.0, &mut buffer, RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }

    /// Waits for the next datagram.
    ///
    /// # Errors
    /// The kernel had no room for an answer (ENOBUFS), or one is longer than the buffer.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let received = self.receive_with(buffer, RecvFlags::TRUNC)?;
        Ok(received.unwrap_or(&[]))
    }

    /// The next datagram, if one is there.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_now<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        self.receive_with(buffer, RecvFlags::TRUNC | RecvFlags::DONTWAIT)
    }

    fn receive_with<'b>(
        &self,
        buffer: &'b mut [u8],
        flags: RecvFlags,
    ) -> io::Result<Option<&'b [u8]>> {
        let length = loop {
            match recv(&self.0, &mut *buffer, flags) {
                Ok((_, length)) => break length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        buffer.get(..length).map(Some).ok_or_else(malformed)
    }

    /// Sends a request and reads its answer to the end: what `read` makes of the messages. A
    /// dump that met a change, or that the kernel had no room for, is asked for again.
    ///
    /// # Errors
    /// The kernel's, as [`errno`] has it, or the answer is none.
    pub fn ask<T>(
        &self,
        request: &[u8],
        mut read: impl FnMut(Message<'_>, &mut Vec<T>),
    ) -> io::Result<Vec<T>> {
        let is_dump = half(request, 6).is_some_and(|flags| flags & NLM_F_DUMP == NLM_F_DUMP);
        let mut buffer = vec![0; DATAGRAM];
        for _ in 0..DUMPS {
            self.send(request)?;
            let mut answer = Answer::default();
            let outcome = loop {
                let received = self.receive(&mut buffer);
                match received.and_then(|datagram| answer.take(datagram, &mut read)) {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            match outcome {
                Err(error) if is_dump && errno(&error) == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
                Ok(()) if is_dump && answer.is_interrupted => {}
                Ok(()) => return Ok(answer.found),
            }
        }
        Err(io::Error::other(
            "what the kernel lists changes faster than it can be read",
        ))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Asks by a socket of its own, as [`Socket::ask`] does.
///
/// # Errors
/// As [`Socket::open`] and [`Socket::ask`].
pub fn ask<T>(
    protocol: Protocol,
    request: &[u8],
    mut read: impl FnMut(Message<'_>) -> Option<T>,
) -> io::Result<Vec<T>> {
    let socket = Socket::open(protocol)?;
    socket.ask(request, |message, found| found.extend(read(message)))
}

/// The number of the kernel's error, with words or without.
pub fn errno(error: &io::Error) -> Option<i32> {
    let refused = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Refused>());
    let with_words = refused.map(|refused| refused.errno);
    with_words.or_else(|| error.raw_os_error())
}

/// The part of an answer that was read.
pub(crate) struct Answer<T> {
    pub(crate) found: Vec<T>,
    pub(crate) is_interrupted: bool,
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            is_interrupted: false,
        }
    }
}

impl<T> Answer<T> {
    /// Reads one datagram; false: no more follow.
    pub(crate) fn take(
        &mut self,
        datagram: &[u8],
        read: &mut impl FnMut(Message<'_>, &mut Vec<T>),
    ) -> io::Result<bool> {
        let mut messages = Messages::of(datagram);
        let mut goes_on = None;
        for message in messages.by_ref() {
            self.is_interrupted |= message.is_interrupted();
            match message.outcome() {
                Outcome::Data => {
                    read(message, &mut self.found);
                    goes_on = Some(message.goes_on());
                }
                Outcome::Acknowledged(outcome) | Outcome::Done(outcome) => {
                    return outcome.map(|()| false);
                }
                Outcome::Nothing => goes_on = Some(true),
            }
        }
        match goes_on {
            Some(goes_on) if messages.rest().is_empty() => Ok(goes_on),
            _ => Err(malformed()),
        }
    }
}

#[allow(unsafe_code, reason = "no safe crate sets options of netlink sockets")]
fn switch_on(socket: &OwnedFd, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and `on` is as long as it is said to be.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

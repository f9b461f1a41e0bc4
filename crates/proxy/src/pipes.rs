//! Pipes through which bytes go from socket to socket without being copied. A connection
//! has one only while bytes are in it, so that few serve many.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

/// What a pipe is to hold, the best that is to be had: the larger it is, the less a byte
/// costs (measured: 1 MiB takes three quarters of the time of 256 KiB). The kernel lets
/// one user have 64 of the largest (pipe-user-pages-soft), and gives the next ones less.
const PIPE_SIZES: [usize; 2] = [1 << 20, 256 << 10];
/// One smaller than this is worth less than copying.
const SMALLEST: usize = 64 << 10;
/// The most pipes that a worker makes. Connections beyond that copy.
pub(crate) const MAX_PIPES: usize = 64;

/// An empty pipe, and what it holds at most.
pub(crate) struct Pipe {
    pub reader: OwnedFd,
    pub writer: OwnedFd,
    pub size: usize,
}

/// The pipes of a worker.
#[derive(Default)]
pub(crate) struct Pipes {
    free: Vec<Pipe>,
    made: usize,
}

impl Pipes {
    /// One, unless all are in use or the process has no descriptors left.
    pub fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.free.pop() {
            return Some(pipe);
        }
        if self.made == MAX_PIPES {
            return None;
        }
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        let mut sizes = PIPE_SIZES.iter();
        let size = sizes.find_map(|size| fcntl_setpipe_size(&writer, *size).ok());
        let size = size.or_else(|| fcntl_getpipe_size(&writer).ok())?;
        if size < SMALLEST {
            return None;
        }
        self.made += 1;
        Some(Pipe {
            reader,
            writer,
            size,
        })
    }

    /// Takes one back that is empty.
    pub fn give(&mut self, pipe: Pipe) {
        self.free.push(pipe);
    }

    /// One with bytes in it is closed with its connection.
    pub fn forget(&mut self, pipe: Pipe) {
        drop(pipe);
        self.made -= 1;
    }
}

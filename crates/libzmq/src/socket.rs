//! A socket with a context of its own, so that closing one waits for its own
//! messages only.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_long, c_void},
    fmt,
    io::{self, ErrorKind},
    ptr::NonNull,
    time::Duration,
};

use crate::functions::{Libzmq, PollItem};

// From zmq.h.
const ZMQ_SUB: c_int = 2;
const ZMQ_XPUB: c_int = 9;
const ZMQ_SUBSCRIBE: c_int = 6;
const ZMQ_RCVMORE: c_int = 13;
const ZMQ_LINGER: c_int = 17;
const ZMQ_SNDHWM: c_int = 23;
const ZMQ_RCVTIMEO: c_int = 27;
const ZMQ_LAST_ENDPOINT: c_int = 32;
const ZMQ_IMMEDIATE: c_int = 39;
const ZMQ_IPV6: c_int = 42;
const ZMQ_CURVE_SERVER: c_int = 47;
const ZMQ_CURVE_PUBLICKEY: c_int = 48;
const ZMQ_CURVE_SECRETKEY: c_int = 49;
const ZMQ_CURVE_SERVERKEY: c_int = 50;
const ZMQ_HEARTBEAT_IVL: c_int = 75;
const ZMQ_DONTWAIT: c_int = 1;
const ZMQ_SNDMORE: c_int = 2;
const ZMQ_POLLIN: i16 = 1;

/// What a system call says of an argument that it cannot take.
const EINVAL: c_int = 22;
/// A key as Z85, with the zero at its end.
const KEY_TEXT: usize = 41;
/// The longest endpoint that is asked for.
const ENDPOINT: usize = 256;

/// The call that libzmq refused, with its error text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: c_int,
    text: String,
}

impl Error {
    /// There is nothing to receive, or no room to send, at the moment.
    pub fn is_again(&self) -> bool {
        self.io_kind() == ErrorKind::WouldBlock
    }

    fn io_kind(&self) -> ErrorKind {
        io::Error::from_raw_os_error(self.code).kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl Libzmq {
    /// What went wrong in this thread's last call.
    fn error(&self) -> Error {
        // SAFETY: the text is a constant of the library or, for an error of the
        // system, strerror's, and copied at once.
        let (code, text) = unsafe {
            let code = (self.zmq_errno)();
            (code, CStr::from_ptr((self.zmq_strerror)(code)))
        };
        let text = text.to_string_lossy().into_owned();
        Error { code, text }
    }

    fn checked(&self, result: c_int) -> Result<c_int, Error> {
        match result {
            -1 => Err(self.error()),
            good => Ok(good),
        }
    }

    /// A new pair of CURVE keys.
    pub fn curve_keys(&self) -> Result<CurveKeys, Error> {
        let mut texts = [[0_u8; KEY_TEXT]; 2];
        let [public, secret] = &mut texts;
        // SAFETY: each has room for 40 characters and a zero.
        let made = unsafe {
            (self.zmq_curve_keypair)(public.as_mut_ptr().cast(), secret.as_mut_ptr().cast())
        };
        self.checked(made)?;
        let text = |key: [u8; KEY_TEXT]| {
            let key = CStr::from_bytes_until_nul(&key).expect("libzmq ends a key with a zero");
            key.to_string_lossy().into_owned()
        };
        let [public, secret] = texts.map(text);
        Ok(CurveKeys { public, secret })
    }
}

/// A pair of CURVE keys, each as 40 characters of Z85.
pub struct CurveKeys {
    /// What the other end has to know.
    pub public: String,
    secret: String,
}

/// The messaging pattern of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A publisher that sees subscriptions.
    XPub,
    /// Receives what publishers send.
    Sub,
}

/// A socket. Messages are sequences of frames.
pub struct Socket {
    library: &'static Libzmq,
    context: NonNull<c_void>,
    socket: NonNull<c_void>,
}

// SAFETY: libzmq lets a socket move between threads; nobody has another copy of
// the pointers.
unsafe impl Send for Socket {}

impl Socket {
    /// A socket that is neither bound nor connected.
    pub fn new(library: &'static Libzmq, kind: Kind) -> Result<Self, Error> {
        // SAFETY: without arguments.
        let context = unsafe { (library.zmq_ctx_new)() };
        let context = NonNull::new(context).ok_or_else(|| library.error())?;
        let kind = match kind {
            Kind::XPub => ZMQ_XPUB,
            Kind::Sub => ZMQ_SUB,
        };
        // SAFETY: the context is open.
        let socket = unsafe { (library.zmq_socket)(context.as_ptr(), kind) };
        let Some(socket) = NonNull::new(socket) else {
            let error = library.error();
            terminate(library, context);
            return Err(error);
        };
        Ok(Self {
            library,
            context,
            socket,
        })
    }

    fn set(&self, option: c_int, value: &[u8]) -> Result<(), Error> {
        // SAFETY: libzmq copies as many bytes as it is told.
        let set = unsafe {
            let value = (value.as_ptr().cast(), value.len());
            (self.library.zmq_setsockopt)(self.socket.as_ptr(), option, value.0, value.1)
        };
        self.library.checked(set).map(|_| ())
    }

    fn set_number(&self, option: c_int, value: c_int) -> Result<(), Error> {
        self.set(option, &value.to_ne_bytes())
    }

    /// Its value, in as many bytes of the buffer as it takes.
    fn option<'a>(&self, option: c_int, buffer: &'a mut [u8]) -> Result<&'a [u8], Error> {
        let mut length = buffer.len();
        // SAFETY: libzmq writes at most `length` bytes, and into it how many.
        let got = unsafe {
            let value = buffer.as_mut_ptr().cast();
            (self.library.zmq_getsockopt)(self.socket.as_ptr(), option, value, &mut length)
        };
        self.library.checked(got)?;
        Ok(&buffer[..length])
    }

    /// Dropping the socket waits this long for what is under way.
    pub fn set_linger(&self, most: Duration) -> Result<(), Error> {
        self.set_number(ZMQ_LINGER, milliseconds(most))
    }

    /// At most so many messages wait within libzmq for each peer.
    pub fn set_send_queue(&self, messages: i32) -> Result<(), Error> {
        self.set_number(ZMQ_SNDHWM, messages)
    }

    /// IPv6 beside IPv4.
    pub fn set_ipv6(&self) -> Result<(), Error> {
        self.set_number(ZMQ_IPV6, 1)
    }

    /// Nothing is queued for a peer that is not connected.
    pub fn set_immediate(&self) -> Result<(), Error> {
        self.set_number(ZMQ_IMMEDIATE, 1)
    }

    /// A connection is probed this often.
    pub fn set_heartbeat(&self, interval: Duration) -> Result<(), Error> {
        self.set_number(ZMQ_HEARTBEAT_IVL, milliseconds(interval))
    }

    /// Receiving waits this long.
    pub fn set_receive_timeout(&self, most: Duration) -> Result<(), Error> {
        self.set_number(ZMQ_RCVTIMEO, milliseconds(most))
    }

    /// Takes messages whose first frame begins so.
    pub fn subscribe(&self, prefix: &[u8]) -> Result<(), Error> {
        self.set(ZMQ_SUBSCRIBE, prefix)
    }

    /// Speaks CURVE, as a client of the server with this public key.
    pub fn set_curve_client(&self, server: &[u8; 32], own: &CurveKeys) -> Result<(), Error> {
        self.set(ZMQ_CURVE_SERVERKEY, server)?;
        self.set(ZMQ_CURVE_PUBLICKEY, own.public.as_bytes())?;
        self.set(ZMQ_CURVE_SECRETKEY, own.secret.as_bytes())
    }

    /// Speaks CURVE, as the server with these keys.
    pub fn set_curve_server(&self, own: &CurveKeys) -> Result<(), Error> {
        self.set_number(ZMQ_CURVE_SERVER, 1)?;
        self.set(ZMQ_CURVE_SECRETKEY, own.secret.as_bytes())
    }

    /// Connects, now and whenever the connection is lost.
    pub fn connect(&self, endpoint: &str) -> Result<(), Error> {
        self.attach(self.library.zmq_connect, endpoint)
    }

    /// Listens at this endpoint, such as `tcp://127.0.0.1:5556`.
    pub fn bind(&self, endpoint: &str) -> Result<(), Error> {
        self.attach(self.library.zmq_bind, endpoint)
    }

    fn attach(
        &self,
        how: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
        endpoint: &str,
    ) -> Result<(), Error> {
        let endpoint = CString::new(endpoint).map_err(|zero| Error {
            code: EINVAL,
            text: zero.to_string(),
        })?;
        // SAFETY: a string with its end.
        let attached = unsafe { how(self.socket.as_ptr(), endpoint.as_ptr()) };
        self.library.checked(attached).map(|_| ())
    }

    /// The endpoint to which the socket was bound last.
    pub fn last_endpoint(&self) -> Result<String, Error> {
        let mut buffer = [0; ENDPOINT];
        let text = self.option(ZMQ_LAST_ENDPOINT, &mut buffer)?;
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Waits until there is something to receive.
    pub fn wait(&self, most: Duration) {
        let mut item = PollItem {
            socket: self.socket.as_ptr(),
            fd: 0,
            events: ZMQ_POLLIN,
            revents: 0,
        };
        // SAFETY: one item. What comes of it is seen by receiving.
        unsafe { (self.library.zmq_poll)(&mut item, 1, c_long::from(milliseconds(most))) };
    }

    /// One frame, if it is there; `None` for one of more than `most` bytes.
    pub fn try_receive(&self, most: usize) -> Result<Option<Vec<u8>>, Error> {
        self.receive_frame(most, ZMQ_DONTWAIT)
    }

    /// One message, within the timeout for receiving; a frame of more than
    /// `most` bytes is `None`.
    pub fn receive(&self, most: usize) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut frames = vec![self.receive_frame(most, 0)?];
        let mut more = [0; size_of::<c_int>()];
        while self.option(ZMQ_RCVMORE, &mut more)? != [0; size_of::<c_int>()] {
            frames.push(self.receive_frame(most, 0)?);
        }
        Ok(frames)
    }

    fn receive_frame(&self, most: usize, flags: c_int) -> Result<Option<Vec<u8>>, Error> {
        let mut frame = vec![0; most];
        // SAFETY: libzmq writes at most `most` bytes, and says how many there were.
        let length = unsafe {
            let buffer = frame.as_mut_ptr().cast();
            (self.library.zmq_recv)(self.socket.as_ptr(), buffer, most, flags)
        };
        let length = self.library.checked(length)? as usize;
        Ok((length <= most).then(|| {
            frame.truncate(length);
            frame
        }))
    }

    /// Sends one message, or none of it when there is no room for it now.
    pub fn try_send(&self, frames: &[&[u8]]) -> Result<(), Error> {
        for (number, frame) in frames.iter().enumerate() {
            let more = match number + 1 < frames.len() {
                true => ZMQ_SNDMORE,
                false => 0,
            };
            // SAFETY: libzmq copies as many bytes as it is told.
            let sent = unsafe {
                let (socket, flags) = (self.socket.as_ptr(), ZMQ_DONTWAIT | more);
                (self.library.zmq_send)(socket, frame.as_ptr().cast(), frame.len(), flags)
            };
            self.library.checked(sent)?;
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used again.
        unsafe { (self.library.zmq_close)(self.socket.as_ptr()) };
        terminate(self.library, self.context);
    }
}

/// Ends a context without open sockets; a signal only interrupts that.
fn terminate(library: &Libzmq, context: NonNull<c_void>) {
    // SAFETY: it is open, and not used again once this has succeeded.
    while unsafe { (library.zmq_ctx_term)(context.as_ptr()) } == -1
        && library.error().io_kind() == ErrorKind::Interrupted
    {}
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_crosses_over_curve_and_a_frame_that_is_too_long_is_none() {
        let library = Libzmq::get().unwrap();
        assert!(library.has_curve());
        let keys = library.curve_keys().unwrap();
        assert_eq!(keys.public.len(), 40);
        let subscriber = Socket::new(library, Kind::Sub).unwrap();
        subscriber.set_curve_server(&keys).unwrap();
        subscriber.set_receive_timeout(DEADLINE).unwrap();
        subscriber.subscribe(b"a").unwrap();
        subscriber.bind("tcp://127.0.0.1:*").unwrap();

        let publisher = Socket::new(library, Kind::XPub).unwrap();
        publisher.set_linger(DEADLINE).unwrap();
        let own = library.curve_keys().unwrap();
        let server = z85::decode(&keys.public).unwrap().try_into().unwrap();
        publisher.set_curve_client(&server, &own).unwrap();
        publisher
            .connect(&subscriber.last_endpoint().unwrap())
            .unwrap();
        // libzmq attends to a new publisher while the subscriber is read.
        let receiver = std::thread::spawn(move || subscriber.receive(3).unwrap());
        publisher.wait(DEADLINE);
        assert_eq!(publisher.try_receive(2).unwrap().unwrap(), b"\x01a");
        assert!(publisher.try_receive(2).unwrap_err().is_again());

        publisher.try_send(&[b"ab", b"", b"long"]).unwrap();
        assert_eq!(
            receiver.join().unwrap(),
            [Some(b"ab".to_vec()), Some(vec![]), None]
        );
    }

    #[test]
    fn what_libzmq_refuses_is_said_in_its_words() {
        let socket = Socket::new(Libzmq::get().unwrap(), Kind::XPub).unwrap();
        let error = socket.connect("nonsense").unwrap_err();
        assert_eq!(error.to_string(), "Invalid argument");
        let error = socket.connect("carrier://pigeon").unwrap_err();
        assert_eq!(error.to_string(), "Protocol not supported");
        let error = socket.connect("tcp://127.0.0.1:1\0").unwrap_err();
        assert!(error.to_string().contains("nul byte"), "{error}");
    }
}

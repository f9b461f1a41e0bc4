//! A web server for tests: answers each request by a function, on a port of
//! loopback, and remembers what was asked. Whatever a server may do wrong, the
//! function can: it writes the answer's bytes itself.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// A request: its first line, and its headers in lower case.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub line: String,
    headers: Vec<(String, String)>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A connection, plain or not.
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

type Answer = Box<dyn FnMut(&Asked, &mut dyn Stream) -> io::Result<()> + Send>;

/// A listening server; gone when it is dropped.
pub struct Web {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Mutex<Answer>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A function that wraps a connection, as into TLS.
pub type Wrap = Box<dyn Fn(TcpStream) -> Box<dyn Stream> + Send>;

impl Web {
    /// Over plain TCP.
    pub fn start(
        answer: impl FnMut(&Asked, &mut dyn Stream) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self::wrapped(Box::new(|stream| Box::new(stream)), 0, answer)
    }

    /// On a port that is known already: a server that comes back.
    pub fn start_on(
        port: u16,
        answer: impl FnMut(&Asked, &mut dyn Stream) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self::wrapped(Box::new(|stream| Box::new(stream)), port, answer)
    }

    pub fn wrapped(
        wrap: Wrap,
        port: u16,
        answer: impl FnMut(&Asked, &mut dyn Stream) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let addr = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(answer)));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (asked, answer, stop) = (asked.clone(), answer.clone(), stop.clone());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                    let mut stream = wrap(stream);
                    // A client that goes away is what some tests are about.
                    let _ = serve(&mut *stream, &asked, &answer);
                }
            })
        };
        Self {
            addr,
            asked,
            answer,
            stop,
            thread: Some(thread),
        }
    }

    /// From now on it answers like this.
    pub fn answer(
        &self,
        answer: impl FnMut(&Asked, &mut dyn Stream) -> io::Result<()> + Send + 'static,
    ) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.addr)
    }

    /// All requests that have come so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes it up.
        let _ = TcpStream::connect(self.addr);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    stream: &mut dyn Stream,
    asked: &Mutex<Vec<Asked>>,
    answer: &Mutex<Answer>,
) -> io::Result<()> {
    let request = {
        let mut reader = BufReader::new(&mut *stream);
        let mut request = Asked::default();
        reader.read_line(&mut request.line)?;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            if let Some((key, value)) = line.split_once(':') {
                let key = key.trim().to_ascii_lowercase();
                request.headers.push((key, value.trim().to_owned()));
            }
        }
        request
    };
    if request.line.is_empty() {
        return Ok(());
    }
    asked.lock().unwrap().push(request.clone());
    answer.lock().unwrap()(&request, stream)?;
    stream.flush()
}

/// A whole answer; `head` has lines such as `ETag: "1"`.
pub fn reply(stream: &mut dyn Stream, status: &str, head: &[&str], body: &[u8]) -> io::Result<()> {
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n",
        body.len()
    );
    for line in head {
        answer.push_str(line);
        answer.push_str("\r\n");
    }
    answer.push_str("\r\n");
    stream.write_all(answer.as_bytes())?;
    stream.write_all(body)
}

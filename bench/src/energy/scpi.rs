//! A meter on the network that answers SCPI queries with a number, in watts.
//! Whatever it does (silence, nonsense, no end of line, a closed connection)
//! costs a bounded time and memory, and no figure is made of it.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use super::{Meter, sampled::Sampled};

/// Connecting, and each answer, may take so long.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A number needs less.
const LONGEST_REPLY: usize = 64;
const DEFAULT_QUERY: &str = "MEAS:POW?";

/// The host of a network meter and the query that reads its power.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    query: String,
}

impl FromStr for Address {
    type Err = anyhow::Error;

    /// `HOST:PORT`, `HOST:PORT:QUERY`, an IPv6 host in brackets.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let behind = if text.starts_with('[') {
            text.find(']').context("a bracket is not closed")?
        } else {
            0
        };
        let colon = text[behind..].find(':').map(|at| at + behind);
        let (name, rest) = text.split_at(colon.context("scpi:HOST:PORT without a port")?);
        let rest = &rest[1..];
        let (port, query) = rest.split_once(':').unwrap_or((rest, DEFAULT_QUERY));
        let port: u16 = port
            .parse()
            .with_context(|| format!("{port:?} is no port"))?;
        ensure!(!query.contains('\n'), "a query is one line");
        Ok(Self {
            host: format!("{name}:{port}"),
            query: query.to_owned(),
        })
    }
}

/// Asks it from now on.
pub fn open(address: &Address) -> anyhow::Result<Box<dyn Meter>> {
    let mut meter = Scpi {
        address: address.clone(),
        stream: None,
    };
    let name = format!("SCPI {} {}", address.host, address.query);
    let asked = Sampled::start(name, move || meter.ask());
    Ok(Box::new(asked.with_context(|| {
        format!("the SCPI meter at {}", address.host)
    })?))
}

struct Scpi {
    address: Address,
    stream: Option<TcpStream>,
}

impl Scpi {
    fn ask(&mut self) -> anyhow::Result<f64> {
        let answer = self.exchange();
        if answer.is_err() {
            // A late answer must not be taken for that to the next query.
            self.stream = None;
        }
        answer
    }

    fn exchange(&mut self) -> anyhow::Result<f64> {
        let until = Instant::now() + TIMEOUT;
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let mut found = self.address.host.to_socket_addrs()?;
                let to = found.next().context("its name has no address")?;
                let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                none.insert(stream)
            }
        };
        stream.write_all(format!("{}\n", self.address.query).as_bytes())?;
        let mut reply = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "it has not answered in time");
            stream.set_read_timeout(Some(left))?;
            let mut some = [0; LONGEST_REPLY];
            let count = match stream.read(&mut some) {
                Ok(0) => bail!("it closed the connection"),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    bail!("it has not answered in time")
                }
                Err(error) => return Err(error.into()),
            };
            reply.extend_from_slice(&some[..count]);
            if let Some(end) = reply.iter().position(|byte| *byte == b'\n') {
                ensure!(end + 1 == reply.len(), "it says more than one line");
                break;
            }
            ensure!(reply.len() < LONGEST_REPLY, "its answer has no end");
        }
        let text = String::from_utf8_lossy(&reply);
        text.trim()
            .parse()
            .with_context(|| format!("{:?} is no number", text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;
    use crate::energy::Window;

    const WINDOW: Window = Window {
        from: 0.0,
        to: 0.0,
        cpu_seconds: 0.0,
    };

    /// A meter in a thread: `answer` is called for the number of each query,
    /// over all connections, and says what to send; `None` hangs up.
    fn meter(answer: impl Fn(u32) -> Option<String> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut queries = 0;
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut query = [0; 256];
                while let Ok(count @ 1..) = stream.read(&mut query) {
                    assert_eq!(&query[..count], b"MEAS:POW?\n");
                    let Some(reply) = answer(queries) else { break };
                    queries += 1;
                    if stream.write_all(reply.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        at
    }

    fn ask(at: SocketAddr) -> Scpi {
        Scpi {
            address: at.to_string().parse().unwrap(),
            stream: None,
        }
    }

    #[test]
    fn addresses_and_queries_are_read() {
        let read = |text: &str| text.parse::<Address>().unwrap();
        assert_eq!(read("10.0.0.9:5025").query, "MEAS:POW?");
        let other = read("[2001:db8::9]:5025:NUM:VAL? 3");
        assert_eq!(other.host, "[2001:db8::9]:5025");
        assert_eq!(other.query, "NUM:VAL? 3");
        for wrong in ["", "host", "host:port", "[::1", "[::1]5025"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn watts_become_joules() {
        let at = meter(|_| Some("+2.50E+00\r\n".into()));
        let mut meter = open(&at.to_string().parse().unwrap()).unwrap();
        let start = Instant::now();
        meter.begin();
        std::thread::sleep(Duration::from_millis(200));
        let joules = meter.end(&WINDOW).unwrap();
        let most = 2.5 * start.elapsed().as_secs_f64();
        assert!((0.45..=most).contains(&joules), "{joules} of {most}");
    }

    #[test]
    fn a_meter_that_lies_has_no_figure() {
        for reply in [
            "OVERLOAD\n",
            "\n",
            "1.0\n2.0\n",
            "NaN\n",
            "-5\n",
            "9.9E37\n",
        ] {
            let at = meter(move |_| Some(reply.into()));
            let opened = open(&at.to_string().parse().unwrap());
            assert!(opened.is_err(), "{reply:?}");
        }
    }

    #[test]
    fn an_endless_answer_is_cut() {
        let at = meter(|_| Some("1".repeat(1 << 20)));
        let said = ask(at).ask().unwrap_err().to_string();
        assert!(said.contains("no end"), "{said}");
    }

    #[test]
    fn a_meter_that_is_slow_has_no_figure_and_costs_a_second() {
        let at = meter(|_| {
            std::thread::sleep(Duration::from_secs(4));
            Some("1\n".into())
        });
        let start = Instant::now();
        let said = ask(at).ask().unwrap_err().to_string();
        assert!(said.contains("in time"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(3));
    }

    /// A byte now and then would hold a reader for ever that only waits for
    /// each.
    #[test]
    fn a_meter_that_drips_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let start = Instant::now();
        assert!(ask(at).ask().is_err());
        assert!(start.elapsed() < Duration::from_secs(3));
    }

    #[test]
    fn a_meter_that_dies_leaves_no_figure_and_is_asked_again() {
        let at = meter(|query| (query != 1).then(|| "3\n".into()));
        let mut scpi = ask(at);
        assert_eq!(scpi.ask().unwrap(), 3.0);
        assert!(scpi.ask().is_err());
        // Query 1 again, and the meter hangs up again: the count of answers
        // stands still.
        assert!(scpi.ask().is_err());
        assert!(
            open(&"127.0.0.1:1".parse().unwrap()).is_err(),
            "nobody is there"
        );
    }
}

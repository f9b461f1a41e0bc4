//! DNS by two balancers, at port 53 of UDP and TCP: real BIND, asked without a pause as a
//! resolver asks, while the active balancer is killed and comes back, a real is drained and
//! a weight changes. Each question is noted with the time and with the real that answers.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::*;
use crate::bind::serve_dns;

/// Flows of UDP that stay, of each family.
const FLOWS: usize = 50;
/// After this time a resolver asks again, by UDP. A server answers sooner, on a machine that
/// does something else as well.
const PATIENCE: Duration = Duration::from_secs(5);
/// A resolver asks so many times.
const TRIES: usize = 15;
/// Between two questions of a flow.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two questions from a new port.
const SHORT_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// From a port that asks again and again.
    Flow,
    /// From a new port.
    Udp,
    Tcp,
}

/// Asks once, with the question's number, and notes what became of it.
type Asker = Box<dyn FnMut(u16, &mut Vec<Question>)>;

/// A question that was sent, and the number of the real that has answered it.
#[derive(Debug, Clone, Copy)]
struct Question {
    by: By,
    at: Instant,
    client: SocketAddr,
    real: Option<u8>,
}

/// A question for the address of `who.test`.
fn query(id: u16) -> Vec<u8> {
    let rest = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03who\x04test\x00\x00\x01\x00\x01";
    [&id.to_be_bytes(), &rest[..]].concat()
}

/// The real of an answer to the question of this number: the last byte of the address.
fn real_of(answer: &[u8], id: u16) -> Option<u8> {
    let is_answer = answer.starts_with(&[&id.to_be_bytes()[..], &[0x85, 0]].concat());
    let at = answer.windows(3).position(|bytes| bytes == [192, 0, 2])?;
    is_answer.then(|| answer[at + 3])
}

/// The threads that ask until the end, two of each family.
struct Asking {
    is_over: Arc<AtomicBool>,
    rounds: Arc<[AtomicUsize; 4]>,
    threads: Vec<JoinHandle<Vec<Question>>>,
}

impl Asking {
    fn start(client: &Namespace) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new([const { AtomicUsize::new(0) }; 4]);
        let threads = (0..4).map(|n| {
            let at = SocketAddr::new(addr(VIP[n % 2]), 53);
            let (client, is_over, rounds) = (client.clone(), is_over.clone(), rounds.clone());
            thread::spawn(move || {
                let ask = || {
                    let mut asked = Vec::new();
                    let mut ask: Asker = match n / 2 {
                        0 => flows(at),
                        _ => Box::new(move |id, asked| new_ports(at, id, asked)),
                    };
                    for id in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        ask(id, &mut asked);
                        rounds[n].fetch_add(1, Ordering::Relaxed);
                    }
                    asked
                };
                client.enter(ask).unwrap()
            })
        });
        let threads = threads.collect();
        Self {
            is_over,
            threads,
            rounds,
        }
    }

    /// Everybody asks for the third time from now on.
    fn go_on(&self) {
        for round in self.rounds.iter() {
            let before = round.load(Ordering::Relaxed);
            soon("everybody to ask again", || {
                (round.load(Ordering::Relaxed) >= before + 3).then_some(())
            });
        }
    }

    fn end(mut self) -> Vec<Question> {
        self.is_over.store(true, Ordering::Relaxed);
        let threads = self.threads.drain(..);
        threads.flat_map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Has each of some ports ask once, again where nobody answers.
fn flows(at: SocketAddr) -> Asker {
    let sockets: Vec<_> = (0..FLOWS).map(|_| udp(at).unwrap()).collect();
    for (socket, _) in &sockets {
        socket.set_nonblocking(true).unwrap();
    }
    Box::new(move |round, asked| {
        let mut left: Vec<_> = sockets.iter().collect();
        for attempt in 0..TRIES {
            let begun = Instant::now();
            // Late answers to earlier attempts are none.
            let id = round * TRIES as u16 + attempt as u16;
            let question = |client: SocketAddr, real| Question {
                by: By::Flow,
                at: begun,
                client,
                real,
            };
            for (socket, _) in &left {
                // What "port unreachable" has met is lost as any other.
                let _ = socket.send(&query(id));
            }
            while !left.is_empty() && begun.elapsed() < PATIENCE {
                left.retain(|(socket, client)| {
                    let mut answer = [0; 512];
                    let len = socket.recv(&mut answer).unwrap_or(0);
                    let real = real_of(&answer[..len], id);
                    asked.extend(real.map(|real| question(*client, Some(real))));
                    real.is_none()
                });
                thread::sleep(Duration::from_millis(1));
            }
            asked.extend(left.iter().map(|(_, client)| question(*client, None)));
            if left.is_empty() {
                thread::sleep(PAUSE);
                return;
            }
        }
        panic!("nobody answers {left:?}");
    })
}

fn udp(at: SocketAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let any = ["0.0.0.0:0", "[::]:0"][usize::from(at.is_ipv6())];
    let socket = UdpSocket::bind(any)?;
    socket.connect(at)?;
    let client = socket.local_addr()?;
    Ok((socket, client))
}

/// Asks once by UDP, again from another port where nobody answers, and once by TCP.
fn new_ports(at: SocketAddr, id: u16, asked: &mut Vec<Question>) {
    let is_answered = (0..TRIES).any(|_| {
        let (socket, client) = udp(at).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let begun = Instant::now();
        let mut answer = [0; 512];
        let len = socket
            .send(&query(id))
            .and_then(|_| socket.recv(&mut answer));
        let real = len.ok().and_then(|len| real_of(&answer[..len], id));
        asked.push(Question {
            by: By::Udp,
            at: begun,
            client,
            real,
        });
        real.is_some()
    });
    assert!(is_answered, "nobody answers {at}");
    asked.push(by_tcp(at, id).expect("a connection that is answered"));
    thread::sleep(SHORT_PAUSE);
}

fn by_tcp(at: SocketAddr, id: u16) -> io::Result<Question> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&at, common::SOON)?;
    stream.set_read_timeout(Some(common::SOON))?;
    let query = query(id);
    stream.write_all(&[&(query.len() as u16).to_be_bytes(), &query[..]].concat())?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut answer)?;
    Ok(Question {
        by: By::Tcp,
        at: begun,
        client: stream.local_addr()?,
        real: real_of(&answer, id),
    })
}

/// As [`super::config`], of a pool of name servers.
fn dns_config(priority: u8) -> String {
    config(priority)
        .replace("web", "dns")
        .replace(
            "\"80/tcp\"]",
            "\"53/udp\", \"53/tcp\"]\nudp_timeout = \"10m\"",
        )
        .replace("check = {", "check = { dns = \"www.test\",")
}

/// How many of these there are, by real.
fn by_real<'a>(asked: impl Iterator<Item = &'a Question>) -> BTreeMap<Option<u8>, usize> {
    let mut count = BTreeMap::new();
    asked.for_each(|question| *count.entry(question.real).or_default() += 1);
    count
}

#[test]
fn root_each_question_of_dns_is_answered_and_no_flow_leaves_its_real() {
    if skipped(&["named", "ip", "bridge"]) {
        return;
    }
    let begun = Instant::now();
    let note = |what: &str| println!("{:4.1} s: {what}", begun.elapsed().as_secs_f64());
    let mut lan = Lan::new();
    let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
    let client = lan.join("client", CLIENTS[0]);
    let dir = tempfile::tempdir().unwrap();
    let _servers = REALS.map(|number| {
        let host = lan.real_without_server(number);
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        serve_dns(&dir, &host, number)
    });
    let mut first = Weir::start(&one, &dns_config(150));
    let second = Weir::start(&two, &dns_config(100));
    live_soon([&first, &second], 4);
    soon_has_all(&one, &two);

    let asking = Asking::start(&client);
    asking.go_on();
    let mut failovers: Vec<Range<Instant>> = Vec::new();
    // Some seconds for the machine.
    let mut failover = |begun: Instant| {
        failovers.push(begun..Instant::now() + Duration::from_secs(5));
        asking.go_on();
    };
    note("the active balancer is killed, and comes back");
    let at = Instant::now();
    first.kill();
    soon_has_all(&two, &one);
    failover(at);
    let at = Instant::now();
    first.run();
    soon_has_all(&one, &two);
    live_soon([&first, &second], 4);
    failover(at);
    let undisturbed = begun..Instant::now();

    note("one is drained, and a weight changes");
    tell([&first, &second], &["real", "drain", "dns", "192.0.2.13"]);
    let drained = Instant::now();
    asking.go_on();
    let weight = ["real", "weight", "dns", "192.0.2.11", "3"];
    tell([&first, &second], &weight);
    let weighed = Instant::now();
    asking.go_on();

    // By now a hash of the live reals is another one, and the other balancer knows flows
    // because it had them before.
    note("the active balancer is killed, and comes back");
    let at = Instant::now();
    first.kill();
    soon_has_all(&two, &one);
    failover(at);
    let at = Instant::now();
    first.run();
    soon_has_all(&one, &two);
    failover(at);
    let mut asked = asking.end();
    asked.sort_by_key(|question| question.at);
    // The kernel has chosen some ports twice, which are a flow each.
    let mut ports = BTreeSet::new();
    asked.retain(|question| question.by != By::Udp || ports.insert(question.client));

    for by in [By::Flow, By::Udp, By::Tcp] {
        let asked = asked.iter().filter(|question| question.by == by);
        note(&format!("{by:?}, by real: {:?}", by_real(asked)));
    }
    let lost: Vec<_> = asked.iter().filter(|asked| asked.real.is_none()).collect();
    for (n, failover) in failovers.iter().enumerate() {
        let during = lost
            .iter()
            .filter(|lost| failover.contains(&lost.at))
            .count();
        let seconds = (failover.end - failover.start).as_secs_f64();
        note(&format!(
            "failover {n}: asked again {during}, of {seconds:.1} s"
        ));
    }
    let is_failover = |at| failovers.iter().any(|failover| failover.contains(&at));
    for question in &lost {
        assert!(is_failover(question.at), "no answer to {question:?}");
        assert_ne!(question.by, By::Tcp);
    }
    let of = |by, family: usize| {
        let is = move |asked: &&Question| asked.by == by && asked.client.is_ipv6() == (family == 1);
        asked.iter().filter(is)
    };
    for family in 0..2 {
        let mut reals: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for question in of(By::Flow, family) {
            let of_flow = reals.entry(question.client).or_default();
            of_flow.extend(question.real);
        }
        assert_eq!(reals.len(), FLOWS);
        for (client, reals) in &reals {
            assert_eq!(reals.len(), 1, "the flow of {client} was at {reals:?}");
        }
        // Each real has some, the drained one too.
        let used: BTreeSet<_> = reals.into_values().flatten().collect();
        assert_eq!(used, BTreeSet::from(REALS));
        for by in [By::Udp, By::Tcp] {
            let before = of(by, family).filter(|asked| undisturbed.contains(&asked.at));
            let before = before.filter_map(|asked| asked.real);
            assert_eq!(before.collect::<BTreeSet<_>>(), BTreeSet::from(REALS));
            let since = |time| of(by, family).filter(move |asked| asked.at > time);
            let all = by_real(since(drained));
            assert_eq!(
                all.get(&Some(13)),
                None,
                "a real that drains is asked anew: {all:?}"
            );
            // Three fifths.
            let weighed = by_real(since(weighed).filter(|asked| asked.real.is_some()));
            let (heavy, all) = (weighed[&Some(11)], weighed.values().sum::<usize>());
            assert!((4..8).contains(&(10 * heavy / all)), "{weighed:?}");
        }
    }
    assert!(asked.len() > 3000, "{} questions", asked.len());
}

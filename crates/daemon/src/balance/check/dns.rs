//! A question of DNS (RFC 1035) over UDP, for the addresses of a name: an answer to it
//! without an error says that the real lives, whatever it answers. Datagrams that are no
//! answer to the question are left alone, for anybody may send one.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    time::Duration,
};

use super::{Outcome, Target, udp::Udp};

/// Bytes of a DNS header.
const HEADER: usize = 12;
/// Bits of a header's third byte: an answer, and the kind of question, which is 0.
const ANSWER: u8 = 0x80;
const OPCODE: u8 = 0x78;
/// Names of errors, by their number.
const CODES: [&str; 6] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED",
];

/// A question that is asked.
pub(super) struct Dns {
    udp: Udp,
    query: Vec<u8>,
}

impl Dns {
    pub(super) fn begin(name: &str, target: &Target, timeout: Duration) -> io::Result<Self> {
        // With the port, which the kernel chooses, what another one would have to guess.
        let id = RandomState::new().hash_one(target.to) as u16;
        let query = query(id, name);
        Ok(Self {
            udp: Udp::begin(&query, target, timeout)?,
            query,
        })
    }

    pub(super) fn look(&self) -> Outcome {
        self.udp.look(|datagram| judge(&self.query, datagram))
    }
}

/// Asks by this ID for the IPv4 addresses of a name, which is ASCII and of labels up to 63
/// bytes. A name that has only IPv6 ones is no error.
pub fn query(id: u16, name: &str) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    // Recursion desired; one question.
    let mut query = vec![high, low, 0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    // The root; type A, class IN.
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// What a datagram says of a question; `None`: it is no answer to it.
pub fn judge(query: &[u8], datagram: &[u8]) -> Option<Result<(), String>> {
    let (header, rest) = datagram.split_at_checked(HEADER)?;
    if header[..2] != query[..2] || header[2] & (ANSWER | OPCODE) != ANSWER {
        return None;
    }
    let question = &query[HEADER..];
    let repeats = rest
        .get(..question.len())
        .is_some_and(|repeated| repeated.eq_ignore_ascii_case(question));
    let code = header[3] & 0x0f;
    match (code, &header[4..6]) {
        (0, [0, 1]) if repeats => Some(Ok(())),
        // Who does not understand a question need not repeat it.
        (1.., [0, 0]) => Some(Err(error(code))),
        (1.., [0, 1]) if repeats => Some(Err(error(code))),
        _ => None,
    }
}

fn error(code: u8) -> String {
    let known = CODES.get(usize::from(code)).map(|name| (*name).to_owned());
    known.unwrap_or_else(|| format!("error {code}"))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::super::{
        CheckKind, TOO_LATE,
        tests::{LOOPBACK, bound, outcome, outcome_within},
    };
    use super::*;

    fn kind() -> CheckKind {
        CheckKind::Dns("www.Example.org.".to_owned())
    }

    /// What a server sends for a question.
    type Answers = fn(&[u8]) -> Vec<Vec<u8>>;

    /// What becomes of a check whose question is answered with these.
    #[track_caller]
    fn answered(
        addr: SocketAddr,
        timeout: Duration,
        answers: Answers,
    ) -> Option<Result<(), String>> {
        let server = bound(addr, UdpSocket::bind(addr))?;
        let addr = server.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (len, from) = server.recv_from(&mut buffer).unwrap();
            for answer in answers(&buffer[..len]) {
                server.send_to(&answer, from).unwrap();
            }
            server
        });
        let outcome = outcome_within(&kind(), addr, timeout);
        answering.join().unwrap();
        Some(outcome)
    }

    fn changed(query: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut answer = query.to_vec();
        answer[2] |= ANSWER;
        change(&mut answer);
        answer
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn an_answer_without_an_error_is_life_in_each_family() {
        for addr in LOOPBACK {
            let outcome = answered(addr, LONG, |query| {
                assert_eq!(&query[12..], b"\x03www\x07Example\x03org\0\0\x01\0\x01");
                vec![changed(query, |answer| {
                    answer[12..].make_ascii_lowercase();
                })]
            });
            assert!(
                matches!(outcome, None | Some(Ok(()))),
                "{addr}: {outcome:?}"
            );
        }
    }

    #[test]
    fn an_error_is_named_and_what_is_no_answer_is_left_alone() {
        let addr = LOOPBACK[0];
        let cases: [(&str, Answers); 3] = [
            ("dns: SERVFAIL", |query| {
                vec![changed(query, |answer| answer[3] = 0x82)]
            }),
            ("dns: error 11", |query| {
                vec![changed(query, |answer| answer[3] = 11)]
            }),
            // Behind one of another id, a question, one cut, and one of another name.
            ("dns: REFUSED", |query| {
                vec![
                    changed(query, |answer| answer[0] ^= 1),
                    query.to_vec(),
                    query[..11].to_vec(),
                    vec![],
                    changed(query, |answer| answer[13] = b'x'),
                    changed(query, |answer| answer.truncate(20)),
                    changed(query, |answer| {
                        answer.truncate(12);
                        answer[3] = 5;
                        answer[5] = 0;
                    }),
                ]
            }),
        ];
        for (told, answers) in cases {
            let outcome = answered(addr, LONG, answers).unwrap();
            assert_eq!(outcome, Err(told.to_owned()));
        }
        let none = answered(addr, Duration::from_millis(50), |query| {
            vec![query.to_vec(); 40]
        });
        assert_eq!(none.unwrap(), Err(format!("dns: {TOO_LATE}")));
        let nobody = UdpSocket::bind(addr).unwrap().local_addr().unwrap();
        let error = outcome(&kind(), nobody).unwrap_err();
        assert_eq!(error, "dns: port unreachable");
    }

    #[test]
    fn no_datagram_is_too_strange() {
        let query = query(7, "a.b");
        let answer = changed(&query, |_| ());
        for cut in 0..=answer.len() {
            let known = judge(&query, &answer[..cut]);
            assert_eq!(known, (cut == answer.len()).then_some(Ok(())), "{cut}");
        }
        for at in 0..answer.len() {
            for byte in 0..=255 {
                let mut other = answer.clone();
                other[at] = byte;
                judge(&query, &other);
            }
        }
        assert_eq!(super::query(7, "."), super::query(7, ""));
    }
}

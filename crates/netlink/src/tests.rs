//! Answers as the kernel gives them, cut, with lengths that cannot be, and of this host.

use std::{io, net::IpAddr};

use proptest::prelude::*;

use crate::{
    socket::{Answer, Protocol, Socket, ask, errno},
    *,
};

const KIND: u16 = 24;

/// A message with these flags, one behind the other.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    let begin = writer.begin(kind, flags, 7, body);
    writer.end(begin);
    writer.into_bytes()
}

/// What was read of a datagram, and whether more follow.
fn read(datagram: &[u8]) -> (io::Result<bool>, Answer<(u16, Vec<u8>)>) {
    let mut answer = Answer::default();
    let mut note = |message: Message<'_>, found: &mut Vec<_>| {
        found.push((message.kind, message.body.to_vec()));
    };
    let goes_on = answer.take(datagram, &mut note);
    (goes_on, answer)
}

#[test]
fn what_is_written_is_read() {
    let addrs: [IpAddr; 2] = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
    let mut request = Request::new(KIND, NLM_F_ACK, &[1, 2, 3, 4]).attribute(5, b"abc\0");
    for addr in addrs {
        request = request.address(6 + u16::from(addr.is_ipv6()), addr);
    }
    let mut writer = Writer::default();
    writer.append(&request.finish());
    let begin = writer.begin(KIND + 1, NLM_F_REQUEST, 1, &[]);
    let nest = writer.begin_nest();
    writer.attribute(2, &7u32.to_be_bytes());
    writer.attribute(3, &9u64.to_be_bytes());
    writer.end_nest(nest, 1);
    writer.end(begin);
    writer.add_flags(begin, NLM_F_ACK);
    let messages: Vec<_> = Messages::of(writer.bytes()).collect();
    let [first, second] = messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!((first.kind, second.kind), (KIND, KIND + 1));
    assert_eq!(first.body[..4], [1, 2, 3, 4]);
    let attributes = Attributes::behind(first.body, 4);
    assert_eq!(attributes.text(5), Some("abc"));
    for addr in addrs {
        let value = attributes.get(6 + u16::from(addr.is_ipv6())).unwrap();
        assert_eq!(ip(value), Some(addr));
    }
    assert_eq!(attributes.get(8), None);
    let nested = Attributes::of(second.body).nested(1);
    assert_eq!((nested.number(2), nested.long(3)), (Some(7), Some(9)));
    // A number of another width is none.
    assert_eq!((nested.number(3), nested.long(2)), (None, None));
    let flags = half(&writer.bytes()[begin..], 6).unwrap();
    assert_eq!(flags, NLM_F_REQUEST | NLM_F_ACK);
}

#[test]
fn a_dump_goes_on_until_it_is_done() {
    let two = [message(KIND, 2, &[1; 4]), message(KIND, 2, &[2; 5])].concat();
    let (goes_on, answer) = read(&two);
    assert!(goes_on.unwrap() && !answer.is_interrupted);
    assert_eq!(answer.found.len(), 2);
    assert_eq!(answer.found[0], (KIND, vec![1; 4]));
    // In one datagram with the last of them, and without a word behind it.
    let done = [message(KIND, 2, &[]), message(3, 2, &[0; 4])].concat();
    let (goes_on, answer) = read(&done);
    assert!(!goes_on.unwrap());
    assert_eq!(answer.found, [(KIND, vec![])]);
    assert!(!read(&message(3, 2, &[])).0.unwrap());
    // An answer of one message.
    assert!(!read(&message(KIND, 0, &[])).0.unwrap());
    // One that says nothing (NLMSG_NOOP) ends nothing.
    assert!(read(&message(1, 0, &[])).0.unwrap());
    // NLM_F_DUMP_INTR, of any of them.
    for flags in [[0x12, 2], [2, 0x12]] {
        let two = flags.map(|flags| message(KIND, flags, &[])).concat();
        assert!(read(&two).1.is_interrupted, "{flags:?}");
    }
    // A dump that breaks off is no whole one.
    let broken = message(3, 2, &(-12i32).to_ne_bytes());
    assert_eq!(errno(&read(&broken).0.unwrap_err()), Some(12));
}

/// An answer to a request that fails, with the kernel's words.
fn refusal(number: i32, is_capped: bool, words: &[u8]) -> Vec<u8> {
    let request = Request::new(KIND, NLM_F_ACK, &[9; 5]).finish();
    let mut body = (-number).to_ne_bytes().to_vec();
    match is_capped {
        true => body.extend(&request[..HEADER]),
        false => body.extend(&request),
    }
    let mut writer = Writer::default();
    let flags = NLM_F_ACK_TLVS | if is_capped { NLM_F_CAPPED } else { 0 };
    let begin = writer.begin(NLMSG_ERROR, flags, 0, &body);
    // Where in the request it is; then the words.
    writer.attribute(2, &4u32.to_ne_bytes());
    writer.attribute(NLMSGERR_ATTR_MSG, words);
    writer.end(begin);
    writer.into_bytes()
}

#[test]
fn a_refusal_has_its_number_its_kind_and_the_kernels_words() {
    for is_capped in [true, false] {
        let answer = refusal(17, is_capped, b"Exclusivity flag on, cannot modify\0");
        let error = read(&answer).0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(errno(&error), Some(17));
        let text = error.to_string();
        assert!(
            text.ends_with("(os error 17): Exclusivity flag on, cannot modify"),
            "{text}"
        );
        for cut in 0..answer.len() {
            assert!(read(&answer[..cut]).0.is_err(), "cut at {cut}");
        }
    }
    // Without words, with empty ones, with long ones and others than text.
    let plain = message(NLMSG_ERROR, 0, &(-13i32).to_ne_bytes());
    let error = read(&plain).0.unwrap_err();
    assert_eq!((error.raw_os_error(), errno(&error)), (Some(13), Some(13)));
    let error = read(&refusal(13, true, b"\0")).0.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(13));
    let error = read(&refusal(13, true, &[b'x'; 5000])).0.unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
    let error = read(&refusal(13, true, b"\x1b[2J\xff")).0.unwrap_err();
    assert!(!error.to_string().contains('\x1b'), "{error:?}");
    // An acknowledgement.
    assert!(!read(&message(NLMSG_ERROR, 0, &[0; 20])).0.unwrap());
    // Numbers that the kernel does not give, none at all, and an overrun.
    for body in [&7i32.to_ne_bytes()[..], &i32::MIN.to_ne_bytes(), &[1, 2]] {
        let error = read(&message(NLMSG_ERROR, 0, body)).0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{body:?}");
    }
    let error = read(&message(NLMSG_OVERRUN, 0, &[])).0.unwrap_err();
    assert_eq!(errno(&error), Some(libc::ENOBUFS));
}

#[test]
fn what_is_cut_or_no_message_is_an_error_and_waits_for_nothing() {
    let two = [message(KIND, 2, &[1; 4]), message(KIND, 2, &[2; 8])].concat();
    let first = HEADER + 4;
    for cut in 0..two.len() {
        let (goes_on, answer) = read(&two[..cut]);
        assert_eq!(goes_on.is_ok(), cut == first, "cut at {cut}");
        assert_eq!(answer.found.len(), usize::from(cut >= first));
    }
    for length in [0u32, 1, 15, 21, 1 << 20, u32::MAX] {
        let mut wrong = message(KIND, 0, &[1; 4]);
        wrong[..4].copy_from_slice(&length.to_ne_bytes());
        let (goes_on, answer) = read(&wrong);
        assert!(goes_on.is_err() && answer.found.is_empty(), "{length}");
    }
}

#[test]
fn attributes_end_where_one_is_cut() {
    let mut writer = Writer::default();
    writer.attribute(1, b"abcde");
    writer.attribute(2, b"");
    let bytes = writer.bytes();
    assert_eq!(bytes.len(), 16);
    let all: Vec<_> = Attributes::of(bytes).iter().collect();
    assert_eq!(all, [(1, &b"abcde"[..]), (2, b"")]);
    for cut in 0..bytes.len() {
        let found = Attributes::of(&bytes[..cut]).iter().count();
        assert_eq!(found, usize::from(cut >= 9), "cut at {cut}");
    }
    for length in [0u16, 3, 17, u16::MAX] {
        let mut wrong = bytes.to_vec();
        wrong[..2].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(Attributes::of(&wrong).iter().count(), 0, "{length}");
    }
    assert_eq!(Attributes::behind(bytes, 17).iter().count(), 0);
    assert_eq!(ip(&[1, 2, 3]), None);
}

proptest! {
    #[test]
    fn nothing_that_is_read_panics_or_lasts(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (_, answer) = read(&bytes);
        prop_assert!(answer.found.len() <= bytes.len() / HEADER);
        let attributes = Attributes::of(&bytes);
        prop_assert!(attributes.iter().count() <= bytes.len() / ATTRIBUTE);
        for (kind, _) in attributes.iter() {
            let _ = (attributes.text(kind), attributes.number(kind), attributes.long(kind));
        }
    }

    /// A whole answer in which a byte is another one.
    #[test]
    fn a_changed_byte_makes_no_more_messages(at in 0usize..96, to: u8) {
        let mut bytes = refusal(17, true, b"No such thing\0");
        bytes.extend(message(KIND, 2, &[1; 8]));
        let at = at % bytes.len();
        bytes[at] = to;
        prop_assert!(read(&bytes).1.found.len() <= 2);
    }
}

/// linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

#[test]
fn this_hosts_kernel_is_asked() {
    let dump = Request::new(RTM_GETLINK, NLM_F_DUMP, &[0; 16]).finish();
    let index =
        |message: Message<'_>| (message.kind == RTM_NEWLINK).then(|| word(message.body, 4))?;
    let all = ask(Protocol::Route, &dump, index).unwrap();
    assert!(all.contains(&1), "{all:?}");
    let one = |index: u32| {
        let mut fixed = [0; 16];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        Request::new(RTM_GETLINK, 0, &fixed).finish()
    };
    // Several questions to one socket; one that is refused leaves nothing behind.
    let socket = Socket::open(Protocol::Route).unwrap();
    for _ in 0..2 {
        let read = |message: Message<'_>, found: &mut Vec<_>| found.extend(index(message));
        assert_eq!(socket.ask(&one(1), read).unwrap(), [1]);
        let refused = socket.ask(&one(i32::MAX as u32), read).unwrap_err();
        assert_eq!(errno(&refused), Some(libc::ENODEV), "{refused}");
    }
    assert!(socket.receive_now(&mut [0; 64]).unwrap().is_none());
    // What was left unread, and longer than the buffer.
    socket.send(&dump).unwrap();
    let error = socket.receive(&mut [0; 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(
        socket.ask(&dump, |_, found| found.push(())).unwrap().len(),
        all.len()
    );
}

#[test]
fn the_kernels_own_words_are_asked_for() {
    // A device of a kind that there is not.
    const IFLA_LINKINFO: u16 = 18;
    const NLM_FLAGS: u16 = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let request = Request::new(RTM_NEWLINK, NLM_FLAGS, &[0; 16]);
    let request = request.attribute(IFLA_LINKINFO, b"abc");
    let error = ask(Protocol::Route, &request.finish(), |_| None::<()>).unwrap_err();
    // Without CAP_NET_ADMIN it is refused before anybody looks at it.
    let text = error.to_string();
    let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
    assert!(is_refused || text.contains("): "), "{text}");
}

//! An SSH client that says whatever a test puts into a message (RFC 4252 to
//! 4254): curve25519-sha256 and chacha20-poly1305@openssh.com, no host key is
//! checked, nothing is negotiated. Real clients send such messages never.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
};

use ring::{
    aead::chacha20_poly1305_openssh::{OpeningKey, SealingKey, TAG_LEN},
    agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral},
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair},
};

const GREETING: &str = "SSH-2.0-lab";

/// The numbers of SSH messages (RFC 4250, 4.1.2).
pub const DISCONNECT: u8 = 1;
pub const IGNORE: u8 = 2;
pub const DEBUG: u8 = 4;
pub const SERVICE_REQUEST: u8 = 5;
const SERVICE_ACCEPT: u8 = 6;
const KEXINIT: u8 = 20;
const NEWKEYS: u8 = 21;
const KEX_ECDH_INIT: u8 = 30;
const KEX_ECDH_REPLY: u8 = 31;
pub const USERAUTH_REQUEST: u8 = 50;
pub const INFO_RESPONSE: u8 = 61;

/// A string as SSH writes it: its length, then its bytes.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// A message: its number and its strings.
pub fn message(number: u8, strings: &[&[u8]]) -> Vec<u8> {
    let strings = strings.iter().flat_map(|s| string(s));
    std::iter::once(number).chain(strings).collect()
}

/// SSH_MSG_USERAUTH_REQUEST with what the method wants.
pub fn userauth(user: &[u8], service: &[u8], method: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut payload = message(USERAUTH_REQUEST, &[user, service, method]);
    payload.extend(rest);
    payload
}

/// SSH_MSG_DISCONNECT.
pub fn disconnect(reason: u32, text: &[u8]) -> Vec<u8> {
    let mut payload = vec![DISCONNECT];
    payload.extend(reason.to_be_bytes());
    payload.extend(string(text));
    payload.extend(string(b""));
    payload
}

/// SSH_MSG_KEXINIT that offers one and the same in all ten lists, or, without,
/// what this client can do.
pub fn kexinit(offer: Option<&[u8]>) -> Vec<u8> {
    const CIPHER: &[u8] = b"chacha20-poly1305@openssh.com";
    const MAC: &[u8] = b"hmac-sha2-256";
    let able: [&[u8]; 10] = [
        b"curve25519-sha256",
        b"ssh-ed25519",
        CIPHER,
        CIPHER,
        MAC,
        MAC,
        b"none",
        b"none",
        b"",
        b"",
    ];
    let mut payload = vec![KEXINIT];
    payload.extend([7; 16]);
    for list in able {
        payload.extend(string(offer.unwrap_or(list)));
    }
    payload.extend([0; 5]);
    payload
}

/// A key as its owner shows it.
pub fn key_blob() -> Vec<u8> {
    message_of(&[b"ssh-ed25519", &[7; 32]])
}

/// A public key of the method "publickey": an algorithm and a blob, unsigned.
pub fn public_key(algorithm: &[u8], blob: &[u8]) -> Vec<u8> {
    [&[0][..], &string(algorithm), &string(blob)].concat()
}

/// A certificate for users, by an authority that nobody knows, with this name.
pub fn certificate(name: &[u8]) -> Vec<u8> {
    const KIND: &[u8] = b"ssh-ed25519-cert-v01@openssh.com";
    let pair = || {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap()
    };
    let (user, authority) = (pair(), pair());
    let mut blob = string(KIND);
    blob.extend(string(&[7; 32]));
    blob.extend(string(user.public_key().as_ref()));
    blob.extend(1_u64.to_be_bytes());
    blob.extend(1_u32.to_be_bytes());
    blob.extend(string(name));
    blob.extend(string(b""));
    blob.extend(0_u64.to_be_bytes());
    blob.extend(u64::MAX.to_be_bytes());
    for _ in 0..3 {
        blob.extend(string(b""));
    }
    let key = authority.public_key();
    blob.extend(string(&message_of(&[b"ssh-ed25519", key.as_ref()])));
    let signature = authority.sign(&blob);
    blob.extend(string(&message_of(&[b"ssh-ed25519", signature.as_ref()])));
    blob
}

fn message_of(strings: &[&[u8]]) -> Vec<u8> {
    strings.iter().flat_map(|s| string(s)).collect()
}

/// A connection to a server, as its client.
pub struct Ssh {
    stream: TcpStream,
    /// Packets sent and received.
    sent: u32,
    received: u32,
    keys: Option<(SealingKey, OpeningKey)>,
}

impl Ssh {
    /// Greets, and no more.
    pub fn greet(stream: TcpStream) -> io::Result<Self> {
        let (ssh, _) = Self::greeted(stream)?;
        Ok(ssh)
    }

    fn greeted(mut stream: TcpStream) -> io::Result<(Self, Vec<u8>)> {
        stream.write_all(format!("{GREETING}\r\n").as_bytes())?;
        let mut theirs = Vec::new();
        let mut byte = [0];
        while !theirs.ends_with(b"\r\n") {
            stream.read_exact(&mut byte)?;
            theirs.push(byte[0]);
        }
        theirs.truncate(theirs.len() - 2);
        let ssh = Self {
            stream,
            sent: 0,
            received: 0,
            keys: None,
        };
        Ok((ssh, theirs))
    }

    /// Greets, exchanges keys and asks for logins.
    pub fn open(stream: TcpStream) -> io::Result<Self> {
        let (mut ssh, greeting) = Self::greeted(stream)?;
        ssh.exchange_keys(&greeting)?;
        ssh.send(&message(SERVICE_REQUEST, &[b"ssh-userauth"]))?;
        ssh.expect(SERVICE_ACCEPT)?;
        Ok(ssh)
    }

    fn exchange_keys(&mut self, greeting: &[u8]) -> io::Result<()> {
        let random = SystemRandom::new();
        let secret = EphemeralPrivateKey::generate(&X25519, &random).map_err(wrong)?;
        let public = secret.compute_public_key().map_err(wrong)?;
        let ours = kexinit(None);
        self.send(&ours)?;
        let theirs = self.expect(KEXINIT)?;
        self.send(&message(KEX_ECDH_INIT, &[public.as_ref()]))?;
        let reply = self.expect(KEX_ECDH_REPLY)?;
        let (host_key, rest) = take_string(&reply[1..])?;
        let (peer, _) = take_string(rest)?;
        let peer_key = UnparsedPublicKey::new(&X25519, peer);
        let shared = agree_ephemeral(secret, &peer_key, mpint).map_err(wrong)?;
        let mut hashed = message_of(&[
            GREETING.as_bytes(),
            greeting,
            &ours,
            &theirs,
            host_key,
            public.as_ref(),
            peer,
        ]);
        hashed.extend(&shared);
        let hash = digest(&SHA256, &hashed);
        let key = |letter: u8| -> [u8; 64] {
            let hash = hash.as_ref();
            let first = digest(&SHA256, &[&shared, hash, &[letter], hash].concat());
            let second = digest(&SHA256, &[&shared, hash, first.as_ref()].concat());
            let both = [first.as_ref(), second.as_ref()].concat();
            both.try_into().expect("two hashes")
        };
        self.send(&[NEWKEYS])?;
        self.expect(NEWKEYS)?;
        self.keys = Some((SealingKey::new(&key(b'C')), OpeningKey::new(&key(b'D'))));
        Ok(())
    }

    /// Sends one message.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        // What is to be a multiple of 8 has the length in it, in clear only.
        let whole = payload.len() + 1 + if self.keys.is_none() { 4 } else { 0 };
        let mut padding = vec![0; 4 + (8 - (whole + 4) % 8) % 8];
        SystemRandom::new().fill(&mut padding).map_err(wrong)?;
        let length = (1 + payload.len() + padding.len()) as u32;
        let mut packet = length.to_be_bytes().to_vec();
        packet.push(padding.len() as u8);
        packet.extend(payload);
        packet.extend(padding);
        if let Some((key, _)) = &self.keys {
            let mut tag = [0; TAG_LEN];
            key.seal_in_place(self.sent, &mut packet, &mut tag);
            packet.extend(tag);
        }
        self.sent = self.sent.wrapping_add(1);
        self.stream.write_all(&packet)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let number = self.received;
        self.received = self.received.wrapping_add(1);
        let packet = match &self.keys {
            None => {
                let mut packet = vec![0; u32::from_be_bytes(head) as usize];
                self.stream.read_exact(&mut packet)?;
                packet
            }
            Some((_, key)) => {
                let length = key.decrypt_packet_length(number, head);
                let mut packet = head.to_vec();
                packet.resize(4 + u32::from_be_bytes(length) as usize, 0);
                self.stream.read_exact(&mut packet[4..])?;
                let mut tag = [0; TAG_LEN];
                self.stream.read_exact(&mut tag)?;
                let opened = key.open_in_place(number, &mut packet, &tag);
                opened.map_err(wrong)?.to_vec()
            }
        };
        let padding = usize::from(packet[0]);
        Ok(packet[1..packet.len() - padding].to_vec())
    }

    /// The next message of this number; others are passed over.
    fn expect(&mut self, number: u8) -> io::Result<Vec<u8>> {
        loop {
            let payload = self.receive()?;
            match payload.first() {
                Some(&first) if first == number => return Ok(payload),
                Some(&DISCONNECT) => return Err(wrong("disconnected")),
                _ => {}
            }
        }
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Has nothing more to say, and listens until the server hangs up.
    pub fn hang_up(mut self) {
        // The server may have hung up before.
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.stream.read_to_end(&mut Vec::new());
    }
}

/// A number as SSH writes it: without leading zeros, positive.
fn mpint(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    let bytes = &bytes[zeros..];
    let sign = bytes.first().is_some_and(|b| b & 0x80 != 0);
    string(&[if sign { &[0][..] } else { &[] }, bytes].concat())
}

fn take_string(bytes: &[u8]) -> io::Result<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| wrong("cut"))?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
        .ok_or_else(|| wrong("cut"))
}

fn wrong(error: impl ToString) -> io::Error {
    io::Error::other(error.to_string())
}

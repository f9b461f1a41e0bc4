//! `[sink.NAME]`: where events go. Files with keys and tokens are read here, so
//! that `weir check` finds what start and reload would refuse.

mod manual;

use std::{
    fmt,
    fs::OpenOptions,
    io::Read,
    net::IpAddr,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use ureq::http::Uri;
use weir_config::{
    At, Section,
    values::{check_name, name_byte},
};
use weir_events::Kind;
use weir_libzmq::Libzmq;
use weir_sources::certificates;

use crate::key;

pub use manual::MANUAL;

/// The longest key or token file, and certificate file.
const MAX_SECRET: u64 = 4096;
const MAX_CERTIFICATES: u64 = 1 << 20;
/// The default cap of a sink's queue.
const QUEUE: u64 = 4096;

const WEBHOOK_URL: &str = "\"https://…\" or \"http://…\", without a user name in it";
const TELEGRAM_API: &str =
    "\"https://…\", or \"http://…\" on this host: where a Bot API server of your own answers";
const ZMQ_URL: &str = "\"tcp://HOST:PORT\" or \"ipc://PATH\": where the subscriber listens";
const CHAT: &str = "a chat's number such as \"-1001234567890\", or \"@channel\"";
const TOKEN: &str = "what BotFather gave you, such as 123456:ABC-DEF…";

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// For the one who has to send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// One enabled sink.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkConfig {
    /// The sink's name.
    pub name: String,
    /// The kind of the sink, with its destination.
    pub kind: SinkKind,
    /// Which events it gets, as a set of [`Kind`]s' bits.
    pub events: u32,
    /// The format of events.
    pub format: Format,
    /// How many events wait at most.
    pub queue: usize,
    /// Events a minute; the rest is counted and told as a number. `None`: all.
    pub rate: Option<u32>,
}

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON lines of the form that the API's stream has.
    Weir,
    /// JSON that consumers of ipt_geofence read.
    IptGeofence,
}

/// The kind of a sink, with its destination.
#[derive(Debug, Clone, PartialEq)]
pub enum SinkKind {
    /// HTTP POST of each event.
    Webhook {
        /// Whereto. Such addresses often are the secret themselves.
        url: Secret,
        /// Sent as `Authorization: Bearer`.
        token: Option<Secret>,
        /// Trusted instead of the system's, in PEM.
        ca: Option<String>,
    },
    /// Messages of a Telegram bot.
    Telegram {
        /// The Bot API's address.
        api: String,
        /// The bot's token.
        token: Secret,
        /// The chat that gets the messages.
        chat_id: String,
    },
    /// A ZeroMQ publisher that connects to its subscriber.
    Zmq {
        /// The endpoint of the subscriber.
        url: String,
        /// The subscriber's CURVE key; `None`: in clear text, as was asked for.
        server_key: Option<[u8; 32]>,
    },
    /// JSON lines in a file.
    File {
        /// The file that events are appended to.
        path: PathBuf,
    },
}

impl SinkConfig {
    /// The configuration's word for its kind.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            SinkKind::Webhook { .. } => "webhook",
            SinkKind::Telegram { .. } => "telegram",
            SinkKind::Zmq { .. } => "zmq",
            SinkKind::File { .. } => "file",
        }
    }

    /// Where its events go, without anything secret.
    pub fn target(&self) -> String {
        match &self.kind {
            SinkKind::Webhook { url, .. } => match url.reveal().parse::<Uri>() {
                Ok(uri) => format!(
                    "{}://{}",
                    uri.scheme_str().unwrap_or_default(),
                    uri.authority().map_or("", |a| a.as_str())
                ),
                Err(_) => String::new(),
            },
            SinkKind::Telegram { api, chat_id, .. } => format!("chat {chat_id} at {api}"),
            SinkKind::Zmq { url, server_key } => match server_key {
                Some(_) => format!("{url} (CURVE)"),
                None => format!("{url} (clear text)"),
            },
            SinkKind::File { path } => path.display().to_string(),
        }
    }
}

#[derive(Clone, Copy)]
enum Word {
    Webhook,
    Telegram,
    Zmq,
    File,
}

const KINDS: [(&str, Word); 4] = [
    ("webhook", Word::Webhook),
    ("telegram", Word::Telegram),
    ("zmq", Word::Zmq),
    ("file", Word::File),
];

/// The enabled sinks, in the order of the file.
pub fn read(root: &mut Section<'_, '_>, warnings: &mut Vec<String>) -> Vec<SinkConfig> {
    let mut sinks: Vec<SinkConfig> = Vec::new();
    for (name, mut section) in root.named_sections("sink") {
        let line = section.line();
        check_name(&section, "sink", &name);
        let has_kind = section.has("kind");
        let kind = section.choice("kind", &KINDS);
        let Some(word) = kind else {
            if !has_kind {
                let allowed = KINDS.map(|(name, _)| format!("{name:?}")).join(", ");
                section.error(
                    line,
                    format!("kind is missing in [sink.{name}]; allowed: {allowed}"),
                );
            }
            continue;
        };
        let enabled = section.boolean("enabled").unwrap_or(true);
        let (kind, rate) = match word.value {
            Word::Webhook => (webhook(&mut section, &name, warnings), Some(60)),
            Word::Telegram => (telegram(&mut section, &name), Some(20)),
            Word::Zmq => (zmq(&mut section, &name, enabled, warnings), None),
            Word::File => (file(&mut section, &name, warnings), None),
        };
        let rate = rate.map(|default: u32| {
            let rate = section.integer("rate", 1..=100_000);
            rate.map_or(default, |at| at.value as u32)
        });
        let format = match word.value {
            Word::Telegram => Format::Weir,
            _ => section
                .choice(
                    "format",
                    &[
                        ("weir", Format::Weir),
                        ("ipt_geofence", Format::IptGeofence),
                    ],
                )
                .map_or(Format::Weir, |at| at.value),
        };
        let events = events(&mut section, &name, format);
        let queue = section.integer("queue", 1..=1_000_000);
        section.finish();
        if let (Some(kind), true) = (kind, enabled) {
            sinks.push(SinkConfig {
                name,
                kind,
                events,
                format,
                queue: queue.map_or(QUEUE, |at| at.value) as usize,
                rate,
            });
        }
    }
    sinks
}

fn events(section: &mut Section<'_, '_>, name: &str, format: Format) -> u32 {
    let (possible, default) = match format {
        Format::Weir => (
            Kind::ALL
                .into_iter()
                .map(|(_, kind)| kind)
                .filter(|kind| kind.can_be_chosen())
                .collect(),
            vec![Kind::Ban, Kind::Unban, Kind::Error, Kind::Start, Kind::Stop],
        ),
        // It has no record for anything else.
        Format::IptGeofence => {
            let records = vec![Kind::Ban, Kind::Unban, Kind::Drop, Kind::Start, Kind::Stop];
            (records.clone(), records)
        }
    };
    let possible: Vec<Kind> = possible;
    let set = |kinds: &[Kind]| kinds.iter().fold(0, |all, kind| all | kind.bit());
    let words: Vec<_> = possible.iter().map(|k| format!("{:?}", k.name())).collect();
    let allowed = format!("a list of {}", words.join(", "));
    let Some(list) = section.list("events", &allowed) else {
        return set(&default);
    };
    if list.value.is_empty() {
        section.error(
            list.line,
            format!("events in [sink.{name}] is empty; allowed: {allowed}"),
        );
    }
    let mut events = 0;
    for word in list.value {
        match possible.iter().find(|kind| kind.name() == word.value) {
            Some(kind) => events |= kind.bit(),
            None => section.error(
                word.line,
                format!(
                    "events in [sink.{name}] has {:?}; allowed: {allowed}",
                    word.value
                ),
            ),
        }
    }
    events
}

/// A text that must be there.
fn needed(
    section: &mut Section<'_, '_>,
    key: &'static str,
    allowed: &str,
    name: &str,
) -> Option<At<String>> {
    let line = section.line();
    if !section.has(key) {
        section.error(
            line,
            format!("{key} is missing in [sink.{name}]; allowed: {allowed}"),
        );
    }
    section.string(key, allowed)
}

/// Scheme and host of a URL that may be used; is it on this host?
fn web(url: &str) -> Option<(String, bool)> {
    let uri: Uri = url.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?);
    let odd = uri.authority()?.as_str().contains('@') || url.chars().any(char::is_control);
    if odd || host.is_empty() || !matches!(scheme, "http" | "https") {
        return None;
    }
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let local = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
    Some((scheme.to_owned(), local))
}

fn webhook(
    section: &mut Section<'_, '_>,
    name: &str,
    warnings: &mut Vec<String>,
) -> Option<SinkKind> {
    let url = needed(section, "url", WEBHOOK_URL, name);
    let token = secret(section, "token_file", name, true);
    let ca = ca_file(section, name);
    let url = url?;
    match web(&url.value) {
        // The address may be the secret: it is not repeated.
        None => {
            section.error(
                url.line,
                format!("url in [sink.{name}] is no such address; allowed: {WEBHOOK_URL}"),
            );
            return None;
        }
        Some((scheme, false)) if scheme == "http" => warnings.push(format!(
            "[sink.{name}]: its events{} go over the network in clear text; write https",
            if token.is_some() {
                " and its token"
            } else {
                ""
            }
        )),
        Some(_) => {}
    }
    Some(SinkKind::Webhook {
        url: Secret(url.value),
        token: token.map(|at| Secret(at.value)),
        ca,
    })
}

fn ca_file(section: &mut Section<'_, '_>, name: &str) -> Option<String> {
    let path = section.string("ca_file", "the absolute path of certificates in PEM")?;
    let read = read_file(Path::new(&path.value), MAX_CERTIFICATES, false);
    match read.and_then(|text| certificates::of(text.as_bytes()).map(|_| text)) {
        Ok(text) => Some(text),
        Err(why) => {
            section.error(
                path.line,
                format!(
                    "ca_file in [sink.{name}]: {}: {why}; allowed: a file with certificates in PEM",
                    path.value
                ),
            );
            None
        }
    }
}

fn telegram(section: &mut Section<'_, '_>, name: &str) -> Option<SinkKind> {
    let api = section.string("api", TELEGRAM_API);
    let chat = needed(section, "chat_id", CHAT, name);
    let line = section.line();
    if !section.has("token_file") {
        section.error(
            line,
            format!("token_file is missing in [sink.{name}]; allowed: a file that holds {TOKEN}"),
        );
    }
    let token = secret(section, "token_file", name, true);
    if let Some(at) = &token {
        let good = at.value.split_once(':').is_some_and(|(bot, key)| {
            !bot.is_empty()
                && bot.bytes().all(|b| b.is_ascii_digit())
                && (20..=100).contains(&key.len())
                && key.bytes().all(name_byte)
        });
        if !good {
            section.error(
                at.line,
                format!("token_file in [sink.{name}]: it holds no token; allowed: {TOKEN}"),
            );
        }
    }
    if let Some(chat) = &chat {
        let word = chat.value.strip_prefix('@');
        let number = chat.value.strip_prefix('-').unwrap_or(&chat.value);
        let good = match word {
            Some(word) => !word.is_empty() && word.len() <= 64 && word.bytes().all(name_byte),
            None => (1..=20).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit()),
        };
        if !good {
            section.error(
                chat.line,
                format!(
                    "chat_id in [sink.{name}] is {:?}; allowed: {CHAT}",
                    chat.value
                ),
            );
        }
    }
    let api = match api {
        None => "https://api.telegram.org".to_owned(),
        Some(at) => match web(&at.value) {
            Some((scheme, local)) if scheme == "https" || local => {
                at.value.trim_end_matches('/').to_owned()
            }
            _ => {
                section.error(
                    at.line,
                    format!(
                        "api in [sink.{name}] is {:?}; allowed: {TELEGRAM_API}",
                        at.value
                    ),
                );
                return None;
            }
        },
    };
    Some(SinkKind::Telegram {
        api,
        token: Secret(token?.value),
        chat_id: chat?.value,
    })
}

fn zmq(
    section: &mut Section<'_, '_>,
    name: &str,
    enabled: bool,
    warnings: &mut Vec<String>,
) -> Option<SinkKind> {
    let line = section.line();
    let url = needed(section, "url", ZMQ_URL, name);
    let given = section.has("server_key_file");
    let text = secret(section, "server_key_file", name, false);
    let plain = section.boolean("plain").unwrap_or(false);
    let server_key = text.and_then(|at| match key::read(&at.value) {
        Ok(key) => Some(key),
        // Never in clear text because a key is wrong.
        Err(why) => {
            section.error(
                at.line,
                format!("server_key_file in [sink.{name}]: it holds no key: {why}; allowed: a CURVE public key, 40 characters of Z85 or the hexadecimal of these"),
            );
            None
        }
    });
    // Not for one that is turned off: nothing is opened for it.
    match enabled.then(Libzmq::get) {
        Some(Err(error)) => {
            section.error(line, format!("[sink.{name}] with kind = \"zmq\" needs libzmq: {error}"));
        }
        Some(Ok(libzmq)) if given && !libzmq.has_curve() => section.error(
            line,
            format!("server_key_file in [sink.{name}]: this host's libzmq has no CURVE; allowed: plain = true, or a libzmq with CURVE"),
        ),
        _ => {}
    }
    match (given, plain) {
        (false, false) => section.error(
            line,
            format!("server_key_file is missing in [sink.{name}]; allowed: a file with the subscriber's CURVE public key, or plain = true for clear text"),
        ),
        (true, true) => section.error(
            line,
            format!("[sink.{name}] has both server_key_file and plain = true; allowed: one of them"),
        ),
        _ => {}
    }
    let url = url?;
    let rest = |prefix| url.value.strip_prefix(prefix);
    let good = match (rest("tcp://"), rest("ipc://")) {
        (Some(address), _) => address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty()
                && !host.contains(['*', '/', ' ', ';'])
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        }),
        (None, Some(path)) => path.starts_with('/') && path.len() <= 100,
        (None, None) => false,
    };
    if !good || url.value.contains(|c: char| c.is_control()) {
        section.error(
            url.line,
            format!(
                "url in [sink.{name}] is {:?}; allowed: {ZMQ_URL}",
                url.value
            ),
        );
    }
    if plain && !url.value.starts_with("ipc://") {
        warnings.push(format!(
            "[sink.{name}]: its events go to {} in clear text",
            url.value
        ));
    }
    Some(SinkKind::Zmq {
        url: url.value,
        server_key,
    })
}

fn file(section: &mut Section<'_, '_>, name: &str, warnings: &mut Vec<String>) -> Option<SinkKind> {
    const PATH: &str = "an absolute path such as \"/var/log/weir/events.json\"";
    let path = needed(section, "path", PATH, name)?;
    let file = Path::new(&path.value);
    if !file.is_absolute() || file.is_dir() || path.value.contains('\0') {
        section.error(
            path.line,
            format!("path in [sink.{name}] is {:?}; allowed: {PATH}", path.value),
        );
    }
    if !file.parent().is_some_and(Path::is_dir) {
        warnings.push(format!(
            "[sink.{name}]: the directory of {} does not exist yet; events wait until it does",
            path.value
        ));
    }
    Some(SinkKind::File { path: file.into() })
}

/// The one line of a file that a key names; `private`: nobody else may read it.
fn secret(
    section: &mut Section<'_, '_>,
    key: &'static str,
    name: &str,
    private: bool,
) -> Option<At<String>> {
    let path = section.string(key, "an absolute path")?;
    match read_file(Path::new(&path.value), MAX_SECRET, private) {
        Ok(text) if !text.trim().is_empty() && !text.trim().contains(char::is_control) => {
            Some(At {
                value: text.trim().to_owned(),
                line: path.line,
            })
        }
        Ok(_) => {
            section.error(
                path.line,
                format!(
                    "{key} in [sink.{name}]: {} is not one line of text; allowed: a file that holds nothing else",
                    path.value
                ),
            );
            None
        }
        Err(why) => {
            section.error(
                path.line,
                format!(
                    "{key} in [sink.{name}]: {}: {why}; allowed: a file of at most {MAX_SECRET} bytes that only root{} can change",
                    path.value,
                    if private { " can read and" } else { "" }
                ),
            );
            None
        }
    }
}

fn read_file(path: &Path, max: u64, private: bool) -> Result<String, String> {
    if !path.is_absolute() {
        return Err("not an absolute path".to_owned());
    }
    // A FIFO must not hold up the start.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(|e| format!("cannot be read: {e}"))?;
    let about = file.metadata().map_err(|e| e.to_string())?;
    let (mode, owner) = (about.mode(), about.uid());
    if !about.is_file() {
        return Err("not a file".to_owned());
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {owner}"));
    }
    if mode & 0o022 != 0 {
        return Err("others can write to it (chmod 600)".to_owned());
    }
    if private && mode & 0o007 != 0 {
        return Err("everybody can read it (chmod 600)".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() as u64 > max {
        return Err(format!("it has more than {max} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

#[cfg(test)]
pub(crate) mod tests;

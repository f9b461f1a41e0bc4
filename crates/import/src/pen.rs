//! Pen's command line and its files of commands as `[balance]`, `[pool.pen]` and
//! `[tarpit]`. Pen is a proxy unless it is told of an interface (`dsr_if`), and so is the
//! pool; everything that was typed and has no setting here is named with the place where
//! it stands and what does it here.

mod acl;
mod commands;
mod lists;
mod options;
mod penctl;
mod server;
mod write;

use std::collections::BTreeMap;

use self::{acl::Acl, server::Server};
use crate::Error;

/// So many servers are taken over: as many as weir has room for.
const MAX_SERVERS: usize = 1024;
/// A file may include another, and that one a third, up to here.
const MAX_INCLUDES: usize = 8;
/// More words than this nobody types; nor more lines.
const MAX_WORDS: usize = 65_536;

/// Reads a file that a command line or a file names; the error is shown.
pub type Read<'a> = dyn Fn(&str) -> Result<String, String> + 'a;

/// The place of a setting: `word 3`, or `/etc/pen/pen.cfg:12`.
type Place = String;

/// What was typed, as far as it is understood.
#[derive(Default)]
struct Pen {
    listen: Option<Listen>,
    /// Why what was typed as the address is none.
    no_listen: Option<String>,
    servers: BTreeMap<usize, Server>,
    is_udp: bool,
    interface: Option<String>,
    acls: [Acl; 10],
    client_acl: Option<usize>,
    tarpit_acl: Option<usize>,
    is_hash: bool,
    is_round_robin: bool,
    is_weighted: bool,
    is_transparent: bool,
    blacklist: Option<u64>,
    timeout: Option<u64>,
    idle_timeout: Option<u64>,
    connections: Option<u64>,
    emergency: Option<Server>,
    /// Where it is told of a certificate or a key, by which it ends TLS.
    tls: Option<Place>,
    /// The first place at which Pen and this may read a line about lists differently.
    doubtful: Option<Place>,
    /// What has no setting here, in the order in which it was typed, each once.
    remarks: Vec<Remark>,
    words: usize,
}

/// What becomes of something that was typed.
#[derive(PartialEq, Eq)]
struct Remark {
    place: Place,
    text: Said,
}

/// A text for both kinds of Pen's, or one for each: whether there is a `dsr_if` is only
/// known once all was read.
#[derive(PartialEq, Eq, Clone)]
enum Said {
    Always(String),
    ByKind(ByKind),
}

/// What is said with `dsr_if`, and of a proxy; empty where it is a setting.
#[derive(PartialEq, Eq, Clone, Copy)]
struct ByKind {
    dsr: &'static str,
    proxy: &'static str,
}

/// The address and port at which Pen accepts clients.
struct Listen {
    place: Place,
    /// The host as typed; empty for all addresses.
    host: String,
    /// The port; 0: all ports.
    port: u16,
}

impl Pen {
    fn is_proxy(&self) -> bool {
        self.interface.is_none()
    }

    fn remark(&mut self, place: &str, text: &str) {
        self.say(place, Said::Always(text.to_owned()));
    }

    fn remark_by_kind(&mut self, place: &str, texts: ByKind) {
        self.say(place, Said::ByKind(texts));
    }

    fn say(&mut self, place: &str, text: Said) {
        let remark = Remark {
            place: place.to_owned(),
            text,
        };
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    /// Counts what is read; an input without an end is none of Pen's.
    fn count(&mut self) -> Result<(), Error> {
        self.words += 1;
        match self.words > MAX_WORDS {
            true => Err(Error(format!("more than {MAX_WORDS} words and lines"))),
            false => Ok(()),
        }
    }

    /// Commands of a file, one a line.
    fn read_file(
        &mut self,
        name: &str,
        text: &str,
        read: &Read<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        for (number, line) in text.split('\n').enumerate() {
            self.count()?;
            let place = format!("{name}:{}", number + 1);
            self.read_line(&place, line, read, depth)?;
        }
        Ok(())
    }

    /// One command with its words. Pen splits at blanks alone, so that of another white space
    /// a word of Pen's has more than one here.
    fn read_line(
        &mut self,
        place: &str,
        line: &str,
        read: &Read<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            return Ok(());
        }
        let is_about_lists = words.iter().any(|word| word.ends_with("acl"));
        if is_about_lists && line.contains(|c: char| c.is_whitespace() && c != ' ') {
            self.doubt(place);
        }
        self.command(place, &words, read, depth)
    }

    /// Which clients Pen serves by this line is not known for certain.
    fn doubt(&mut self, place: &str) {
        self.doubtful.get_or_insert_with(|| place.to_owned());
    }
}

/// What Pen's configuration becomes.
pub struct Imported {
    /// The text of a weir.toml.
    pub text: String,
    /// Why its pool is a comment, and serves nobody until somebody completes it.
    pub incomplete: Option<String>,
}

/// Of a command line such as `pen -df -O "dsr_if eth1" 192.0.2.10:80 192.0.2.2`. The
/// files that it names are read by `read`.
///
/// # Errors
/// It cannot be read, or nothing in it makes a pool; of penctl's, what does the same here.
pub fn command_line(text: &str, read: &Read<'_>) -> Result<Imported, Error> {
    let Some(words) = shlex::split(text) else {
        return Err(Error("a quotation mark in it has no second one".to_owned()));
    };
    if let Some((program, rest)) = words.split_first()
        && program.rsplit('/').next() == Some("penctl")
    {
        return Err(penctl::in_its_place(rest));
    }
    let mut pen = Pen::default();
    pen.read_options(&words, read)?;
    let why = "no word of it is the address and port at which Pen listens, as in pen 192.0.2.10:80 192.0.2.2 192.0.2.3";
    imported(pen, why)
}

/// Of a file of commands, as `-F` names it and `penctl write` writes it.
///
/// # Errors
/// It cannot be read, or nothing in it makes a pool.
pub fn file(name: &str, text: &str, read: &Read<'_>) -> Result<Imported, Error> {
    let mut pen = Pen::default();
    pen.read_file(name, text, read, 0)?;
    let why = "no `listen` in it has the address and port at which Pen listens; where Pen's command line has them, import that one: weir import pen 'pen -F FILE 192.0.2.10:80'";
    imported(pen, why)
}

/// `why` nothing makes a pool, where nobody has tried to say where Pen listens.
fn imported(pen: Pen, why: &str) -> Result<Imported, Error> {
    if pen.listen.is_none() {
        let why = pen.no_listen.as_deref().unwrap_or(why);
        return Err(Error(format!("nothing makes a pool of it: {why}")));
    }
    Ok(write::configuration(pen))
}

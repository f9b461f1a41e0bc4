//! From the bytes of a list to prefixes: every grammar that lists are
//! published in, in one pass that costs the same for any input. Lines that are
//! no entry are counted, with the first few; what is no list at all is refused.
//!
//! An entry is an address, a prefix (`1.2.3.0/24`, `2001:db8::/32`, with bits
//! behind the length or a netmask if it must be), or a range `first-last`.

use std::{
    fmt::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::LazyLock,
};

use weir_core::{BanTarget, Prefix, geo::Number};

use super::{
    ListError,
    join::{Span, joined, joined_in_order, prefixes, shown, without},
    json,
};

/// How the entries of a list are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Whichever of the others fits the first lines.
    Auto,
    /// An entry at the beginning of each line; the rest of it is a comment.
    /// Also `first last length`, as DShield has it.
    Plain,
    /// An entry in this column, counted from 1.
    Csv(usize),
    /// The output of `ipset save`.
    Ipset,
    /// A hosts file: its names are of no use here, its addresses are.
    Hosts,
    /// JSON in any shape: each text in it that is an entry.
    Json,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Plain => f.write_str("plain"),
            Self::Csv(column) => write!(f, "csv:{column}"),
            Self::Ipset => f.write_str("ipset"),
            Self::Hosts => f.write_str("hosts"),
            Self::Json => f.write_str("json"),
        }
    }
}

/// The values that [`Format`] is read from.
pub const FORMATS: &str =
    "\"auto\", \"plain\", \"csv:COLUMN\" (from 1), \"ipset\", \"hosts\", \"json\"";

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "auto" => Self::Auto,
            "plain" => Self::Plain,
            "ipset" => Self::Ipset,
            "hosts" => Self::Hosts,
            "json" => Self::Json,
            _ => match text.strip_prefix("csv:").map(str::parse) {
                Some(Ok(column)) if (1..=MAX_COLUMNS).contains(&column) => Self::Csv(column),
                _ => return Err(()),
            },
        })
    }
}

/// A CSV file has at most this many columns, as far as it is looked at.
const MAX_COLUMNS: usize = 64;
/// Lines that decide what `auto` is.
const SAMPLE: usize = 256;
/// Lines that are told of by number.
const TOLD: usize = 5;
/// Characters of a line that are told.
const CLIP: usize = 60;
/// Longer words are no entry: two IPv6 addresses and a dash.
const MAX_WORD: usize = 2 * 45 + 1;
/// Why an entry is refused for its size.
const TOO_WIDE: &str = "it is wider than a list from elsewhere may hold in one piece";
/// `auto` takes no text in which more lines than these, and than entries, are
/// something else.
const OTHER_LINES: usize = 16;

/// Which entries may be in a list, beside those that are too wide
/// ([`Limits::widest`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Prefixes that a ban may hold.
    Bannable,
    /// Prefixes that a ban may hold, but for networks that hosts use among themselves
    /// (private, shared, link-local): published lists name them as bogons, and whoever bans
    /// them has banned his own network.
    Public,
    /// For an allow list.
    Allow,
}

/// The networks that [`Admit::Public`] leaves out.
static PRIVATE: LazyLock<[Prefix; 6]> = LazyLock::new(|| {
    [
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
    ]
    .map(|text| text.parse().expect("it is a prefix"))
});

impl Admit {
    /// Why this prefix may not be an entry.
    fn refusal(self, prefix: Prefix) -> Option<&'static str> {
        if self == Self::Allow {
            let reserved = matches!(prefix.addr(), IpAddr::V6(a) if a.to_bits() >> 104 == 0);
            return reserved.then_some("it is reserved (RFC 4291)");
        }
        // A single link-local address can be banned, but is on no list: neither
        // lists nor the geofence judge them.
        let link_local = matches!(prefix.addr(), IpAddr::V6(a) if a.is_unicast_link_local());
        if BanTarget::new(prefix).is_err() || link_local {
            return Some("nobody can ban it");
        }
        let private = |other: &Prefix| other.covers(prefix) || prefix.covers(*other);
        (self == Self::Public && PRIVATE.iter().any(private))
            .then_some("it is, or holds, a private network")
    }
}

/// The caps of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes a list may have when its compression is undone.
    pub max_bytes: usize,
    /// Entries, and prefixes that they make.
    pub max_entries: usize,
    /// Addresses without a gap, IPv4 and IPv6: no more than a prefix of this
    /// length has, however they are written.
    pub widest: [u8; 2],
}

/// [`Limits::widest`] of what others publish: a sixteenth of IPv4, and in IPv6
/// what sixteen regional registries have at once. More is a mistake, or a joke.
pub const WIDEST: [u8; 2] = [4, 8];

/// Lines or entries that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedLines {
    /// The number of lines or entries that were left out.
    pub count: usize,
    /// The first of them: line number and what is there.
    pub first: Vec<(usize, String)>,
}

impl SkippedLines {
    pub(super) fn note(&mut self, line: usize, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < TOLD {
            self.first.push((line, text()));
        }
    }

    /// Takes a line out that is not there any more.
    pub(super) fn forget(&mut self, text: &str) {
        self.count = self.count.saturating_sub(1);
        if let Some(at) = self.first.iter().position(|(_, told)| told == text) {
            self.first.remove(at);
        }
    }
}

/// A list that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedList {
    /// The grammar of the list.
    pub format: Format,
    /// The prefixes of the list: sorted, none in another, neighbours joined.
    pub prefixes: Vec<Prefix>,
    /// Entries as they were written.
    pub entries: usize,
    /// Lines that are neither an entry nor a comment.
    pub skipped: SkippedLines,
    /// Entries that no list may hold.
    pub refused: SkippedLines,
    /// Entries of these that are too wide.
    pub wide: Wide,
}

/// What was left out because it is wider than [`Limits::widest`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wide {
    /// How many entries were left out.
    pub entries: usize,
    /// The first of them: prefixes, or ranges that several make.
    pub first: Vec<String>,
    /// Of all addresses that the list names, in tenths of a percent: IPv4, IPv6.
    pub share: [u16; 2],
}

/// Writes prefixes as a plain list.
pub fn print(prefixes: &[Prefix]) -> String {
    let mut text = String::with_capacity(prefixes.len() * 18);
    for prefix in prefixes {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{prefix}");
    }
    text
}

/// Reads a list.
pub fn parse(
    bytes: &[u8],
    format: Format,
    admit: Admit,
    limits: &Limits,
) -> Result<ParsedList, ListError> {
    if bytes.len() > limits.max_bytes {
        return Err(ListError::TooLarge(limits.max_bytes));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Some(at) = memchr::memchr(0, bytes) {
        return Err(ListError::Binary(at));
    }
    let text = bytes.trim_ascii_start();
    if text.is_empty() {
        return Err(ListError::Empty);
    }
    if text[0] == b'<' {
        return Err(ListError::Html);
    }
    let detected = match format {
        Format::Auto => detect(text),
        format => format,
    };
    let mut reader = Reader {
        admit,
        limits: *limits,
        entries: 0,
        names: 0,
        comments: 0,
        v4: Spans::default(),
        v6: Spans::default(),
        skipped: SkippedLines::default(),
        refused: SkippedLines::default(),
        wide: Wide::default(),
    };
    if detected == Format::Json {
        reader.json(bytes)?;
    } else {
        for (at, line) in lines(bytes).enumerate() {
            reader.line(at + 1, line, detected)?;
        }
    }
    reader.finish(detected, format == Format::Auto)
}

/// Lines without their end.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut from = 0;
    std::iter::from_fn(move || {
        if from >= bytes.len() {
            return None;
        }
        let rest = &bytes[from..];
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        from += end + 1;
        Some(rest[..end].trim_ascii())
    })
}

fn is_comment(line: &[u8]) -> bool {
    line.is_empty() || matches!(line[0], b'#' | b';') || line.starts_with(b"//")
}

fn detect(text: &[u8]) -> Format {
    if matches!(text[0], b'{' | b'[') && !bracketed(text) {
        return Format::Json;
    }
    let sample: Vec<&[u8]> = lines(text)
        .filter(|line| !is_comment(line))
        .take(SAMPLE)
        .collect();
    if sample.iter().any(|line| ipset_command(line).is_some()) {
        return Format::Ipset;
    }
    let hosts = sample.iter().filter(|line| is_hosts_line(line)).count();
    if hosts * 2 > sample.len() {
        return Format::Hosts;
    }
    let plain = sample.iter().filter(|line| plain(line).is_some()).count();
    let mut columns = [0usize; MAX_COLUMNS];
    for line in &sample {
        if !line.contains(&b',') {
            continue;
        }
        for (count, field) in columns.iter_mut().zip(fields(line)) {
            *count += usize::from(field_entry(field).is_some());
        }
    }
    // The first of those that hold most.
    let (column, most) = (0..MAX_COLUMNS)
        .map(|column| (column, columns[column]))
        .rev()
        .max_by_key(|(_, count)| *count)
        .unwrap_or_default();
    if most > plain {
        Format::Csv(column + 1)
    } else {
        Format::Plain
    }
}

/// Whether the text begins with an IPv6 address in brackets.
fn bracketed(text: &[u8]) -> bool {
    lines(text).next().is_some_and(|line| plain(line).is_some())
}

/// Where names are sent that a hosts file takes away.
fn is_sink(word: &[u8]) -> bool {
    matches!(word, b"0.0.0.0" | b"127.0.0.1" | b"::" | b"::1" | b"0")
}

fn is_hosts_line(line: &[u8]) -> bool {
    let mut words = words(line);
    words.next().is_some_and(is_sink)
        && words
            .next()
            .is_some_and(|word| word.iter().any(u8::is_ascii_alphabetic) && entry(word).is_none())
}

/// Words up to a comment.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .take_while(|word| !word.starts_with(b"#"))
}

/// One entry of a list, by family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ListEntry {
    V4(Span<u32>),
    V6(Span<u128>),
}

impl ListEntry {
    fn of(prefix: Prefix) -> Self {
        match prefix.addr() {
            IpAddr::V4(addr) => {
                let host = u32::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
                Self::V4((addr.to_bits(), addr.to_bits() | host))
            }
            IpAddr::V6(addr) => {
                let host = u128::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
                Self::V6((addr.to_bits(), addr.to_bits() | host))
            }
        }
    }

    fn range(first: IpAddr, last: IpAddr) -> Option<Self> {
        let range = match (first.to_canonical(), last.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) if a <= b => Self::V4((a.to_bits(), b.to_bits())),
            (IpAddr::V6(a), IpAddr::V6(b)) if a <= b => Self::V6((a.to_bits(), b.to_bits())),
            _ => return None,
        };
        Some(range)
    }
}

fn number(digits: &[u8]) -> Option<u8> {
    if digits.is_empty() || digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0u16, |number, digit| number * 10 + u16::from(digit - b'0'));
    u8::try_from(number).ok()
}

fn address4(word: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = word.split(|byte| *byte == b'.');
    for octet in &mut octets {
        let part = parts.next()?;
        // 010 is eight to some and ten to others.
        if part.len() > 1 && part[0] == b'0' {
            return None;
        }
        *octet = number(part)?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn address(word: &[u8]) -> Option<IpAddr> {
    if word.len() > 45 {
        return None;
    }
    if let Some(addr) = address4(word) {
        return Some(addr.into());
    }
    if !word.contains(&b':') {
        return None;
    }
    let addr: Ipv6Addr = std::str::from_utf8(word).ok()?.parse().ok()?;
    Some(IpAddr::V6(addr))
}

/// The length that a netmask stands for.
fn mask(word: &[u8]) -> Option<u8> {
    let bits = address4(word)?.to_bits();
    (bits.leading_ones() + bits.trailing_zeros() == 32).then(|| bits.leading_ones() as u8)
}

/// `ADDR`, `ADDR/LEN`, `ADDR/MASK`, `FIRST-LAST`.
fn entry(word: &[u8]) -> Option<ListEntry> {
    if word.len() > MAX_WORD || !word.first()?.is_ascii_hexdigit() && word[0] != b':' {
        return None;
    }
    if let Some(at) = memchr::memchr(b'/', word) {
        let (addr, length) = (address(&word[..at])?, &word[at + 1..]);
        let length = match number(length) {
            Some(length) => length,
            None => mask(length).filter(|_| addr.is_ipv4())?,
        };
        return Prefix::new(addr, length).map(ListEntry::of);
    }
    if let Some(at) = memchr::memchr(b'-', word) {
        return ListEntry::range(address(&word[..at])?, address(&word[at + 1..])?);
    }
    address(word).map(|addr| ListEntry::of(Prefix::host(addr)))
}

/// The entry that a line begins with.
fn plain(line: &[u8]) -> Option<ListEntry> {
    let line = match line.strip_prefix(b"[") {
        // An IPv6 address as URLs have it.
        Some(rest) => &rest[..memchr::memchr(b']', rest)?],
        None => line,
    };
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b';' | b'#' | b'|');
    let end = line.iter().position(ends).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    let first = entry(word)?;
    let mut words = words(rest);
    let (Some(second), third) = (words.next(), words.next()) else {
        return Some(first);
    };
    // `1.2.3.4 - 1.2.3.9`
    if second == b"-" {
        return match (address(word), third.and_then(address)) {
            (Some(first), Some(last)) => ListEntry::range(first, last),
            _ => Some(first),
        };
    }
    let (Some(from), Some(to)) = (address(word), address(second)) else {
        return Some(first);
    };
    // `1.2.3.0 255.255.255.0`
    if let (IpAddr::V4(_), Some(length @ 8..)) = (from, mask(second)) {
        return Prefix::new(from, length).map(ListEntry::of);
    }
    // `1.2.3.0 1.2.3.255 24 …`
    match third.and_then(number) {
        Some(_) => ListEntry::range(from, to),
        None => Some(first),
    }
}

/// The fields of a CSV line, with their quotes. By hand, not by csv-core, which
/// reads on over line ends where a quote is never closed, so that one such line
/// would be the rest of a list, and copies what most lines never look at.
fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut rest) = (false, Some(line));
    std::iter::from_fn(move || {
        let line = rest?;
        for (at, byte) in line.iter().enumerate() {
            match byte {
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    rest = Some(&line[at + 1..]);
                    return Some(&line[..at]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(line)
    })
}

/// A field that is an entry; `1.2.3.4:443` is the address alone.
fn field_entry(field: &[u8]) -> Option<ListEntry> {
    let field = field.trim_ascii();
    let field = field
        .strip_prefix(b"\"")
        .and_then(|field| field.strip_suffix(b"\""))
        .unwrap_or(field)
        .trim_ascii();
    entry(field).or_else(|| {
        let (addr, port) = field.split_at(memchr::memchr(b':', field)?);
        let port = std::str::from_utf8(&port[1..]).ok()?;
        port.parse::<u16>().ok()?;
        address4(addr).map(|addr| ListEntry::of(Prefix::host(addr.into())))
    })
}

/// What follows `add NAME`, or nothing for other commands of ipset.
fn ipset_command(line: &[u8]) -> Option<Option<&[u8]>> {
    let end = line.iter().position(u8::is_ascii_whitespace)?;
    let rest = line[end..].trim_ascii_start();
    match &line[..end] {
        b"add" | b"-A" => {
            let name = rest.iter().position(u8::is_ascii_whitespace)?;
            Some(Some(rest[name..].trim_ascii_start()))
        }
        b"create" | b"-N" | b"flush" | b"-F" | b"destroy" | b"-X" | b"swap" | b"-W" => Some(None),
        _ => None,
    }
}

/// Spans taken, spans taken out again, and spans that are too wide.
struct Spans<A> {
    taken: Vec<Span<A>>,
    except: Vec<Span<A>>,
    wide: Vec<Span<A>>,
}

impl<A> Default for Spans<A> {
    fn default() -> Self {
        Self {
            taken: Vec::new(),
            except: Vec::new(),
            wide: Vec::new(),
        }
    }
}

/// Has it more addresses than a prefix of length `widest`, of `width` bits?
fn is_wide<A: Number + Into<u128>>((first, last): Span<A>, widest: u8, width: u32) -> bool {
    let most = u128::MAX
        .checked_shr(128 - width + u32::from(widest))
        .unwrap_or(0);
    last.into() - first.into() > most
}

impl<A: Number + Into<u128>> Spans<A> {
    /// The number of spans.
    fn len(&self) -> usize {
        self.taken.len() + self.except.len() + self.wide.len()
    }

    /// What is left of them, in order, without what is too wide; that is told.
    fn finish(
        self,
        widest: u8,
        width: u32,
        wide: &mut Wide,
        refused: &mut SkippedLines,
    ) -> Vec<Span<A>> {
        let Self {
            mut taken,
            except,
            wide: mut left,
        } = self;
        taken.sort_unstable();
        let all = without(joined_in_order(&taken), &joined(except));
        let (runs, kept): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|run| is_wide(*run, widest, width));
        for run in &runs {
            let text = shown(*run, width);
            let within = taken
                .iter()
                .filter(|(first, last)| *first >= run.0 && *last <= run.1);
            for _ in within {
                refused.note(0, || format!("{text}, of neighbours: {TOO_WIDE}"));
                wide.entries += 1;
            }
            if wide.first.len() < TOLD {
                wide.first.push(text);
            }
        }
        left.extend(runs);
        if !left.is_empty() {
            let size = |spans: &[Span<A>]| -> f64 {
                let sizes = spans.iter().map(|(first, last)| {
                    let (first, last): Span<u128> = ((*first).into(), (*last).into());
                    (last - first) as f64 + 1.0
                });
                sizes.sum()
            };
            left.extend(&kept);
            let share = 1.0 - size(&kept) / size(&joined(left));
            wide.share[usize::from(width > 32)] = (share * 1000.0).round() as u16;
        }
        kept
    }
}

/// Entries and counts that were read so far.
struct Reader {
    admit: Admit,
    limits: Limits,
    entries: usize,
    names: usize,
    comments: usize,
    v4: Spans<u32>,
    v6: Spans<u128>,
    skipped: SkippedLines,
    refused: SkippedLines,
    wide: Wide,
}

fn clipped(line: &[u8]) -> String {
    let end = line.len().min(4 * CLIP);
    let text = String::from_utf8_lossy(&line[..end]);
    text.chars().take(CLIP).collect()
}

impl Reader {
    fn line(&mut self, number: usize, line: &[u8], format: Format) -> Result<(), ListError> {
        if is_comment(line) {
            self.comments += usize::from(!line.is_empty());
            return Ok(());
        }
        let found = match format {
            Format::Csv(column) => fields(line).nth(column - 1).and_then(field_entry),
            Format::Ipset => match ipset_command(line) {
                Some(None) => return Ok(()),
                Some(Some(rest)) => return self.ipset_entry(number, line, rest),
                None if line == b"COMMIT" => return Ok(()),
                None => None,
            },
            Format::Hosts => return self.hosts_line(number, line),
            Format::Plain | Format::Auto | Format::Json => plain(line),
        };
        match found {
            Some(entry) => self.take(number, entry, || clipped(line)),
            None => {
                self.skipped.note(number, || clipped(line));
                Ok(())
            }
        }
    }

    /// `1.2.3.0/24 timeout 5`, `1.2.3.9 nomatch`
    fn ipset_entry(&mut self, number: usize, line: &[u8], rest: &[u8]) -> Result<(), ListError> {
        let mut words = words(rest);
        // With a comma it is about a port or an interface as well.
        let Some(found) = words.next().and_then(entry) else {
            self.skipped.note(number, || clipped(line));
            return Ok(());
        };
        let nomatch = words
            .take_while(|word| *word != b"comment")
            .any(|word| word == b"nomatch");
        if !nomatch {
            return self.take(number, found, || clipped(line));
        }
        self.room()?;
        match found {
            ListEntry::V4(span) => self.v4.except.push(span),
            ListEntry::V6(span) => self.v6.except.push(span),
        }
        Ok(())
    }

    fn hosts_line(&mut self, number: usize, line: &[u8]) -> Result<(), ListError> {
        let mut known = false;
        for word in words(line) {
            match entry(word) {
                _ if is_sink(word) => known = true,
                Some(found) => {
                    known = true;
                    self.take(number, found, || clipped(line))?;
                }
                None => self.names += 1,
            }
        }
        if !known {
            self.skipped.note(number, || clipped(line));
        }
        Ok(())
    }

    /// Texts in quotes. Which of them are entries does not depend on where they
    /// stand: a text with an escape in it is no address.
    fn json(&mut self, bytes: &[u8]) -> Result<(), ListError> {
        let (mut line, mut counted) = (1, 0);
        let mut texts = 0;
        json::texts(bytes, |from, text| {
            texts += 1;
            let Some(found) = entry(text) else {
                return Ok(());
            };
            line += memchr::memchr_iter(b'\n', &bytes[counted..from]).count();
            counted = from;
            self.take(line, found, || clipped(text))
        })?;
        if texts > 0 && self.entries == 0 {
            self.skipped.note(1, || clipped(bytes.trim_ascii_start()));
        }
        Ok(())
    }

    fn room(&self) -> Result<(), ListError> {
        match self.v4.len() + self.v6.len() < self.limits.max_entries {
            true => Ok(()),
            false => Err(ListError::TooMany(self.limits.max_entries)),
        }
    }

    fn take(
        &mut self,
        line: usize,
        entry: ListEntry,
        text: impl Fn() -> String,
    ) -> Result<(), ListError> {
        let (admit, [widest4, widest6]) = (self.admit, self.limits.widest);
        self.entries += 1;
        let too_wide = match entry {
            ListEntry::V4(span) => is_wide(span, widest4, 32).then(|| shown(span, 32)),
            ListEntry::V6(span) => is_wide(span, widest6, 128).then(|| shown(span, 128)),
        };
        if let Some(shown) = too_wide {
            self.room()?;
            match entry {
                ListEntry::V4(span) => self.v4.wide.push(span),
                ListEntry::V6(span) => self.v6.wide.push(span),
            }
            self.refused
                .note(line, || format!("{}: {TOO_WIDE}", text()));
            self.wide.entries += 1;
            if self.wide.first.len() < TOLD {
                self.wide.first.push(shown);
            }
            return Ok(());
        }
        let refusal = match entry {
            ListEntry::V4(span) => prefixes(span, 32).find_map(|p| admit.refusal(p)),
            ListEntry::V6(span) => prefixes(span, 128).find_map(|p| admit.refusal(p)),
        };
        if let Some(why) = refusal {
            self.refused.note(line, || format!("{}: {why}", text()));
            return Ok(());
        }
        self.room()?;
        match entry {
            ListEntry::V4(span) => self.v4.taken.push(span),
            ListEntry::V6(span) => self.v6.taken.push(span),
        }
        Ok(())
    }

    fn finish(self, format: Format, guessed: bool) -> Result<ParsedList, ListError> {
        let Self {
            entries,
            names,
            comments,
            v4,
            v6,
            skipped,
            mut refused,
            mut wide,
            limits:
                Limits {
                    max_entries,
                    widest: [widest4, widest6],
                    ..
                },
            ..
        } = self;
        if entries == 0 {
            if names > 0 {
                return Err(ListError::OnlyNames(names));
            }
            if let Some((line, text)) = skipped.first.into_iter().next() {
                return Err(ListError::NoAddresses { line, text });
            }
            if comments == 0 && format != Format::Json && format != Format::Ipset {
                return Err(ListError::Empty);
            }
            // Nobody is on it just now: lists that list those active say so.
            return Ok(ParsedList {
                format,
                prefixes: Vec::new(),
                entries,
                skipped: SkippedLines::default(),
                refused,
                wide,
            });
        }
        if guessed && skipped.count > OTHER_LINES && skipped.count > entries {
            let (line, text) = skipped.first.into_iter().next().unwrap_or_default();
            return Err(ListError::MostlyOther {
                skipped: skipped.count,
                entries,
                line,
                text,
            });
        }
        let v4 = v4.finish(widest4, 32, &mut wide, &mut refused);
        let v6 = v6.finish(widest6, 128, &mut wide, &mut refused);
        if refused.count == entries {
            let (line, text) = refused.first.into_iter().next().unwrap_or_default();
            return Err(ListError::AllRefused {
                count: entries,
                line,
                text,
            });
        }
        let mut list: Vec<Prefix> = Vec::with_capacity(v4.len() + v6.len());
        let all = v4.into_iter().flat_map(|span| prefixes(span, 32));
        for prefix in all.chain(v6.into_iter().flat_map(|span| prefixes(span, 128))) {
            if list.len() == max_entries {
                return Err(ListError::TooMany(max_entries));
            }
            list.push(prefix);
        }
        list.shrink_to_fit();
        Ok(ParsedList {
            format,
            prefixes: list,
            entries,
            skipped,
            refused,
            wide,
        })
    }
}

#[cfg(test)]
mod tests;

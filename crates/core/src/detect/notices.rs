//! What a filter notices of a log beside its failures: lines that cannot be
//! trusted, and lines that a log daemon says it has dropped. What follows from
//! it is for others to say.

use std::collections::HashSet;

/// So many lines behind one without a stamp or a tag do not count. Who writes a
/// client's line breaks as they are begins each message without a head, or with
/// the stamp that `ts` or `svlogd` puts there, and a client's text goes on for some
/// lines at most: OpenSSH's messages have 1,023 bytes, and the shortest line that
/// looks like another program's behind such a stamp has four, `a: ` and its end.
pub const BEHIND_NO_HEAD: u16 = 256;

/// Noticed since somebody asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Failures that do not count because they came from standard output.
    pub stdout: u64,
    /// Failures that do not count because they, or lines shortly before them,
    /// have no head.
    pub headless: u64,
    /// The last line without a head before one of them; the first of the lines that
    /// lack the declared one.
    pub line: Option<HeadlessLine>,
    /// Lines, behind many others, that do not have the head which the filter declares.
    pub unfit: u64,
    /// A line has that head.
    pub fits: bool,
    /// Lines that a log daemon has dropped by its rate limit.
    pub rate_limited: u64,
    /// Failures that do not count because what they name cannot be counted.
    pub refused: u64,
    /// The beginning of the first of these lines.
    pub refused_line: Vec<u8>,
}

/// A line for which others do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadlessLine {
    /// Whether the line has a stamp and lacks only the tag.
    pub has_stamp: bool,
    /// The beginning of the line, as it was read.
    pub text: Vec<u8>,
}

/// So much of such a line is shown.
const MAX_SHOWN: usize = 100;

/// As much of a line as is shown.
pub(super) fn shown(line: &[u8]) -> Vec<u8> {
    line[..line.len().min(MAX_SHOWN)].into()
}

impl std::ops::AddAssign for Notices {
    fn add_assign(&mut self, more: Self) {
        self.stdout = self.stdout.saturating_add(more.stdout);
        self.headless = self.headless.saturating_add(more.headless);
        self.unfit = self.unfit.saturating_add(more.unfit);
        self.fits = self.fits || more.fits;
        self.line = more.line.or(self.line.take());
        self.rate_limited = self.rate_limited.saturating_add(more.rate_limited);
        if self.refused == 0 {
            self.refused_line = more.refused_line;
        }
        self.refused = self.refused.saturating_add(more.refused);
    }
}

/// Streams in which a line without a head came. A stream shares its place with
/// others: then fewer lines count, never more.
#[derive(Clone, Debug, Default)]
pub(super) struct Headless {
    /// How many lines of a stream do not count yet; empty before the first.
    left: Vec<Left>,
    /// The last line was one of them.
    pub last: bool,
    /// The last line without a head.
    pub line: HeadlessLine,
    hosts: Hosts,
}

const PLACES: usize = 256;

/// What is left of a place's lines that do not count.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    lines: u16,
    /// One of its streams has had a line since the log was opened.
    came: bool,
}

/// Hosts named in the heads of lines that count.
#[derive(Clone, Debug, Default)]
struct Hosts {
    last: Vec<u8>,
    known: HashSet<Box<[u8]>>,
}

/// The most hosts that are remembered: then all are learnt anew.
const MAX_HOSTS: usize = 1024;

impl Headless {
    /// The next line of a stream; true if it does not count.
    pub fn next(&mut self, stream: u64) -> bool {
        self.last = match self.left.get_mut(stream as usize % PLACES) {
            Some(left) => {
                left.came = true;
                let counts = left.lines == 0;
                left.lines = left.lines.saturating_sub(1);
                !counts
            }
            None => false,
        };
        self.last
    }

    /// The log is opened anew, which may number its streams otherwise: as many lines
    /// of each do not count as of the one that had most left.
    pub fn reopen(&mut self) {
        let any_came = self.left.iter().any(|left| left.came);
        let in_use = self.left.iter().filter(|left| left.came || !any_came);
        let lines = in_use.map(|left| left.lines).max().unwrap_or(0);
        self.left.fill(Left { lines, came: false });
    }

    /// The line that came has a head with this host.
    pub fn names(&mut self, host: Option<&[u8]>) {
        let hosts = &mut self.hosts;
        let Some(host) = host.filter(|host| !self.last && hosts.last != *host) else {
            return;
        };
        hosts.last.clear();
        hosts.last.extend_from_slice(host);
        if !hosts.known.contains(host) {
            if hosts.known.len() == MAX_HOSTS {
                hosts.known.clear();
            }
            hosts.known.insert(host.into());
        }
    }

    /// Did a line that counts name this host?
    pub fn knows(&self, host: &[u8]) -> bool {
        self.hosts.known.contains(host)
    }

    /// The line that came is to be shown.
    pub fn keep(&mut self, line: &[u8]) {
        self.line.text.clear();
        self.line.text.extend(line.iter().take(MAX_SHOWN));
    }

    /// The line that came had no head.
    pub fn saw(&mut self, stream: u64, line: &[u8], has_stamp: bool) {
        self.left.resize(PLACES, Left::default());
        self.line.has_stamp = has_stamp;
        self.keep(line);
        self.left[stream as usize % PLACES] = Left {
            lines: BEHIND_NO_HEAD,
            came: true,
        };
    }
}

/// A head that so many lines of a stream in a row do not have is taken for the
/// wrong one; fewer may be the rest of a message with line breaks.
pub(super) const HEAD_NEVER_FITS: u32 = 100;

/// How many lines in a row lacked the declared head, of each stream. A stream shares
/// its place with others: then one that has it may hide another that lacks it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfit {
    /// Empty before the first.
    in_a_row: Vec<u32>,
}

impl Unfit {
    /// The line that came has the head.
    pub fn ends(&mut self, stream: u64) {
        if let Some(count) = self.in_a_row.get_mut(stream as usize % PLACES) {
            *count = 0;
        }
    }

    /// The line that came lacks it; true if none of the last had it.
    pub fn saw(&mut self, stream: u64) -> bool {
        self.in_a_row.resize(PLACES, 0);
        let count = &mut self.in_a_row[stream as usize % PLACES];
        *count = count.saturating_add(1);
        *count >= HEAD_NEVER_FITS
    }
}

/// How many lines of one of these programs a log daemon says it has dropped,
/// given its tag and message. (journald names the unit; rsyslog does not say
/// whose they were.)
///
/// ```text
/// systemd-journald: Suppressed 842 messages from ssh.service
/// rsyslogd: imuxsock[77]: 842 messages lost due to rate-limiting (200 allowed within 5 seconds)
/// rsyslogd: imuxsock lost 842 messages from pid 77 due to rate-limiting
/// ```
pub(super) fn rate_limited<'a>(
    tag: &[u8],
    message: &[u8],
    programs: impl IntoIterator<Item = &'a str>,
) -> Option<u64> {
    let words = || message.split(|b| *b == b' ');
    match tag {
        b"systemd-journald" => {
            let (count, unit) = suppressed(message)?;
            let is_theirs = |program: &str| is_unit_of(unit, program);
            programs.into_iter().any(is_theirs).then_some(count)
        }
        b"rsyslogd" => {
            let told = memchr::memmem::find(message, b"due to rate-limiting").is_some()
                && words().any(|word| word == b"lost");
            if !told {
                return None;
            }
            // What stands before "messages".
            let mut pairs = words().zip(words().skip(1));
            pairs.find_map(|(count, noun)| (noun == b"messages").then(|| number(count))?)
        }
        _ => None,
    }
}

/// Messages that journald says it has dropped: their number, and the unit.
pub fn suppressed(message: &[u8]) -> Option<(u64, &[u8])> {
    let mut words = message.strip_prefix(b"Suppressed ")?.split(|b| *b == b' ');
    Some((number(words.next()?)?, words.next_back()?))
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Is this the unit of a service of that name? `sshd`'s is `sshd.service`,
/// `ssh.service` or `sshd@…`; `postfix/smtpd`'s `postfix@-.service`.
fn is_unit_of(unit: &[u8], program: &str) -> bool {
    let name = unit.split(|b| matches!(b, b'.' | b'@')).next();
    let name = name.unwrap_or_default();
    let service = program.split(['/', '-']).next().unwrap_or(program);
    name == service.as_bytes() || Some(name) == service.strip_suffix('d').map(str::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_fits_ends_the_row_of_its_stream() {
        let mut unfit = Unfit::default();
        // Streams have any numbers.
        for stream in [0, 7, u64::from(u32::MAX) * 3 + 1] {
            let mut row = |count| (0..count).map(|_| unfit.saw(stream)).last();
            assert_eq!(row(HEAD_NEVER_FITS - 1), Some(false));
            unfit.ends(stream);
            let mut row = |count| (0..count).map(|_| unfit.saw(stream)).last();
            assert_eq!(row(HEAD_NEVER_FITS - 1), Some(false), "{stream}");
            assert_eq!(row(1), Some(true));
            unfit.ends(stream);
        }
    }

    #[test]
    fn a_log_that_is_opened_anew_is_distrusted_as_its_worst_stream_was() {
        let mut headless = Headless::default();
        headless.reopen();
        assert!(!headless.next(0), "nothing was without a head");
        headless.saw(7, b"x", true);
        assert!(headless.next(7));
        headless.reopen();
        for _ in 1..BEHIND_NO_HEAD {
            assert!(headless.next(3), "numbered otherwise now");
        }
        assert!(!headless.next(3));
        // Stream 7 is not there any more, and has a say no longer.
        headless.reopen();
        assert!(!headless.next(3));
        // Nor does a second opening in a row forget.
        headless.saw(3, b"x", true);
        headless.reopen();
        headless.reopen();
        assert!(headless.next(0));
    }

    #[test]
    fn hosts_are_learnt_from_lines_that_count_and_are_few() {
        let mut headless = Headless::default();
        headless.saw(0, &[b'x'; 200], true);
        assert_eq!(headless.line.text.len(), MAX_SHOWN);
        assert!(headless.next(0));
        headless.names(Some(b"forged"));
        assert!(!headless.next(1));
        headless.names(None);
        for n in 0..MAX_HOSTS {
            headless.names(Some(format!("h{n}").as_bytes()));
        }
        assert!(headless.knows(b"h0") && !headless.knows(b"forged"));
        headless.names(Some(b"h0"));
        headless.names(Some(b"one more"));
        assert!(headless.knows(b"one more") && !headless.knows(b"h1"));
        assert_eq!(headless.hosts.known.len(), 1);
    }

    #[test]
    fn what_a_log_daemon_dropped_is_read() {
        let sshd = ["sshd", "sshd-session"];
        let mail = ["postfix/smtpd"];
        for (tag, message, programs, lost) in [
            (
                "systemd-journald",
                "Suppressed 842 messages from ssh.service",
                &sshd[..],
                Some(842),
            ),
            (
                "systemd-journald",
                "Suppressed 7 messages from sshd.service",
                &sshd,
                Some(7),
            ),
            (
                "systemd-journald",
                "Suppressed 7 messages from sshd@3-192.0.2.1:22.service",
                &sshd,
                Some(7),
            ),
            (
                "systemd-journald",
                "Suppressed 7 messages from postfix@-.service",
                &mail,
                Some(7),
            ),
            (
                "systemd-journald",
                "Suppressed 7 messages from nginx.service",
                &sshd,
                None,
            ),
            (
                "systemd-journald",
                "Suppressed many messages from ssh.service",
                &sshd,
                None,
            ),
            ("systemd-journald", "Suppressed", &sshd, None),
            (
                "rsyslogd",
                "imuxsock[77]: 842 messages lost due to rate-limiting (200 allowed within 5 seconds) [v8.2302.0]",
                &sshd,
                Some(842),
            ),
            (
                "rsyslogd",
                "imjournal: 12 messages lost due to rate-limiting (20000 allowed within 600 seconds)",
                &mail,
                Some(12),
            ),
            (
                "rsyslogd",
                "imuxsock lost 9 messages from pid 77 due to rate-limiting",
                &sshd,
                Some(9),
            ),
            (
                "rsyslogd",
                "imuxsock[77]: begin to drop messages due to rate-limiting",
                &sshd,
                None,
            ),
            (
                "rsyslogd",
                "imuxsock begins to drop 9 messages due to rate-limiting",
                &sshd,
                None,
            ),
            ("rsyslogd", "9 messages lost on the way", &sshd, None),
            ("rsyslogd", "rsyslogd was HUPed", &sshd, None),
            (
                "cron",
                "imuxsock lost 9 messages from pid 77 due to rate-limiting",
                &sshd,
                None,
            ),
        ] {
            let programs = programs.iter().copied();
            let read = rate_limited(tag.as_bytes(), message.as_bytes(), programs);
            assert_eq!(read, lost, "{tag}: {message}");
        }
    }
}

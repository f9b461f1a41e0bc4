//! One open file: where reading stands, the line that is not finished yet, and
//! whether the file still is what it was. Which files are open is `scan`'s.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use weir_core::detect::{Age, Writer};

use super::{FileId, FilePositions, Fingerprint, Position, newlines::Newlines};
use crate::{BatchInfo, MAX_LINE, Origin, Readers, fs_call};

/// The most that is read of one file in one batch: some 3,000 lines. What they
/// lead to takes effect at the batch's end, and their time is its beginning's.
const BATCH: u64 = 256 << 10;

/// How much of a file's beginning is compared.
const HEAD: usize = 256;

/// A shorter beginning tells nothing of a file with another inode.
const TELLING: u16 = 64;

/// How much before the place where reading stands is compared with a file that took
/// this one's name.
const COMPARED: u64 = 4 << 10;

/// So much must be alike where the old file still has a name.
const RENAMED: u64 = 1 << 10;

/// By so much an edit may have moved the place.
const MOVED: u64 = 1 << 20;

pub(super) struct Tail {
    pub file: File,
    pub id: FileId,
    pub path: PathBuf,
    /// For each subscription, whether the file belongs to it.
    pub readers: Vec<bool>,
    pub order: u64,
    pub watch: Option<i32>,
    pub dirty: bool,
    /// No pattern matches it any more: since when, or when something came last.
    pub retired: Option<Instant>,
    /// The reason why the file could not be read when that was tried last.
    pub trouble: Option<String>,
    /// The position of the next byte to read.
    offset: u64,
    /// The position at which the unfinished line begins.
    line_start: u64,
    /// The unfinished line, at most `MAX_LINE` bytes of it.
    partial: Vec<u8>,
    /// The first byte of a character in UTF-16 whose second one is not there yet.
    half: Option<u8>,
    /// The unfinished line is longer than `partial`.
    overlong: bool,
    /// The unfinished line began before reading did: not delivered.
    discard: bool,
    /// The file's first bytes, as far as they were read.
    head: Vec<u8>,
    /// Lines that begin before this byte were there when reading began, or when
    /// the file was found …
    live_from: u64,
    /// … and are of this age.
    before: Age,
}

impl Tail {
    pub fn new(file: File, id: FileId, path: PathBuf, order: u64, watch: Option<i32>) -> Self {
        Self {
            file,
            id,
            path,
            readers: vec![],
            order,
            watch,
            dirty: true,
            retired: None,
            trouble: None,
            offset: 0,
            line_start: 0,
            partial: vec![],
            half: None,
            overlong: false,
            discard: false,
            head: vec![],
            live_from: 0,
            before: Age::Unknown,
        }
    }

    /// Adds these subscriptions to the readers; whoever read the file before goes on. True:
    /// these are all its readers.
    pub fn read_by(&mut self, readers: &[bool]) -> bool {
        self.readers.resize(readers.len(), false);
        let mut all = true;
        for (known, now) in self.readers.iter_mut().zip(readers) {
            all &= !*known | now;
            *known |= now;
        }
        all
    }

    /// What the file holds now was written before, and its lines are of this
    /// age; those that come are written just now.
    pub fn holds(&mut self, age: Age) {
        // A file that cannot be asked is told of when it is read.
        self.live_from = self.metadata().map_or(0, |meta| meta.len());
        self.before = age;
    }

    /// The origin of the line that is read now.
    fn origin(&self) -> Origin<'_> {
        Origin {
            path: &self.path,
            readers: Readers::Some(&self.readers),
            part: 0,
            stream: self.order,
            time: None,
            message_only: false,
            age: match self.line_start < self.live_from {
                true => self.before,
                false => Age::Live,
            },
            writer: Writer::default(),
            identifier: None,
        }
    }

    /// Goes to so many bytes before the end, or a few more, and behind the line that is cut
    /// there. From a character earlier: a line that begins there is whole.
    pub fn seek_tail(&mut self, bytes: u64) -> io::Result<()> {
        let size = self.metadata()?.len();
        // A character of UTF-16 is not cut.
        let from = (size.saturating_sub(bytes) & !1).saturating_sub(2);
        if from > 0 {
            self.seek(from)?;
            self.discard = true;
        }
        Ok(())
    }

    /// Goes to the end: behind the last newline, so that an unfinished line is
    /// delivered whole.
    pub fn seek_end(&mut self) -> io::Result<()> {
        let size = self.metadata()?.len();
        let from = size.saturating_sub(MAX_LINE as u64);
        let mut last = vec![0; (size - from) as usize];
        let read = self.read_full(&mut last, from)?;
        match self.newlines().last_end(&last[..read], from) {
            Some(end) => self.seek(from + end as u64)?,
            None if from == 0 => {}
            None => {
                self.seek(size)?;
                self.discard = true;
            }
        }
        Ok(())
    }

    pub fn seek(&mut self, offset: u64) -> io::Result<()> {
        (self.offset, self.line_start) = (offset, offset);
        self.half = None;
        self.learn_head(offset)
    }

    /// Goes on where an earlier run stood; a line that this is in the middle of
    /// is not delivered.
    pub fn resume(&mut self, offset: u64) -> io::Result<()> {
        self.seek(offset)?;
        self.discard = !self.is_behind_a_line(offset);
        Ok(())
    }

    /// How its lines end.
    fn newlines(&self) -> Newlines {
        let mut head = [0; 2];
        match self.head.len() >= head.len() {
            true => Newlines::of(&self.head),
            false => match self.read_full(&mut head, 0) {
                Ok(read) => Newlines::of(&head[..read]),
                Err(_) => Newlines::Byte,
            },
        }
    }

    /// Is this the file of that position, at least as long as then? One that was
    /// empty then has nothing but its name to tell.
    pub fn is_at(&self, position: &Position) -> bool {
        self.id.inode == position.inode
            && (position.fingerprint.len > 0 || is_name_of(&self.path, &position.path))
            && self.begins_as(position)
    }

    /// Is this a copy of the file of that position, at least as long as that was? Of
    /// a short one nobody can tell.
    pub fn is_copy_at(&self, position: &Position) -> bool {
        position.fingerprint.len >= TELLING
            && self.begins_as(position)
            && self.is_behind_a_line(position.offset)
    }

    fn begins_as(&self, position: &Position) -> bool {
        let mut head = vec![0; usize::from(position.fingerprint.len)];
        self.metadata().is_ok_and(|m| m.len() >= position.offset)
            && self.read_full(&mut head, 0).is_ok_and(|n| n == head.len())
            && Fingerprint::of(&head) == position.fingerprint
    }

    fn is_behind_a_line(&self, offset: u64) -> bool {
        if offset == 0 {
            return true;
        }
        let mut last = [0; 2];
        let last = &mut last[..offset.min(2) as usize];
        self.read_full(last, offset - last.len() as u64).is_ok()
            && self.newlines().ends(last, offset)
    }

    /// `new` took the place of this file: is it a copy, maybe an edited one (`sed -i`,
    /// an editor, rsync), and where do its lines go on that are not delivered yet?
    /// Lines that both have are left to the copy. `None`: it is a file of its own,
    /// or nobody can tell; then its lines are delivered, some of them maybe again.
    pub fn go_on_in(&mut self, new: &Self) -> io::Result<Option<u64>> {
        let meta = self.metadata()?;
        // A copy is made before it takes the name; who deletes a log and makes a new
        // one does that the other way round.
        let changed = Duration::new(meta.ctime().max(0) as u64, meta.ctime_nsec() as u32);
        let is_older = |born: SystemTime| born <= SystemTime::UNIX_EPOCH + changed;
        if !new.metadata()?.created().map_or(true, is_older) {
            return Ok(None);
        }
        let Some((offset, known)) = self.place_in(new)? else {
            return Ok(None);
        };
        let both = self.in_common(new, offset)?;
        // A file that was renamed is most often followed by another, which may begin
        // alike where lines have no time stamps.
        let needed = if meta.nlink() == 0 { 1 } else { RENAMED };
        if known + both < needed {
            return Ok(None);
        }
        self.resume(self.line_start + both)?;
        self.partial.clear();
        self.overlong = false;
        Ok(Some(offset))
    }

    /// Where the bytes before `line_start` end in `new`, and how many of them were
    /// compared.
    fn place_in(&self, new: &Self) -> io::Result<Option<(u64, u64)>> {
        let start = self.line_start;
        let len = start.min(COMPARED);
        let mut known = vec![0; len as usize];
        let read = self.read_full(&mut known, start - len)?;
        if (read as u64) < len {
            return Ok(None);
        }
        let mut there = vec![0; known.len() + self.head.len()];
        let (there, head) = there.split_at_mut(known.len());
        let read = new.read_full(there, start - len)? + new.read_full(head, 0)?;
        let begun = self.head.len().min(start as usize);
        if read >= known.len() + begun && *there == known && head[..begun] == self.head[..begun] {
            return Ok(Some((start, len)));
        }
        // Edited: its last lines are looked for around the place.
        let known = &known[known.len() - known.len().min(RENAMED as usize)..];
        let first = match known.len() as u64 == start {
            true => 0,
            false => {
                let at = start - known.len() as u64;
                let end = self.newlines().first_end(known, at);
                end.unwrap_or(known.len())
            }
        };
        let known = &known[first..];
        if known.is_empty() {
            return Ok(None);
        }
        let from = start.saturating_sub(MOVED);
        let mut around = vec![0; (start - from + MOVED) as usize];
        let read = new.read_full(&mut around, from)?;
        let around = &around[..read];
        let end = |at: usize| from + (at + known.len()) as u64;
        let before = &around[..around.len().min((start - from) as usize)];
        let at =
            memchr::memmem::rfind(before, known).or_else(|| memchr::memmem::find(around, known));
        Ok(at.map(|at| (end(at), known.len() as u64)))
    }

    /// How many bytes behind `line_start` are in `new` behind `offset`: all, or those
    /// of whole lines.
    fn in_common(&self, new: &Self, offset: u64) -> io::Result<u64> {
        let (mut ours, mut theirs) = (vec![0; MOVED as usize], vec![0; MOVED as usize]);
        let own = self.read_full(&mut ours, self.line_start)?;
        let read = own.min(new.read_full(&mut theirs, offset)?);
        let alike = ours[..read].iter().zip(&theirs).take_while(|(a, b)| a == b);
        let alike = alike.count();
        if alike == own && own < ours.len() {
            return Ok(own as u64);
        }
        let end = self.newlines().last_end(&ours[..alike], self.line_start);
        Ok(end.unwrap_or(0) as u64)
    }

    /// Whether the file has no name any more.
    pub fn is_deleted(&self) -> bool {
        self.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }

    /// Whether anything was written to the file.
    pub fn is_begun(&self) -> bool {
        self.metadata().is_ok_and(|meta| meta.len() > 0)
    }

    pub fn position(&self) -> Position {
        Position {
            path: self.path.clone(),
            device: self.id.device,
            inode: self.id.inode,
            offset: self.line_start,
            fingerprint: Fingerprint::of(&self.head),
        }
    }

    /// Delivers the lines that were complete when it was called; true when
    /// there are more. What is appended meanwhile has an event of its own: a
    /// batch ends although its writer does not.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        reached: &FilePositions,
        info: &mut BatchInfo,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> io::Result<bool> {
        let len = self.metadata()?.len();
        if self.was_rewritten(len)? {
            info.truncated += 1;
            (self.offset, self.line_start) = (0, 0);
            self.partial.clear();
            (self.overlong, self.discard) = (false, false);
            self.head.clear();
            // Its writer emptied it, or somebody put an old log in its place.
            self.holds(Age::Unknown);
            reached.set(self.order, self.position());
        }
        let mut budget = BATCH;
        loop {
            let n = match self.read_at(buffer, self.offset) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let behind = self.offset + n as u64;
            // If that fails, these bytes are read again.
            if self.head.len() < HEAD {
                self.learn_head(behind)?;
            }
            self.offset = behind;
            info.bytes += n as u64;
            if self.retired.is_some() {
                self.retired = Some(Instant::now());
            }
            self.split(&buffer[..n], info, each);
            reached.set(self.order, self.position());
            if self.offset >= len {
                return Ok(false);
            }
            budget = budget.saturating_sub(n as u64);
            if budget == 0 {
                return Ok(true);
            }
        }
    }

    /// Bytes kept in memory.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.partial.capacity() + self.head.capacity()
    }

    /// Delivers an unfinished line as it is: nothing will follow.
    pub fn flush(&mut self, info: &mut BatchInfo, each: &mut dyn FnMut(&[u8], Origin<'_>)) {
        if !self.partial.is_empty() {
            self.finish(info, each);
        }
        self.line_start = self.offset;
    }

    fn split(
        &mut self,
        mut bytes: &[u8],
        info: &mut BatchInfo,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) {
        let newlines = Newlines::of(&self.head);
        if newlines != Newlines::Byte {
            return self.split_pairs(newlines, bytes, info, each);
        }
        if let ([first @ (0xfe | 0xff)], [_]) = (&self.head[..], bytes) {
            // Half of a mark perhaps, which the next byte tells.
            self.half = Some(*first);
            return;
        }
        if let Some(half) = self.half.take() {
            self.keep(&[half]);
        }
        let behind = self.offset;
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let line = &bytes[..end];
            if self.partial.is_empty() && !self.discard && line.len() <= MAX_LINE {
                deliver(self.origin(), line, info, each);
            } else {
                self.keep(line);
                self.finish(info, each);
            }
            bytes = &bytes[end + 1..];
            self.line_start = behind - bytes.len() as u64;
        }
        self.keep(bytes);
    }

    /// The same for characters of two bytes, each at an even place.
    fn split_pairs(
        &mut self,
        newlines: Newlines,
        bytes: &[u8],
        info: &mut BatchInfo,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) {
        let mut at = self.offset - bytes.len() as u64;
        for byte in bytes {
            let half = self.half.take();
            at += 1;
            match half {
                _ if at % 2 == 1 => self.half = Some(*byte),
                Some(half) if newlines.is_newline([half, *byte]) => {
                    self.finish(info, each);
                    self.line_start = at;
                }
                Some(half) => self.keep(&[half, *byte]),
                // Reading began in the middle of a character.
                None => {}
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.discard {
            return;
        }
        let room = MAX_LINE - self.partial.len();
        self.overlong |= bytes.len() > room;
        self.partial
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn finish(&mut self, info: &mut BatchInfo, each: &mut dyn FnMut(&[u8], Origin<'_>)) {
        if !self.discard {
            info.cut += u64::from(self.overlong);
            deliver(self.origin(), &self.partial, info, each);
        }
        self.partial.clear();
        (self.overlong, self.discard) = (false, false);
    }

    fn was_rewritten(&self, len: u64) -> io::Result<bool> {
        if len < self.offset {
            return Ok(true);
        }
        let mut head = [0; HEAD];
        let head = &mut head[..self.head.len()];
        let read = self.read_full(head, 0)?;
        Ok(head[..read] != self.head)
    }

    /// Reads the file's first bytes, as far as they lie before `end`.
    fn learn_head(&mut self, end: u64) -> io::Result<()> {
        let mut head = [0; HEAD];
        let head = &mut head[..HEAD.min(end as usize)];
        let read = self.read_full(head, 0)?;
        self.head.clear();
        self.head.extend_from_slice(&head[..read]);
        Ok(())
    }

    fn metadata(&self) -> io::Result<Metadata> {
        fs_call::make("stat", &self.path, || self.file.metadata())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fs_call::make("read", &self.path, || self.file.read_at(buffer, offset))
    }

    fn read_full(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.read_at(&mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Closes it, which asks the file system as well.
    pub fn close(self) {
        fs_call::make("close", &self.path, || drop(self.file));
    }
}

/// May the log of the second path have this name after a rotation: `auth.log` as
/// `auth.log.1`, in the same directory?
pub(super) fn is_name_of(path: &Path, log: &Path) -> bool {
    let name = |path: &Path| path.file_name().map(|n| n.as_encoded_bytes().to_vec());
    path.parent() == log.parent()
        && name(path)
            .zip(name(log))
            .is_some_and(|(name, log)| name.starts_with(&log))
}

fn deliver(
    origin: Origin<'_>,
    line: &[u8],
    info: &mut BatchInfo,
    each: &mut dyn FnMut(&[u8], Origin<'_>),
) {
    info.lines += 1;
    each(line, origin);
}

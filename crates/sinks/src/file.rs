//! JSON lines appended to a file, which is opened again when it was rotated,
//! removed or truncated by somebody else.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
};

use crate::{Deliver, Failure, format::Records};
use weir_events::Event;

pub(crate) struct JsonLines {
    path: PathBuf,
    open: Option<File>,
    records: Records,
    /// The last write stopped within a line.
    torn: bool,
}

impl JsonLines {
    pub(crate) fn new(path: PathBuf, records: Records) -> Self {
        Self {
            path,
            open: None,
            records,
            torn: false,
        }
    }

    /// Is the file that is open still the one of that name?
    fn is_current(&self) -> bool {
        let Some(Ok(open)) = self.open.as_ref().map(File::metadata) else {
            return false;
        };
        fs::metadata(&self.path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()))
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if !self.is_current() {
            // A link that somebody put there, or a FIFO that nobody reads, is
            // not followed and not waited for.
            let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o640)
                .custom_flags(flags.bits() as i32)
                .open(&self.path)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
            }
            (self.open, self.torn) = (Some(file), false);
        }
        let file = self.open.as_mut().expect("opened above");
        if self.torn {
            file.write_all(b"\n")?;
            self.torn = false;
        }
        // Until it is whole.
        self.torn = true;
        file.write_all(line.as_bytes())?;
        self.torn = false;
        Ok(())
    }
}

impl Deliver for JsonLines {
    fn deliver(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(mut line) = self.records.json(event) else {
            return Ok(());
        };
        line.push('\n');
        self.append(&line).map_err(|error| {
            Failure::later(format!("cannot write to {}: {error}", self.path.display()))
        })
    }
}

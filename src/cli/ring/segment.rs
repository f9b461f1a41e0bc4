//! The segment that a verb writes, as it is asked for on the command line.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use weir_ring::{ErrorKind, Options, Writer};

/// Programs that may write to one ring under one name, each its own segment.
const ALIKE: usize = 64;

#[derive(clap::Args)]
pub struct Segment {
    /// The ring's directory, such as /run/weir-ring/shop; made if it is not there
    dir: PathBuf,
    /// The segment's name in it [default: the verb's with the first free number]
    #[arg(long)]
    name: Option<String>,
    /// Room for records in bytes, a power of two such as 64K or 16M
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "4M")]
    size: u64,
    /// When a reader is too slow: "drop" new records, or "overwrite" the oldest
    #[arg(long, value_enum, default_value = "drop", hide_possible_values = true)]
    policy: Policy,
    /// Permissions of the segment; readers write to it as well
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "600")]
    mode: u32,
    /// Replace a segment of another size or policy, or a damaged one
    #[arg(long)]
    replace: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Policy {
    Drop,
    Overwrite,
}

impl Segment {
    /// Was one asked for by name?
    pub fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// The segment of that name, or the first that nobody writes to of those
    /// that carry the verb's.
    pub fn create(&self, verb: &str) -> anyhow::Result<Writer> {
        let options = Options::new()
            .size(self.size)
            .mode(self.mode)
            .replace(self.replace)
            .policy(match self.policy {
                Policy::Drop => weir_ring::Policy::DropNewest,
                Policy::Overwrite => weir_ring::Policy::OverwriteOldest,
            });
        if let Some(name) = &self.name {
            if name.is_empty() || name.starts_with('.') || name.contains('/') {
                bail!("--name {name:?}: allowed are file names that do not begin with a dot");
            }
            return Writer::create(self.dir.join(name), &options).context(ADVICE);
        }
        for number in 0..ALIKE {
            match Writer::create(self.dir.join(format!("{verb}-{number}")), &options) {
                Err(error) if error.kind() == ErrorKind::WriterActive => {}
                other => return other.context(ADVICE),
            }
        }
        bail!(
            "{ALIKE} programs write to {} as {verb}-0, {verb}-1, …; give this one a --name",
            self.dir.display()
        )
    }
}

const ADVICE: &str = "cannot write to the ring";

/// `64K`, `16M`, `1G`, or bytes; not 0.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "allowed: bytes, or a number with K, M or G".to_owned())
}

fn parse_size(text: &str) -> Result<u64, String> {
    let range = weir_ring::MIN_SIZE..=weir_ring::MAX_SIZE;
    parse_bytes(text)
        .ok()
        .filter(|size| size.is_power_of_two() && range.contains(size))
        .ok_or_else(|| "allowed: a power of two from 4K to 16G".to_owned())
}

/// Octal permissions, among them the owner's to read and write.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600)
        .ok_or_else(|| "allowed: octal permissions such as 600, 660".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_with_a_unit() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        for bad in [
            "",
            "K",
            "3M",
            "2048",
            "32G",
            "99999999999G",
            "-4K",
            "4 K",
            "4KB",
            "é",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_let_the_owner_read_and_write() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        for bad in ["", "066", "700", "1600", "9", "0x1"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}

//! `weir ring pipe`

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileTypeExt,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use weir_ring::{WriteError, Writer};

use super::{lines::Lines, segment::Segment};
use crate::cli::ExitAnswer;

/// Longer lines are cut, as far as the ring holds such long records at all.
const LONGEST: usize = 1 << 20;

/// Write the lines of standard input to a ring, one record each
///
/// For servers that can log to a program or a FIFO. It never makes them wait:
/// what does not fit is dropped and counted, and readers know. Ends with its
/// input; exit code 1 if lines were dropped or cut.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    segment: Segment,
    /// Read this file, or for ever this FIFO, instead
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let input = args.input.as_ref().map(open).transpose()?;
    let mut writer = args.segment.create("pipe")?;
    match input {
        Some(mut file) => copy(&mut file, &mut writer),
        None => copy(&mut io::stdin().lock(), &mut writer),
    }
}

fn open(path: &PathBuf) -> anyhow::Result<File> {
    let is_fifo = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
    // A FIFO that we could write to ourselves does not end with its writers.
    File::options()
        .read(true)
        .write(is_fifo)
        .open(path)
        .with_context(|| format!("cannot read {}", path.display()))
}

fn copy(input: &mut impl Read, writer: &mut Writer) -> anyhow::Result<ExitAnswer> {
    let mut lines = Lines::new(writer.max_record().min(LONGEST));
    let (mut read, mut dropped) = (0_u64, 0_u64);
    let mut more = true;
    while more {
        let mut gone = false;
        more = lines
            .read(input, |lines| {
                for line in lines {
                    read += 1;
                    match writer.write(line) {
                        Ok(()) => {}
                        Err(WriteError::Gone) => gone = true,
                        Err(_) => dropped += 1,
                    }
                }
            })
            .context("cannot read the lines")?;
        if gone {
            bail!("the ring's segment was cut short by somebody; nobody can read it any more");
        }
    }
    if dropped + lines.cut == 0 {
        return Ok(ExitAnswer::Done);
    }
    // Nobody is left to tell if this fails.
    let _ = writeln!(
        io::stderr(),
        "weir: of {read} lines, {dropped} were dropped because a reader was too slow, and {} were cut",
        lines.cut
    );
    Ok(ExitAnswer::No)
}

//! Addresses and prefixes as they are named to `ban` and `unban`: on the
//! command line, or `-` for standard input.

use std::io::BufRead;

use anyhow::{Context, bail};

/// More are not taken at once.
const MAX: usize = 1_000_000;

/// All targets that are named. Of a line of standard input each word counts, up to a
/// comment (`#`).
pub fn read(named: &[String]) -> anyhow::Result<Vec<String>> {
    let mut targets = Vec::new();
    for name in named {
        match name.as_str() {
            "-" => from(std::io::stdin().lock(), &mut targets)?,
            _ => targets.push(name.clone()),
        }
    }
    match targets.is_empty() {
        true => bail!("standard input names no address"),
        false => Ok(targets),
    }
}

fn from(input: impl BufRead, targets: &mut Vec<String>) -> anyhow::Result<()> {
    for line in input.lines() {
        let line = line.context("reading standard input")?;
        let words = line.split_ascii_whitespace();
        let words = words.take_while(|word| !word.starts_with('#'));
        targets.extend(words.map(str::to_owned));
        if targets.len() > MAX {
            bail!("more than {MAX} addresses at once: use a [list] for so many");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_word_of_a_line_is_a_target() {
        let mut targets = vec!["192.0.2.1".to_owned()];
        let input = b"# mine\n\n  192.0.2.7 192.0.2.8\t2001:db8::1 # 192.0.2.10\n2001:db8::/48\r\n#192.0.2.9\n";
        super::from(&input[..], &mut targets).unwrap();
        assert_eq!(
            targets,
            [
                "192.0.2.1",
                "192.0.2.7",
                "192.0.2.8",
                "2001:db8::1",
                "2001:db8::/48"
            ]
        );
        assert!(super::from(&b"\xff\n"[..], &mut targets).is_err());
    }
}

//! TCP options as the kernel takes them from a program that writes them on connections
//! (`bpf_store_hdr_opt`): each for itself, not every kind.

use crate::{
    codepoint::Layer,
    option_spec::OptionSpec,
    section::{MAX_HEADER_OPTIONS, option_bytes},
};

/// Kinds for experiments, which a second number tells apart (RFC 6994).
const EXPERIMENTS: [u8; 2] = [253, 254];

/// Why the kernel would not write an option on connections.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// An option of another layer than TCP.
    #[error(
        "option {0}: the kernel writes options of tcp alone on connections; name an interface for others"
    )]
    Layer(OptionSpec),
    /// The end of options, or no operation.
    #[error("option {0}: the kernel writes no option of one byte; it fills the header up itself")]
    SingleByte(OptionSpec),
    /// An experiment's option, without the number of one.
    #[error("option {0}: of the kinds 253 and 254 the kernel takes no less than 4 bytes")]
    Experiment(OptionSpec),
    /// An option of a kind that is named before.
    #[error("option {0}: the kernel writes one option of a kind, and of an experiment")]
    Twice(OptionSpec),
    /// Options that are longer together than a header has room.
    #[error("the options of tcp take {0} bytes; allowed: up to {MAX_HEADER_OPTIONS}")]
    TooLong(usize),
}

/// What the kernel does not write twice into one header: a kind, with the number of an
/// experiment.
fn kind(bytes: &[u8]) -> (u8, Option<&[u8]>) {
    let is_experiment = EXPERIMENTS.contains(&bytes[0]);
    (bytes[0], is_experiment.then(|| &bytes[2..4]))
}

/// The options of segments, each from its kind and length on.
///
/// # Errors
/// The kernel would refuse one of them, or all together.
pub fn connection_options(options: &[OptionSpec]) -> Result<Vec<Vec<u8>>, ConnectionError> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for option in options {
        let wrong = |error: fn(OptionSpec) -> ConnectionError| Err(error(option.clone()));
        if option.layer != Layer::Tcp {
            return wrong(ConnectionError::Layer);
        }
        let bytes = option_bytes(option);
        if bytes.len() < 2 {
            return wrong(ConnectionError::SingleByte);
        }
        if EXPERIMENTS.contains(&option.number) && bytes.len() < 4 {
            return wrong(ConnectionError::Experiment);
        }
        if all.iter().any(|before| kind(before) == kind(&bytes)) {
            return wrong(ConnectionError::Twice);
        }
        all.push(bytes);
    }
    match all.iter().map(Vec::len).sum() {
        total if total > MAX_HEADER_OPTIONS => Err(ConnectionError::TooLong(total)),
        _ => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Result<Vec<Vec<u8>>, String> {
        let options: Vec<OptionSpec> = texts.iter().map(|text| text.parse().unwrap()).collect();
        connection_options(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn options_of_tcp_are_written_each_for_itself() {
        assert_eq!(
            read(&["tcp:exp-254", "tcp:200/3"]),
            Ok(vec![vec![254, 6, 0xde, 0xad, 0, 1], vec![200, 3, 0]])
        );
        assert_eq!(read(&["tcp:200/40"]).unwrap()[0].len(), 40);
        // Two experiments are two kinds.
        let two = read(&["tcp:254=00010a", "tcp:254=00020a"]);
        assert_eq!(two.unwrap().len(), 2);
        let twenty: Vec<_> = (100..120).map(|kind| format!("tcp:{kind}/2")).collect();
        let twenty: Vec<_> = twenty.iter().map(String::as_str).collect();
        assert_eq!(read(&twenty).unwrap().len(), 20);
    }

    #[test]
    fn what_the_kernel_would_refuse_is_named() {
        for (texts, told) in [
            (
                &["ip:rr"][..],
                "option ip:rr: the kernel writes options of tcp alone",
            ),
            (
                &["dst:exp-1e"],
                "option dst:exp-1e: the kernel writes options of tcp",
            ),
            (
                &["tcp:nop"],
                "option tcp:nop: the kernel writes no option of one byte",
            ),
            (&["tcp:0"], "the kernel writes no option of one byte"),
            (&["tcp:253/3"], "of the kinds 253 and 254"),
            (&["tcp:200/4", "tcp:200/6"], "one option of a kind"),
            (&["tcp:254=0001", "tcp:254=000102"], "and of an experiment"),
            (
                &["tcp:200/39", "tcp:201/2"],
                "take 41 bytes; allowed: up to 40",
            ),
        ] {
            let said = read(texts).unwrap_err();
            assert!(said.contains(told), "{texts:?}: {said}");
        }
    }
}

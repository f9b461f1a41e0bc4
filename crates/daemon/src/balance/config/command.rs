//! `command` of a check: what is run to find out whether a real lives.

use weir_config::Section;

use crate::command::{self, Fault};

const COMMAND: &str = "an absolute path and its arguments such as \"/usr/local/lib/weir/check-web -t 5\", quoted as for a shell, or a list of these words; no shell";

pub(super) fn read(
    check: &mut Section<'_, '_>,
    of: &str,
    warnings: &mut Vec<String>,
) -> Option<Vec<String>> {
    let line = check.line_of("command").unwrap_or(check.line());
    let wrong = |check: &Section<'_, '_>, what: String| {
        check.error(line, format!("command in {of} {what}; allowed: {COMMAND}"));
    };
    let words = match check.word_or_list("command", COMMAND)? {
        Ok(text) => match shlex::split(&text.value) {
            Some(words) => words,
            None => {
                wrong(
                    check,
                    format!("is {:?}, a quote without its end", text.value),
                );
                return None;
            }
        },
        Err(list) => list.value.into_iter().map(|at| at.value).collect(),
    };
    if words.iter().any(|word| word.contains('\0')) {
        wrong(check, "has a NUL".to_owned());
    }
    match words.first() {
        None => wrong(check, "is empty".to_owned()),
        Some(program) if !program.starts_with('/') => {
            wrong(check, format!("begins with {program:?}"));
        }
        Some(_) => match command::judge(&words) {
            Ok(()) => {}
            // A package that is not there yet must not keep the daemon from its other
            // work: the reals are down until it is.
            Err(Fault::Missing(why)) => warnings.push(format!(
                "command in {of}: {why}; until it can be run the reals are down"
            )),
            Err(Fault::Unsafe(why)) => check.error(
                line,
                format!(
                    "command in {of}: {why}, and root would run it; allowed: programs and scripts that only root can change"
                ),
            ),
        },
    }
    Some(words)
}

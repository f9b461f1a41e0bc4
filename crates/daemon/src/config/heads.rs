//! Does a jail's filter read the lines of its source at all? A filter with
//! identifiers reads what a syslog daemon or the journal says is its program's;
//! one without reads lines that have no such head. Where the two do not fit, no
//! line ever counts, and nothing else would say so.

use weir_core::detect::{Filter, has_syslog_head};

use super::{HostFacts, SourceChoice, reader::Section};

pub(super) fn check(
    section: &Section<'_, '_>,
    jail: &str,
    filter: &Filter,
    source: &SourceChoice,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) {
    let has_identifiers = filter.identifiers().next().is_some();
    let paths = match source {
        SourceChoice::Journal if !has_identifiers => {
            section.error(
                section.line(),
                format!(
                    "[jail.{jail}]: its filter has no identifiers, and the journal's entries are chosen by them; allowed: identifiers = [\"PROGRAM\"] in the filter, or paths"
                ),
            );
            return;
        }
        SourceChoice::Files(paths) => paths,
        SourceChoice::Journal | SourceChoice::Ring(_) => return,
    };
    for path in paths {
        let Some(end) = host.log_end(path) else {
            continue;
        };
        let lines = end.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let heads: Vec<_> = lines.map(has_syslog_head).collect();
        let tags: Vec<_> = heads.iter().flatten().collect();
        if let Some(tag) = tags.last()
            && !has_identifiers
            && 2 * tags.len() > heads.len()
        {
            warnings.push(format!(
                "[jail.{jail}]: the lines of {path} have a host and a program's tag, and its filter has no identifiers: it reads none of them; add identifiers = [\"{tag}\"], or whichever program it is, to the filter"
            ));
        }
        if has_identifiers && tags.is_empty() && !heads.is_empty() {
            let names: Vec<_> = filter.identifiers().collect();
            warnings.push(format!(
                "[jail.{jail}]: no line of {path} has a time stamp and a program's tag, and its filter reads only those of {}; leave identifiers out of the filter where the lines have none",
                names.join(", ")
            ));
        }
    }
}

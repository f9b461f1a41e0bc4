//! Which jails' log files are read together.

use std::collections::BTreeSet;

use crate::positions;

/// The patterns of each jail that reads files, those together that may find a file
/// in common. (Others are read apart: a file system that does not answer keeps
/// nobody else waiting.)
pub(super) fn files_in_common<'a>(
    jails: impl IntoIterator<Item = &'a [String]>,
) -> Vec<Vec<Vec<String>>> {
    let mut groups: Vec<BTreeSet<Vec<String>>> = Vec::new();
    for patterns in jails {
        let may_share = |group: &BTreeSet<Vec<String>>| {
            let mut others = group.iter().flatten();
            others.any(|other| {
                let mut own = patterns.iter();
                own.any(|own| positions::may_find_the_same(own, other))
            })
        };
        let (mut joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(may_share);
        joined.push([patterns.to_vec()].into());
        groups = apart;
        groups.push(joined.into_iter().flatten().collect());
    }
    let groups = groups.into_iter().map(|group| group.into_iter().collect());
    groups.collect()
}

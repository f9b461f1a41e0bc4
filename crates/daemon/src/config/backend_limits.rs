//! What the chosen backend cannot do and the configuration asks for. Refused
//! where weir would be silent about somebody who then gets in: decoy ports that
//! never ban, a geofence that keeps nobody out. A warning where most of it
//! holds: a list that is to deny both ways denies the way in, and a ban that is
//! to reject drops.

use weir_config::Section;
use weir_enforce::{BackendChoice, Feature};

use crate::access::lists::config::ListConfig;

pub(super) fn check(
    root: &Section<'_, '_>,
    backend: BackendChoice,
    asked: &[(Option<usize>, &'static str, Feature)],
    lists: &[ListConfig],
    rejecting: &[String],
    warnings: &mut Vec<String>,
) {
    let name = backend.name();
    for (line, section, feature) in asked {
        if let Some(limit) = backend.limit(*feature) {
            root.error(
                line.unwrap_or(0),
                format!(
                    "[{section}] with backend = \"{name}\": {limit}; allowed: {}",
                    able(*feature)
                ),
            );
        }
    }
    if let Some(limit) = backend.limit(Feature::Reject) {
        warnings.extend(
            rejecting
                .iter()
                .map(|section| format!("[{section}] with backend = \"{name}\": {limit}")),
        );
    }
    let Some(limit) = backend.limit(Feature::Outbound) else {
        return;
    };
    for list in lists.iter().filter(|list| list.direction.outbound()) {
        warnings.push(format!(
            "[list.{}] with backend = \"{name}\": {limit}",
            list.name
        ));
    }
}

/// The usual backends that have the feature, for a message.
fn able(feature: Feature) -> String {
    let usual = ["auto", "xdp", "xdp-generic", "tcx", "nft"];
    // Only who balances has reals to send to.
    let needs = (feature == Feature::Tunnels).then_some(Feature::Balance);
    let has_all = |choice: &BackendChoice| {
        let mut all = needs.into_iter().chain([feature]);
        all.all(|feature| choice.limit(feature).is_none())
    };
    let all = BackendChoice::ALL.iter();
    let able = all.filter(|(name, choice)| usual.contains(name) && has_all(choice));
    let names: Vec<_> = able.map(|(name, _)| format!("\"{name}\"")).collect();
    names.join(", ")
}

//! What `backend = "auto"` goes by: the key `prefer`, and what `weir calibrate`
//! left in the state directory.

use std::path::Path;

use weir_config::Section;
use weir_enforce::{
    BackendChoice,
    hook_selection::{Advice, Prefer},
};

use super::Enforcement;
use crate::host::HostFacts;

/// The words that `prefer` takes.
const PREFERENCES: [(&str, Prefer); 2] = [("traffic", Prefer::Traffic), ("drops", Prefer::Drops)];

/// The costs by which `backend = "auto"` chooses a hook. A calibration that cannot be used
/// is no mistake in the configuration.
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    enforcement: &Enforcement,
    state_dir: &Path,
    warnings: &mut Vec<String>,
) -> Advice {
    let prefer = root.choice("prefer", &PREFERENCES);
    if enforcement.backend != BackendChoice::Auto {
        if prefer.is_some() {
            let backend = enforcement.backend.name();
            warnings.push(format!(
                "prefer has no effect with backend = {backend:?}: it tells \"auto\" what to choose"
            ));
        }
        return Advice::default();
    }
    let calibration = host.calibration(state_dir).unwrap_or_else(|why| {
        warnings.push(why);
        None
    });
    Advice {
        prefer: prefer.map_or_else(Prefer::default, |at| at.value),
        calibration,
    }
}

#[cfg(test)]
mod tests {
    use weir_enforce::hook_selection::Calibration;

    use super::*;
    use crate::{config::Config, host::fake::FakeHost};

    #[test]
    fn auto_goes_by_a_calibration_and_a_preference() {
        let calibration = Calibration {
            day: "2026-11-21".into(),
            driver: "veth".into(),
            hooks: Vec::new(),
            interfaces: Vec::new(),
        };
        let load = |found: &Result<Option<Calibration>, String>, text: &str| {
            let host = FakeHost {
                calibration: found.clone(),
                ..FakeHost::default()
            };
            Config::check(Path::new("weir.toml"), text, &host).unwrap()
        };
        let good = Ok(Some(calibration.clone()));
        let advice = load(&good, "[jail.sshd]").enforcement.advice;
        assert_eq!(advice.prefer, Prefer::Traffic);
        assert_eq!(advice.calibration, Some(calibration));
        let advice = load(&good, "prefer = \"drops\"\n[jail.sshd]")
            .enforcement
            .advice;
        assert_eq!(advice.prefer, Prefer::Drops);

        // Where the hook is named, nothing is asked; a preference is probably
        // meant for auto.
        let named = load(&good, "backend = \"tcx\"\nprefer = \"drops\"\n[jail.sshd]");
        assert_eq!(named.enforcement.advice, Advice::default());
        assert!(
            named.warnings[0].contains("prefer has no effect"),
            "{:?}",
            named.warnings
        );

        let bad = load(&Err("it is damaged".into()), "[jail.sshd]");
        assert_eq!(bad.enforcement.advice, Advice::default());
        assert_eq!(bad.warnings, ["it is damaged"]);
    }
}

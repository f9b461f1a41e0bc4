//! Which devices configured names mean. Only the kernel's "no such device" says
//! that there is none: any other error, for want of descriptors say, is an error,
//! and what is in force stays.

use std::{collections::HashMap, io};

use weir_kernel::device::{self, Device};

use crate::Error;

fn cannot_look(what: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System {
        what: format!("cannot look at interface {what}"),
        source,
    }
}

/// The device of this name; `None`: there is none now.
pub(crate) fn find(name: &str) -> Result<Option<Device>, Error> {
    Device::find_present(name).map_err(cannot_look(format!("{name:?}")))
}

/// What the device with this number is called; `None`: there is none now.
pub(crate) fn name_of(index: u32) -> Result<Option<String>, Error> {
    device::name_of(index).map_err(cannot_look(format!("number {index}")))
}

/// What a device is called that is configured by this name, an alternative one
/// perhaps: rules know no other name. `None`: there is none now.
pub(crate) fn real_name(name: &str) -> Result<Option<String>, Error> {
    match find(name)? {
        Some(device) => name_of(device.index),
        None => Ok(None),
    }
}

/// The names by which rules know the configured interfaces.
#[derive(Default)]
pub(crate) struct RealNames {
    /// By configured name: what its device was called when it was there last.
    known: HashMap<String, String>,
}

impl RealNames {
    /// The names that rules shall have now, each device once. One that is not there
    /// has the configured name, and the one that its device was called last: an
    /// alternative name is given to a device that has packets already, and until
    /// then only that one means it.
    ///
    /// # Errors
    /// Nobody can say what is there: rules stay as they are.
    pub(crate) fn look(&mut self, configured: &[String]) -> Result<Vec<String>, Error> {
        self.look_by(configured, real_name)
    }

    fn look_by(
        &mut self,
        configured: &[String],
        real_name: impl Fn(&str) -> Result<Option<String>, Error>,
    ) -> Result<Vec<String>, Error> {
        let found: Vec<_> = configured
            .iter()
            .map(|name| real_name(name))
            .collect::<Result<_, _>>()?;
        self.known.retain(|name, _| configured.contains(name));
        let mut names: Vec<String> = Vec::with_capacity(configured.len());
        for (name, real) in configured.iter().zip(found) {
            let by_names = match real {
                Some(real) => {
                    self.known.insert(name.clone(), real.clone());
                    [Some(real), None]
                }
                None => [Some(name.clone()), self.known.get(name).cloned()],
            };
            for name in by_names.into_iter().flatten() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_away_keeps_the_name_that_it_had() {
        let configured = ["lan0", "eth1"].map(str::to_owned);
        let mut names = RealNames::default();
        let mut look = |lan0: Option<&str>| {
            let there = |name: &str| match name {
                "lan0" => Ok(lan0.map(str::to_owned)),
                _ => Ok(Some(name.to_owned())),
            };
            names.look_by(&configured, there).unwrap()
        };
        assert_eq!(look(None), ["lan0", "eth1"]);
        assert_eq!(look(Some("eth0")), ["eth0", "eth1"]);
        assert_eq!(look(None), ["lan0", "eth0", "eth1"]);
        assert_eq!(look(Some("eth7")), ["eth7", "eth1"]);
        assert_eq!(look(None), ["lan0", "eth7", "eth1"]);
        assert_eq!(look(Some("eth1")), ["eth1"]);
        // What is not configured is forgotten.
        let others = [configured[1].clone()];
        let away = |_: &str| Ok(None);
        assert_eq!(names.look_by(&others, away).unwrap(), ["eth1"]);
        assert_eq!(names.look_by(&configured, away).unwrap(), ["lan0", "eth1"]);
    }

    #[test]
    fn an_error_is_not_an_absent_device() {
        let configured = ["lan0".to_owned()];
        let mut names = RealNames::default();
        let there = |_: &str| Ok(Some("eth0".to_owned()));
        names.look_by(&configured, there).unwrap();
        let broken = |name: &str| {
            let error = io::Error::from_raw_os_error(24);
            Err(cannot_look(format!("{name:?}"))(error))
        };
        let error = names.look_by(&configured, broken).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot look at interface \"lan0\": "),
            "{error}"
        );
        let away = |_: &str| Ok(None);
        assert_eq!(names.look_by(&configured, away).unwrap(), ["lan0", "eth0"]);
        assert!(find("no-such-device").unwrap().is_none());
        assert_eq!(real_name("lo").unwrap().as_deref(), Some("lo"));
    }
}

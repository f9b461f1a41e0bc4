//! Which devices configured names mean. Only the kernel's "no such device" says
//! that there is none: any other error, for want of descriptors say, is an error,
//! and what is in force stays.

use std::{collections::HashMap, io};

use weir_bpf::device::{self, Device};

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
    /// Devices by configured name.
    known: HashMap<String, Known>,
}

/// A device as it was last seen.
struct Known {
    index: u32,
    /// The device's name when it was last seen.
    real: String,
    /// The device's name since somebody took the configured name away.
    renamed: Option<String>,
}

impl RealNames {
    /// The names that rules shall have now, each device once. One that is not there
    /// has the configured name, and the one that its device is called since it was
    /// renamed, or was called last: an alternative name is given to a device that
    /// has packets already, and until then only that one means it.
    ///
    /// # Errors
    /// Nobody can say what is there: rules stay as they are.
    pub(crate) fn look(&mut self, configured: &[String]) -> Result<Vec<String>, Error> {
        let of_name = |name: &str| match find(name)? {
            Some(device) => Ok(name_of(device.index)?.map(|real| (device.index, real))),
            None => Ok(None),
        };
        self.look_by(configured, of_name, name_of)
    }

    fn look_by(
        &mut self,
        configured: &[String],
        of_name: impl Fn(&str) -> Result<Option<(u32, String)>, Error>,
        of_index: impl Fn(u32) -> Result<Option<String>, Error>,
    ) -> Result<Vec<String>, Error> {
        let mut looked = Vec::with_capacity(configured.len());
        for name in configured {
            looked.push(match (of_name(name)?, self.known.get(name)) {
                (Some((index, real)), _) => {
                    let renamed = None;
                    (
                        vec![real.clone()],
                        Some(Known {
                            index,
                            real,
                            renamed,
                        }),
                    )
                }
                (None, None) => (vec![name.clone()], None),
                (None, Some(Known { index, real, .. })) => {
                    let (index, real) = (*index, real.clone());
                    let renamed = of_index(index)?;
                    let other = renamed.as_ref().unwrap_or(&real).clone();
                    let known = Known {
                        index,
                        real,
                        renamed,
                    };
                    (vec![name.clone(), other], Some(known))
                }
            });
        }
        self.known.clear();
        let mut names: Vec<String> = Vec::with_capacity(configured.len());
        for (configured, (by_names, known)) in configured.iter().zip(looked) {
            for name in by_names {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            if let Some(known) = known {
                self.known.insert(configured.clone(), known);
            }
        }
        Ok(names)
    }

    /// What the device of this configured name is called since it was renamed.
    pub(crate) fn renamed(&self, configured: &str) -> Option<String> {
        self.known.get(configured)?.renamed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: fn(u32) -> Result<Option<String>, Error> = |_| Ok(None);

    #[test]
    fn a_device_that_is_away_keeps_the_name_that_it_had() {
        let configured = ["lan0", "eth1"].map(str::to_owned);
        let mut names = RealNames::default();
        let mut look = |lan0: Option<&str>| {
            let there = |name: &str| match name {
                "lan0" => Ok(lan0.map(|real| (1, real.to_owned()))),
                _ => Ok(Some((2, name.to_owned()))),
            };
            names.look_by(&configured, there, GONE).unwrap()
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
        assert_eq!(names.look_by(&others, away, GONE).unwrap(), ["eth1"]);
        let all = names.look_by(&configured, away, GONE).unwrap();
        assert_eq!(all, ["lan0", "eth1"]);
    }

    #[test]
    fn a_device_that_was_renamed_is_known_by_its_number() {
        let configured = ["eth0".to_owned()];
        let mut names = RealNames::default();
        let there = |_: &str| Ok(Some((7, "eth0".to_owned())));
        let away = |_: &str| Ok(None);
        let called = |name: &'static str| move |_: u32| Ok(Some(name.to_owned()));
        names.look_by(&configured, there, GONE).unwrap();
        for now in ["wan", "wan2"] {
            let all = names.look_by(&configured, away, called(now)).unwrap();
            assert_eq!(all, ["eth0", now]);
            assert_eq!(names.renamed("eth0").as_deref(), Some(now));
        }
        assert_eq!(names.look_by(&configured, away, GONE).unwrap(), ["eth0"]);
        assert_eq!(names.renamed("eth0"), None);
        // Another device has the name.
        let other = |_: &str| Ok(Some((9, "eth0".to_owned())));
        let all = names.look_by(&configured, other, called("wan")).unwrap();
        assert_eq!(all, ["eth0"]);
    }

    #[test]
    fn an_error_is_not_an_absent_device() {
        let configured = ["lan0".to_owned()];
        let mut names = RealNames::default();
        let there = |_: &str| Ok(Some((1, "eth0".to_owned())));
        names.look_by(&configured, there, GONE).unwrap();
        let broken = |name: &str| {
            let error = io::Error::from_raw_os_error(24);
            Err(cannot_look(format!("{name:?}"))(error))
        };
        let looked = names.look_by(&configured, broken, GONE);
        let error = looked.unwrap_err().to_string();
        assert!(
            error.starts_with("cannot look at interface \"lan0\": "),
            "{error}"
        );
        let away = |_: &str| Ok(None);
        let all = names.look_by(&configured, away, GONE).unwrap();
        assert_eq!(all, ["lan0", "eth0"]);
        assert!(find("no-such-device").unwrap().is_none());
        assert_eq!(real_name("lo").unwrap().as_deref(), Some("lo"));
    }
}

//! `[app]`: accepted or refused with errors of file and line, and what is accepted is
//! compiled into places that fit into the kernel. The digests of files are made up.
#![no_main]

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use libfuzzer_sys::fuzz_target;
use weir_config::{Document, Part};
use weir_core::{Prefix, geo::GeoTable};
use weir_identity::{
    Digest, MAX_RULES, Program, Verdict,
    config::{Facts, read},
    policy::{MAX_PORTS, Policy, Resolve},
};

struct Host(GeoTable);

impl Facts for Host {
    fn never_runs(&self, path: &Path) -> Option<String> {
        path.ends_with("shim").then(|| "a script".to_owned())
    }

    fn user(&self, name: &str) -> Option<u32> {
        name.len().is_multiple_of(2).then_some(33)
    }
    fn digest(&self, path: &Path) -> Result<Option<Digest>, String> {
        match path.as_os_str().len() % 4 {
            0 => Err("no SHA-256".to_owned()),
            1 => Ok(None),
            length => Ok(Some(Digest([length as u8; 32]))),
        }
    }
    fn packages(&self) -> Result<BTreeSet<String>, String> {
        Ok(BTreeSet::from(["curl".to_owned()]))
    }
}

impl Resolve for Host {
    fn places(&self) -> &GeoTable {
        &self.0
    }
    fn list(&self, _name: &str) -> Option<&[Prefix]> {
        Some(&[])
    }
    fn addresses(&self, name: &str) -> Option<&[IpAddr]> {
        name.len().is_multiple_of(2).then_some(&[])
    }
    fn netns(&self, file: &Path) -> Option<u64> {
        file.as_os_str().len().is_multiple_of(2).then_some(7)
    }
}

fuzz_target!(|text: &str| {
    let host = Host(GeoTable::default());
    let files = Part::all(vec![("weir.toml".into(), format!("[app]\n{text}"), None)]);
    let document = Document::new(&files);
    let mut root = document.root();
    let mut warnings = Vec::new();
    let config = read(&mut root, &host, &["bad"], &mut warnings);
    root.finish();
    match document.finish(config) {
        Ok(config) => {
            let config = config.expect("[app] is there");
            let policy = Policy::compile(&config, &host).expect("it was checked");
            assert!(policy.places.len() <= MAX_RULES);
            for place in &policy.places {
                assert!(place.ports.len() <= MAX_PORTS && place.verdict != Verdict::Log);
            }
            let _ = policy.met_by(&Program::default());
        }
        Err(errors) => {
            let message = errors.to_string();
            assert!(message.lines().all(|line| line.starts_with("weir.toml:")), "{message:?}");
        }
    }
});

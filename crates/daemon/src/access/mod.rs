//! Who gets in whatever he does, and who does not: `exemptions` (nobody may ban
//! them), `lists` of denied and allowed prefixes, `geo` (where addresses are), and
//! `classes`, which lists and geofence become for the kernel.

pub mod classes;
pub mod exemptions;
pub mod geo;
pub mod lists;

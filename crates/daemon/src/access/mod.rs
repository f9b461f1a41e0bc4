//! Who gets in whatever he does, and who does not: `exemptions` (nobody may ban
//! them), `lists` of denied and allowed prefixes, `geo` (where addresses are),
//! `geofence` (from where flows may begin), and `classes`, which lists and
//! geofence become for the kernel.

pub mod classes;
pub mod exemptions;
pub mod geo;
pub mod geofence;
pub mod lists;

//! What only some backends can, asked of any: a backend that offers it carries it
//! out; one that has a limit about it refuses; one that has neither sees no packets.

use std::sync::Arc;

use weir_core::address_class::Classes;

use crate::{
    backend::{Backend, Balance, Decoys},
    backend_feature::Feature,
    error::Error,
};

/// Replaces geofence and lists; see [`crate::ClassFilter::set_classes`].
///
/// # Errors
/// The backend does not judge by these, or cannot.
pub fn set_classes(backend: &dyn Backend, classes: &Arc<Classes>) -> Result<(), Error> {
    match backend.classes() {
        Some(filter) => filter.set_classes(classes),
        None if classes.is_empty() => Ok(()),
        None => refuse(backend, Feature::Geofence),
    }
}

/// Replaces the decoy ports; see [`crate::DecoyResponder::set_decoys`].
///
/// # Errors
/// The backend does not answer, or cannot.
pub fn set_decoys(backend: &dyn Backend, decoys: &Decoys) -> Result<(), Error> {
    match backend.decoys() {
        Some(responder) => responder.set_decoys(decoys),
        None if decoys.is_empty() => Ok(()),
        None => refuse(backend, Feature::Decoys),
    }
}

/// Replaces who serves which virtual address; see [`crate::Forwarder::set_balance`].
///
/// # Errors
/// The backend does not forward, or cannot.
pub fn set_balance(backend: &dyn Backend, balance: &Balance) -> Result<(), Error> {
    match backend.balancer() {
        Some(forwarder) => forwarder.set_balance(balance),
        None if balance.services.is_empty() => Ok(()),
        None => refuse(backend, Feature::Balance),
    }
}

fn refuse(backend: &dyn Backend, feature: Feature) -> Result<(), Error> {
    let mut limits = backend.limits().iter();
    match limits.find(|limit| limit.feature == feature) {
        Some(limit) => Err(limit.refusal(backend.name())),
        None => Ok(()),
    }
}

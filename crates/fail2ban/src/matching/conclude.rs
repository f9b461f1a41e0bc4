//! A fitting line put together with the lines before of its session: who has failed, how
//! often, and whether it is a failure at all.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Filter, FilterState, Standing,
    failure::{Failure, IdKind},
    group_values::{GroupValues, Said},
    groups::{CIDR, DNS, FID, IP4, IP6, Key, MLFID, NOFAIL, Value},
    search::Fit,
    sessions::WholeLine,
};
use crate::date::Clock;

impl Filter {
    /// What a match tells together with the lines before of its session. Of what is no
    /// failure only `wholes`' readers are told more than that.
    pub(super) fn conclude(
        &self,
        state: &mut FilterState,
        fit: Fit<'_>,
        (date, wholes): (Option<Timestamp>, &[Arc<WholeLine>]),
        clock: Clock<'_>,
    ) -> (Failure, Standing) {
        let mut failure = Failure {
            regex: fit.regex,
            id: String::new(),
            kind: IdKind::Id,
            prefix_length: None,
            time: date,
            values: GroupValues::default(),
            users: Vec::new(),
            attempts: fit.lines.max(1),
            lines: Vec::new(),
        };
        let values = fit.values;
        let Some(Value::Part(session_name)) = values[MLFID].clone() else {
            failure.lines = wholes.to_vec();
            let get = |key: Key| values[key].as_ref().map(Value::as_str);
            let standing = match get(NOFAIL).is_some_and(|value| !value.is_empty()) {
                true if wholes.is_empty() => Standing::NoFail,
                is_nofail => {
                    let is_named = set_id(&mut failure, get);
                    if is_named {
                        let said = values.iter().map(|value| Some(value.as_ref()?.as_str()));
                        failure.values = GroupValues::new(self.names.clone(), Said::of(said));
                    }
                    match (is_named, is_nofail) {
                        (_, true) => Standing::NoFail,
                        (true, false) => Standing::Failed,
                        (false, false) => Standing::Pending,
                    }
                }
            };
            return (failure, standing);
        };
        let (mut session, keeps) =
            (state.sessions).merge(session_name, values, (fit.lines, wholes), clock.now);
        failure.attempts = session.matches.max(1);
        failure.users = session.users.iter().map(|user| user.to_string()).collect();
        failure.lines = session.lines.clone();
        let is_nofail = session.get(NOFAIL).is_some_and(|value| !value.is_empty());
        let standing = if is_nofail && wholes.is_empty() {
            Standing::NoFail
        } else {
            let is_named = set_id(&mut failure, |key| session.get(key));
            if is_named {
                failure.values = GroupValues::new(self.names.clone(), session.said.clone());
            }
            session.pending |= !is_named;
            match (is_nofail, is_named) {
                (true, _) => Standing::NoFail,
                (false, true) => Standing::Failed,
                (false, false) => Standing::Pending,
            }
        };
        match keeps {
            true => state.sessions.put(session_name, session, clock.now),
            false => state.sessions.forget(session_name),
        }
        (failure, standing)
    }
}

/// Says whom the failure is counted by; false if nobody is named.
fn set_id<'v>(failure: &mut Failure, get: impl Fn(Key) -> Option<&'v str>) -> bool {
    let named = [
        (IP4, IdKind::Ip4),
        (IP6, IdKind::Ip6),
        (DNS, IdKind::Dns),
        (FID, IdKind::Id),
    ];
    let Some((id, kind)) = named
        .into_iter()
        .find_map(|(key, kind)| Some((get(key)?, kind)))
    else {
        return false;
    };
    (failure.kind, failure.id) = match get(FID) {
        // What it is counted by is more than the address.
        Some(fid) if fid != id => (IdKind::Id, fid.to_owned()),
        _ => (kind, id.to_owned()),
    };
    failure.prefix_length = get(CIDR).and_then(|length| length.parse().ok());
    true
}

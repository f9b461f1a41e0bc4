//! What could have been dropped at best, from what was sent and when.

/// One moment of a run: seconds since its start, unwanted requests sent by then.
pub type Sent = (f64, u64);

/// Clients that are looked at in place of all: those between two of them send,
/// and are banned, between these two.
const SAMPLES: u64 = 256;

/// Unwanted requests that an ideal filter has dropped by each moment of `sent`.
///
/// The thesis (section 4.4) divides the packets dropped by *total packets −
/// duration × wanted rate − ban cycles × ban limit*: of all unwanted requests
/// everything but the `limit` that each client needs per cycle to be banned
/// (the product with the number of clients is not written there, but its
/// figures of over 99 % need it: with 65,534 clients at 100 k pps these are six
/// requests of a hundred). The number of cycles is not a free choice here: all
/// clients send in turn, so that the curve of what was sent says when each
/// sends. The ideal filter passes a client's requests until the `limit`-th,
/// bans it in that moment for `ban` seconds, and begins anew with the first
/// request after that.
pub fn dropped(sent: &[Sent], clients: u32, limit: u8, ban: f64) -> Vec<f64> {
    let mut passed = vec![0.0; sent.len()];
    let clients = u64::from(clients.max(1));
    let looked_at = clients.min(SAMPLES);
    let weight = clients as f64 / looked_at as f64;
    for sample in 0..looked_at {
        let turn = (sample as f64 + 0.5) / looked_at as f64 * clients as f64;
        let (mut failures, mut banned_until) = (0, f64::NEG_INFINITY);
        let mut round = 0.0;
        // The moments between which the request lies.
        for (moment, pair) in sent.windows(2).enumerate() {
            let [(from, before), (to, after)] = [pair[0], pair[1]];
            let (before, after) = (before as f64, after as f64);
            loop {
                let request = round * clients as f64 + turn;
                if request > after {
                    break;
                }
                round += 1.0;
                let at = from + (to - from) * (request - before).max(0.0) / (after - before);
                if at < banned_until {
                    continue;
                }
                passed[moment + 1] += weight;
                failures += 1;
                if failures == limit {
                    (failures, banned_until) = (0, at + ban);
                }
            }
        }
    }
    let mut sum = 0.0;
    sent.iter()
        .zip(passed)
        .map(|((_, sent), passed)| {
            sum += passed;
            (*sent as f64 - sum).max(0.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A steady rate, looked at every quarter of a second.
    fn steady(rate: f64, seconds: f64) -> Vec<Sent> {
        (0..=(seconds * 4.0) as u64)
            .map(|n| (n as f64 / 4.0, (rate * n as f64 / 4.0) as u64))
            .collect()
    }

    #[test]
    fn one_cycle_passes_the_limit_of_each_client() {
        let dropped = dropped(&steady(1000.0, 20.0), 100, 3, 1000.0);
        assert_eq!(dropped.last(), Some(&(20_000.0 - 300.0)));
        assert_eq!(dropped[0], 0.0);
    }

    #[test]
    fn a_ban_that_ends_costs_the_limit_again() {
        // Ten requests a second each: banned by the third, after 0.2 s; back
        // 2.0 s later; so at 0, 2.2, 4.4, 6.6 and 8.8 s.
        let dropped = dropped(&steady(1000.0, 10.0), 100, 3, 1.99);
        assert_eq!(dropped.last(), Some(&(10_000.0 - 5.0 * 300.0)));
    }

    #[test]
    fn too_few_requests_ban_nobody() {
        let dropped = dropped(&steady(100.0, 2.0), 100, 3, 30.0);
        assert_eq!(dropped.last(), Some(&0.0));
    }

    #[test]
    fn a_sample_of_the_clients_stands_for_all() {
        let sent = steady(1_000_000.0, 10.0);
        let few = dropped(&sent, 256, 3, 2.0);
        let many = dropped(&sent, 65_534, 3, 2.0);
        // 65,534 clients send 15.3 requests a second each: four to five cycles.
        let passed = 10_000_000.0 - many.last().unwrap();
        assert!((4.0..=5.0).contains(&(passed / 65_534.0 / 3.0)), "{passed}");
        assert!(few.last() > many.last());
    }
}

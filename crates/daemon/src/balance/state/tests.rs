//! What is known of reals over starts, reloads and checks.

use super::*;
use crate::balance::{
    fixture::{config_of, pool_of},
    settings::Setting,
};

#[test]
fn a_dead_real_is_down_for_the_reason_by_which_it_was_found_down() {
    let pool = pool_of(1, 9);
    let mut state = State::default();
    state.configure(&config_of(pool.clone()));
    let real = &mut state.pools[0].reals[0];
    for (number, why) in ["no answer in time", "No route to host"]
        .into_iter()
        .enumerate()
    {
        let told = real.note(&pool, Err(why.to_owned()));
        assert_eq!(told.is_some(), number == 0, "{why}");
        assert_eq!(real.why, why);
        assert_eq!(real.down_because, "no answer in time");
    }
    assert!(real.note(&pool, Ok(())).is_some());
    assert!(real.why.is_empty());
}

#[test]
fn checks_are_bounded_and_nobody_is_forgotten() {
    // It answers nobody.
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut state = State::default();
    state.configure(&config_of(pool_of(MAX_CHECKS + 40, port)));
    let are_under_way =
        |state: &State| -> Vec<bool> { state.reals().map(|real| real.check.is_some()).collect() };
    for _ in 0..2 {
        state.check();
        let begun = are_under_way(&state);
        let (first, rest) = begun.split_at(MAX_CHECKS);
        assert!(first.iter().all(|begun| *begun));
        assert!(!rest.iter().any(|begun| *begun));
    }
    // All of them are over, and due again: those that never had one come first.
    for real in &mut state.pools[0].reals[..MAX_CHECKS] {
        real.check = None;
        real.next = Instant::now();
    }
    state.check();
    let begun = are_under_way(&state);
    assert!(begun[MAX_CHECKS..].iter().all(|begun| *begun));
    assert_eq!(begun.iter().filter(|begun| **begun).count(), MAX_CHECKS);
}

/// A real as an earlier daemon has left it.
fn known(number: u32) -> KnownReal {
    KnownReal {
        number,
        dest: [2, 0, 0, 0, 1, number as u8],
        ifindex: 2,
        vlan: 0,
        is_tunneled: false,
    }
}

/// The segment of the reals, each of which was found there.
fn found_on_segment(state: &mut State) -> Link {
    let reals = state.pools.iter_mut().flat_map(|pool| &mut pool.reals);
    reals.for_each(|real| real.mac = Some([2, 0, 0, 0, 0, real.number as u8]));
    Link {
        index: 2,
        mac: [2; 6],
        out: 2,
        vlan: 0,
    }
}

/// The reals that keep flows, and those that get new ones, by their places in the pool.
fn with_flows(state: &mut State) -> (Vec<usize>, Vec<usize>) {
    let link = found_on_segment(state);
    let destinations = state.destinations(Some(&link));
    let ring = state.rings().swap_remove(0);
    let of = |has: &dyn Fn(&RealState) -> bool| {
        let all = state.pools[0].reals.iter().enumerate();
        all.filter(|(_, real)| has(real)).map(|(n, _)| n).collect()
    };
    (
        of(&|real| destinations[real.number as usize].is_some()),
        of(&|real| ring.contains(&Some(real.number as u16))),
    )
}

#[test]
fn after_a_start_reals_that_the_kernel_has_keep_their_flows_until_they_are_checked() {
    let pool = pool_of(4, 9);
    let config = config_of(pool.clone());
    let mut state = State::default();
    // The last one is new, or was down when the earlier daemon ended.
    let left = (0..3).map(|n| (real_id("web", pool.reals[n].address), known(10 + n as u32)));
    state.take_over(&config, &left.collect());
    let fresh = state.configure(&config);
    assert_eq!(fresh.len(), 1);
    // Where the kernel has no neighbour entry yet, packets go where they went.
    let before: Vec<_> = state.reals().map(|real| real.before).collect();
    let left = |number| Some(known(number));
    assert_eq!(before, [left(10), left(11), left(12), None]);
    assert_eq!(with_flows(&mut state), (vec![0, 1, 2], vec![0, 1, 2]));
    assert_eq!(state.pools[0].live(), 3);
    // A reload in between knows no more.
    state.configure(&config);
    assert_eq!(with_flows(&mut state).0, [0, 1, 2]);
    // The first check decides, whatever it says.
    let outcomes = [Ok(()), Err("refused".to_owned())];
    for (real, outcome) in state.pools[0].reals.iter_mut().zip(outcomes) {
        assert!(real.note(&pool, outcome).is_some());
    }
    assert_eq!(with_flows(&mut state), (vec![0, 2], vec![0, 2]));
    assert!(state.pools[0].reals[3].note(&pool, Ok(())).is_some());
    assert_eq!(with_flows(&mut state), (vec![0, 2, 3], vec![0, 2, 3]));
}

#[test]
fn a_real_that_drains_keeps_its_flows_over_a_start() {
    let pool = pool_of(2, 9);
    let config = config_of(pool.clone());
    let mut state = State::default();
    let draining = Setting {
        mode: Mode::Draining,
        weight: None,
    };
    state.settings.set("web", pool.reals[0].address, draining);
    let left = (0..2).map(|n| (real_id("web", pool.reals[n].address), known(n as u32)));
    state.take_over(&config, &left.collect());
    state.configure(&config);
    assert_eq!(with_flows(&mut state), (vec![0, 1], vec![1]));
    let link = found_on_segment(&mut state);
    let drains = |real: &Option<Real>| real.is_some_and(|real| real.drains);
    let reals = state.destinations(Some(&link));
    assert_eq!([drains(&reals[0]), drains(&reals[1])], [true, false]);
    assert!(state.rules()[0].any_drains);
}

#[test]
fn a_real_whose_check_changes_keeps_its_flows_if_it_was_up() {
    let pool = pool_of(3, 9);
    let mut state = State::default();
    state.configure(&config_of(pool.clone()));
    assert_eq!(with_flows(&mut state), (vec![], vec![]));
    let outcomes = [Ok(()), Err("refused".to_owned())];
    for (real, outcome) in state.pools[0].reals.iter_mut().zip(outcomes) {
        real.note(&pool, outcome);
    }
    // Twice, as by a reload that is refused and rolled back: nothing was checked yet. The
    // third one was never up.
    for port in [10, 9] {
        state.configure(&config_of(pool_of(4, port)));
        let lives: Vec<_> = state.reals().map(|real| real.health.life).collect();
        assert_eq!(lives, [Life::Unknown; 4]);
        assert_eq!(with_flows(&mut state), (vec![0], vec![0]));
    }
    let [first, second, ..] = &mut state.pools[0].reals[..] else {
        unreachable!("there are four");
    };
    first.note(&pool, Err("refused".to_owned()));
    second.note(&pool, Ok(()));
    assert_eq!(with_flows(&mut state), (vec![1], vec![1]));
}

/// Without descriptors nothing is known of reals: they stay as they are, and are asked
/// again once there are some.
#[test]
fn a_real_that_cannot_be_asked_is_as_it_was() {
    use rustix::process::{Resource::Nofile, Rlimit, getrlimit, setrlimit};
    const ALONE: &str = "WEIR_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(ALONE).is_none() {
        // The limit is the process's, so this test is run in one of its own.
        let name = std::thread::current().name().unwrap().to_owned();
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let done = alone.args(["--exact", &name]).env(ALONE, "1").output();
        let said = done.unwrap().stdout;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(" 1 passed"), "{said}");
        return;
    }
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let pool = pool_of(3, listener.local_addr().unwrap().port());
    let mut state = State::default();
    state.configure(&config_of(pool.clone()));
    let outcomes = [Ok(()), Err("refused".to_owned())];
    for (real, outcome) in state.pools[0].reals.iter_mut().zip(outcomes) {
        real.note(&pool, outcome);
    }
    let before = getrlimit(Nofile);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Nofile, none).unwrap();
    for _ in 0..5 {
        for real in &mut state.pools[0].reals {
            real.next = Instant::now();
        }
        state.check();
        let lives: Vec<_> = state.reals().map(|real| real.health.life).collect();
        assert_eq!(lives, [Life::Up, Life::Down, Life::Unknown]);
        assert!(state.news.is_empty());
        // Not at once, but in its turn.
        assert!(state.reals().all(|real| real.next > Instant::now()));
    }
    let told = state.cannot_ask().unwrap();
    assert!(
        told.contains("127.0.0.1 (http: Too many open files"),
        "{told}"
    );
    setrlimit(Nofile, before).unwrap();
    for real in &mut state.pools[0].reals {
        real.next = Instant::now();
    }
    state.check();
    assert!(state.reals().all(|real| real.check.is_some()));
    assert_eq!(state.cannot_ask(), None);
}

//! What becomes of reals by their answers at virtual addresses.

use super::*;
use crate::balance::{
    Mode, State,
    emergency::{Servers, servers},
    fixture::{config_of, pool_of},
    settings::Setting,
};

/// The reason of a real that is silent at the virtual address.
const SILENT: &str = "no answer at the virtual address 192.0.2.80";

/// A pool with so many reals, none of which was checked yet.
fn state_of(reals: usize) -> State {
    let mut state = State::default();
    state.configure(&config_of(pool_of(reals, 9)));
    state
}

fn silent() -> Result<(), String> {
    Err(SILENT.to_owned())
}

/// Has a real that passes its check answer at the virtual addresses or not, and notes what is
/// decided; the lives of all reals then.
fn asked(pool: &mut Pool, real: usize, outcome: Result<(), String>) -> Vec<Life> {
    let config = pool.config.clone();
    pool.note_at_vips(real, outcome);
    if pool.reals[real].at_vips == AtVips::Answers {
        pool.reals[real].note(&config, Ok(()));
    }
    for (number, outcome) in pool.decide_at_vips() {
        pool.reals[number].note(&config, outcome);
    }
    pool.reals.iter().map(|real| real.health.life).collect()
}

/// At each start, and however often they are asked.
#[test]
fn where_no_real_answers_at_the_virtual_addresses_none_is_ever_taken_out() {
    use Life::{Unknown, Up};
    let mut state = state_of(3);
    let pool = &mut state.pools[0];
    assert_eq!(asked(pool, 1, silent()), [Unknown; 3]);
    assert_eq!(asked(pool, 0, silent()), [Unknown; 3]);
    assert_eq!(pool.lack_vips(), [""; 0]);
    for real in [2, 0, 1, 2, 2, 0] {
        assert_eq!(asked(pool, real, silent()), [Up; 3]);
        let told = pool.lack_vips();
        let names = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
        assert_eq!(told, names.map(|name| format!("{name} ({SILENT})")));
    }
    // Somebody puts it right at one of them: it serves, and the others do not.
    assert_eq!(asked(pool, 1, Ok(())), [Up; 3]);
    assert_eq!(pool.lack_vips(), [""; 0]);
    assert_eq!(asked(pool, 0, silent()), [Life::Down, Up, Up]);
    assert_eq!(asked(pool, 2, silent()), [Life::Down, Up, Life::Down]);
    // Those are as good as any other once that one is dead.
    let config = pool.config.clone();
    pool.reals[1].note(&config, Err("refused".to_owned()));
    assert_eq!(asked(pool, 0, silent()), [Up, Life::Down, Life::Down]);
    assert_eq!(pool.lack_vips().len(), 2);
}

#[test]
fn a_real_without_an_address_is_down_as_soon_as_another_has_it() {
    use Life::{Down, Unknown, Up};
    let mut state = state_of(3);
    let pool = &mut state.pools[0];
    // One that has flows keeps them so long.
    pool.reals[0].health = Health::UNKNOWN_WITH_FLOWS;
    assert_eq!(asked(pool, 0, silent()), [Unknown; 3]);
    assert!(pool.reals[0].health.may_have_flows());
    assert_eq!(asked(pool, 1, Ok(())), [Down, Up, Unknown]);
    assert_eq!(asked(pool, 2, silent()), [Down, Up, Down]);
    assert_eq!(pool.reals[0].down_because, SILENT);
}

/// Nobody waits for the answer of one that takes no flows, or that nobody can ask.
#[test]
fn only_reals_that_could_take_the_flows_count() {
    let others: [fn(&mut RealState); 4] = [
        |real| real.health.life = Life::Down,
        |real| {
            real.setting = Setting {
                mode: Mode::Draining,
                weight: None,
            }
        },
        |real| real.at_vips = AtVips::CannotBeAsked,
        // Its check cannot begin, for want of descriptors on this host.
        |real| real.not_asked = Some("http: Too many open files".to_owned()),
    ];
    for make in others {
        let mut state = state_of(2);
        let pool = &mut state.pools[0];
        make(&mut pool.reals[1]);
        assert_eq!(asked(pool, 0, silent())[0], Life::Up);
        assert_eq!(pool.lack_vips().len(), 1);
    }
}

/// For maintenance: what is known of reals holds until they take flows again.
#[test]
fn a_real_without_the_address_stays_down_while_all_are_drained() {
    use Life::{Down, Up};
    let mut state = state_of(2);
    let pool = &mut state.pools[0];
    assert_eq!(asked(pool, 0, Ok(()))[0], Up);
    for _ in 0..3 {
        asked(pool, 1, silent());
    }
    for mode in [Mode::Draining, Mode::Disabled] {
        for real in &mut pool.reals {
            real.setting.mode = mode;
        }
        for _ in 0..9 {
            assert_eq!(asked(pool, 1, silent()), [Up, Down], "{mode:?}");
            assert_eq!(asked(pool, 0, Ok(())), [Up, Down], "{mode:?}");
        }
        assert_eq!(pool.lack_vips(), [""; 0]);
    }
    // One that answers by then is up.
    let config = pool.config.clone();
    for _ in 0..config.check.rise {
        asked(pool, 1, Ok(()));
    }
    assert_eq!(asked(pool, 0, Ok(())), [Up, Up]);
}

#[test]
fn an_emergency_real_without_the_address_is_told_and_left_out_where_another_has_it() {
    let named = |name: &str| PoolConfig {
        name: name.to_owned(),
        ..pool_of(2, 9)
    };
    let mut config = config_of(PoolConfig {
        emergency: Some(Emergency::Pool("backup".to_owned())),
        ..named("web")
    });
    config.pools.push(named("backup"));
    let mut state = State::default();
    state.configure(&config);
    for real in &mut state.pools[1].reals {
        real.mac = Some([2; 6]);
        real.note(&config.pools[1], Ok(()));
    }
    let serve = |state: &State| {
        let (by, takers) = servers(&state.pools[0], &state.pools);
        assert_eq!(by, Servers::Pool("backup".to_owned()));
        let takers = takers.into_iter();
        takers
            .map(|real| real.config.address.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(serve(&state), ["127.0.0.1", "127.0.0.2"]);
    assert_eq!(state.stand_ins_that_lack(&config.pools[0]), None);
    let lacks = || {
        let mut health = Health::UNKNOWN;
        assert!(health.note(false, 1, 1));
        StandIn {
            health,
            why: SILENT.to_owned(),
            ..StandIn::NEW
        }
    };
    let stand_ins = |state: &mut State, real: usize| {
        let all = &mut state.pools[1].reals[real].stand_ins;
        all.insert("web".to_owned(), lacks());
    };
    stand_ins(&mut state, 0);
    assert_eq!(serve(&state), ["127.0.0.2"]);
    let told = state.stand_ins_that_lack(&config.pools[0]).unwrap();
    let all = format!("of pool backup would not serve it: 127.0.0.1 ({SILENT})");
    assert!(
        told.starts_with("pool web") && told.ends_with(&all),
        "{told}"
    );
    // In its own pool it is as good as before, and where none has the address any will do.
    assert_eq!(servers(&state.pools[1], &state.pools).1.len(), 2);
    stand_ins(&mut state, 1);
    assert_eq!(serve(&state), ["127.0.0.1", "127.0.0.2"]);
    assert_eq!(state.stand_ins_that_lack(&config.pools[1]), None);
}

//! What commands have added, beside files that change.

use std::{net::IpAddr, path::Path};

use super::*;
use crate::{
    balance::added::{KeyValues, PoolChange, PoolChangeError},
    host::fake::FakeHost,
};
use weir_enforce::{MAX_POOLS, MAX_REALS};

const WEB: &str = "[balance]\ninterface = \"eth0\"\n[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\n\
                   reals = [{ address = \"10.0.0.11\" }]\n";

fn config(text: &str) -> Config {
    let checked = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
    checked.map_err(|errors| errors.to_string()).unwrap()
}

fn table(value: Value) -> KeyValues {
    value.as_object().unwrap().clone()
}

fn shop(vip: &str, real: &str) -> AddedPool {
    AddedPool {
        name: "shop".to_owned(),
        pool: table(json!({ "vip": [vip], "ports": ["80/tcp"], "reals": [{ "address": real }] })),
    }
}

fn real_of(pool: &str, real: Value) -> PoolChange {
    PoolChange::AddReal(AddedReal {
        pool: pool.to_owned(),
        real: table(real),
    })
}

/// The configuration with one change more.
fn changed(config: &Config, change: PoolChange) -> Result<Config, PoolChangeError> {
    let mut all = config.added.all.clone();
    all.change(&change, config.balance.as_ref())?;
    Ok(config.clone().with_added(all, &FakeHost::default()))
}

/// The pools by name, each with its reals.
fn pools(config: &Config) -> Vec<(String, Vec<String>)> {
    let pools = config.balance.iter().flat_map(|balance| &balance.pools);
    let reals = |pool: &crate::balance::config::PoolConfig| {
        let reals = pool.own_reals().map(|real| real.address.to_string());
        reals.collect()
    };
    pools.map(|pool| (pool.name.clone(), reals(pool))).collect()
}

fn whys(config: &Config) -> Vec<String> {
    let all = config.added.not_in_force.iter();
    all.map(|one| format!("{}: {}", one.subject(), one.why))
        .collect()
}

#[test]
fn what_was_added_waits_for_the_files() {
    let with = changed(
        &config(WEB),
        PoolChange::Add(shop("198.51.100.81", "10.0.0.12")),
    )
    .unwrap();
    let with = changed(
        &with,
        real_of("web", json!({ "address": "10.0.0.13", "weight": 4 })),
    )
    .unwrap();
    let both = |web: &[&str]| {
        let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        vec![
            ("shop".to_owned(), owned(&["10.0.0.12"])),
            ("web".to_owned(), owned(web)),
        ]
    };
    assert_eq!(pools(&with), both(&["10.0.0.11", "10.0.0.13"]));
    assert!(with.added.not_in_force.is_empty());
    let web = &with.balance.as_ref().unwrap().pools[1];
    assert_eq!(web.place.as_deref(), Some("weir.toml:3"));
    let places: Vec<_> = web.reals.iter().map(|real| real.place.as_deref()).collect();
    assert_eq!(
        (places, web.reals[1].weight),
        (vec![Some("weir.toml:6"), None], 4)
    );
    // Again it is the same, and each warning is there once.
    let again = with
        .clone()
        .with_added(with.added.all.clone(), &FakeHost::default());
    assert_eq!(
        (&again.balance, &again.warnings),
        (&with.balance, &with.warnings)
    );

    let beside = |text: &str| config(text).with_added(with.added.all.clone(), &FakeHost::default());
    let real = "10.0.0.11\" }, { address = \"10.0.0.13";
    let cases = [
        (
            WEB.replace("[pool.web]", "[pool.shop]"),
            vec![
                "pool shop: there is a pool shop in the configuration already (weir.toml:3)",
                "real 10.0.0.13 of pool web: the configuration has no such pool any more",
            ],
        ),
        (
            WEB.replace("100.80", "100.81"),
            vec!["pool shop: [pool.shop] serves 80/tcp of 198.51.100.81, which [pool.web] serves"],
        ),
        (
            WEB.replace("10.0.0.11", real),
            vec!["real 10.0.0.13 of pool web: [pool.web] has 10.0.0.13 already (weir.toml:6)"],
        ),
        (
            WEB.replace("100.80", "100.80\", \"10.0.0.12"),
            vec![
                "pool shop: reals in [pool.shop] has 10.0.0.12, a virtual address; allowed: the real's own address",
            ],
        ),
    ];
    for (text, expected) in cases {
        let next = beside(&text);
        assert_eq!(whys(&next), expected, "{text}");
        assert_eq!(next.added.all, with.added.all);
        let files = next.balance.as_ref().and_then(BalanceConfig::of_files);
        assert_eq!(files, config(&text).balance);
    }
    let next = beside("interfaces = [\"eth0\"]\n");
    assert!(next.balance.is_none());
    let complaints: Vec<_> = next.added.complaints().collect();
    assert!(
        complaints[0].starts_with(
            "pool shop, added by a command, is not in force: the configuration has no [balance]"
        ),
        "{complaints:?}"
    );
    assert!(
        whys(&next)[0].contains("the configuration has no [balance]"),
        "{:?}",
        whys(&next)
    );
    assert_eq!(pools(&beside(WEB)), both(&["10.0.0.11", "10.0.0.13"]));
}

#[test]
fn a_pool_of_the_files_is_no_pool_to_add() {
    let pool = AddedPool {
        name: "web".to_owned(),
        ..shop("198.51.100.81", "10.0.0.12")
    };
    let error = changed(&config(WEB), PoolChange::Add(pool)).unwrap_err();
    let why = "there is a pool web in the configuration already (weir.toml:3)";
    assert_eq!(error, PoolChangeError::Conflict(why.to_owned()));
}

/// What takes a capability that is given up at the start, whatever pools there are then.
#[test]
fn a_pool_that_a_command_adds_may_be_asked_at_its_virtual_addresses() {
    let unasked = WEB.replace("[pool.web]", "[pool.web]\ncheck = { vip = false }");
    assert!(config(&unasked).may_ask_vips());
    assert!(config("[balance]\ninterface = \"eth0\"\n").may_ask_vips());
    assert!(!config("interfaces = [\"eth0\"]\n").may_ask_vips());
}

#[test]
fn the_proxy_of_an_added_pool_has_the_threads_of_the_files() {
    let files = || config("backend = \"nft\"\n[proxy]\nthreads = 3\n");
    let AddedPool { name, mut pool } = shop("198.51.100.81", "10.0.0.12");
    pool.insert("forward".to_owned(), "proxy".into());
    let with = changed(&files(), PoolChange::Add(AddedPool { name, pool })).unwrap();
    assert_eq!(whys(&with), [""; 0]);
    assert_eq!(with.balance.as_ref().unwrap().threads, Some(3));
    // A reload of the same files changes none of it; another number needs a restart.
    let again = files().with_added(with.added.all.clone(), &FakeHost::default());
    assert_eq!(again.balance, with.balance);
    assert_eq!(with.restart_needed(&again), [""; 0]);
    let other = config("backend = \"nft\"\n[proxy]\nthreads = 2\n");
    let other = other.with_added(with.added.all.clone(), &FakeHost::default());
    assert_eq!(with.restart_needed(&other), ["threads in [proxy]"]);
}

#[test]
fn an_added_pool_whose_address_no_virtual_router_has_is_warned_of() {
    let router = |more: &str| {
        format!(
            "{WEB}[vrrp.edge]\nid = 51\npools = [\"web\"]\naddresses = [\"198.51.100.1\"{more}]\n"
        )
    };
    for (text, warns) in [
        (WEB.to_owned(), false),
        (router(""), true),
        (router(", \"198.51.100.81\""), false),
    ] {
        let text = text.replace("[pool.web]", "announce = true\n[pool.web]");
        let with = changed(
            &config(&text),
            PoolChange::Add(shop("198.51.100.81", "10.0.0.12")),
        )
        .unwrap();
        assert_eq!(whys(&with), [""; 0]);
        let warned = { with.added.warnings.iter() }
            .any(|one| one.contains("198.51.100.81, which no [vrrp.NAME] has"));
        assert_eq!(warned, warns, "{text}: {:?}", with.added.warnings);
    }
}

#[test]
fn pools_are_added_up_to_the_limit() {
    let nth = |n: usize| AddedPool {
        name: format!("p{n}"),
        ..shop(
            &format!("198.51.{}.{}", 101 + n / 200, 1 + n % 200),
            "10.0.0.12",
        )
    };
    let mut all = config(WEB).added.all;
    all.pools = (1..MAX_POOLS).map(nth).collect();
    let now = config(WEB).with_added(all, &FakeHost::default());
    assert_eq!(whys(&now), [""; 0]);
    let refused = changed(&now, PoolChange::Add(nth(MAX_POOLS))).unwrap();
    let most = format!("has {} pools; allowed: at most {MAX_POOLS}", MAX_POOLS + 1);
    assert!(whys(&refused)[0].ends_with(&most), "{:?}", whys(&refused));
    assert_eq!(refused.balance, now.balance);
    // Those that the files keep out of force count as well.
    let none = config("").with_added(now.added.all.clone(), &FakeHost::default());
    let none = changed(&none, PoolChange::Add(nth(MAX_POOLS + 1))).unwrap();
    let error = changed(&none, PoolChange::Add(nth(MAX_POOLS + 2))).unwrap_err();
    assert!(matches!(error, PoolChangeError::Refused(_)), "{error}");
    // A name is free again.
    let now = changed(&now, PoolChange::Delete("p1".to_owned())).unwrap();
    assert_eq!(
        whys(&changed(&now, PoolChange::Add(nth(1))).unwrap()),
        [""; 0]
    );
}

#[test]
fn reals_are_added_up_to_the_limit() {
    let address = |n: usize| IpAddr::from([10, 1, (n / 200) as u8, (n % 200) as u8 + 1]);
    let add = |now: &Config, n: usize| {
        let real = json!({ "address": address(n).to_string() });
        changed(now, real_of("web", real)).unwrap()
    };
    let mut all = config(WEB).added.all;
    for n in 1..MAX_REALS {
        all.reals.push(AddedReal {
            pool: "web".to_owned(),
            real: table(json!({ "address": address(n).to_string() })),
        });
    }
    let now = config(WEB).with_added(all, &FakeHost::default());
    assert_eq!(whys(&now), [""; 0]);
    let refused = add(&now, MAX_REALS);
    let most = format!("has {} reals; allowed: at most {MAX_REALS}", MAX_REALS + 1);
    assert!(whys(&refused)[0].ends_with(&most), "{:?}", whys(&refused));
}

//! Pools and reals that commands add to those of the files, read by the code that reads the
//! files.

use std::collections::BTreeMap;

use weir_config::Section;

use super::{
    Answering, BalanceConfig, PoolConfig, REALS, Taken, check, check_together, emergency, pool,
    quic, reals,
};

/// The pools of `base` and those of `root`, which has nothing else. `threads`: of the proxy,
/// where there is no `base`.
pub(crate) fn read_pools(
    root: &mut Section<'_, '_>,
    base: Option<&BalanceConfig>,
    threads: Option<usize>,
    answering: &Answering<'_>,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> BalanceConfig {
    let mut config = base.cloned().unwrap_or_else(|| BalanceConfig {
        interface: None,
        announce: false,
        flows: weir_enforce::DEFAULT_FLOWS,
        threads,
        pools: Vec::new(),
    });
    let mut taken = Taken::of(&config.pools);
    let (mut added, mut stand_ins) = (Vec::new(), Vec::new());
    for (name, section) in root.named_sections("pool") {
        if let Some(known) = config.pools.iter().find(|pool| pool.name == name) {
            root.error(section.line(), there_is(known));
        }
        stand_ins.extend(emergency::named_line(&name, &section));
        added.extend(pool(name, section, &mut taken, answering, lists, warnings));
    }
    for pool in &mut added {
        pool.place = None;
        pool.reals.iter_mut().for_each(|real| real.place = None);
    }
    if config.interface.is_none() && added.iter().any(|pool| !pool.is_proxied()) {
        root.error(
            0,
            "the configuration has no [balance], which names the interface of the reals; allowed without it: pools with forward = \"proxy\"",
        );
    }
    config.pools.extend(added);
    config.pools.sort_by(|a, b| a.name.cmp(&b.name));
    check_together(root, 0, &config.pools, &stand_ins, &BTreeMap::new());
    config
}

/// The pools of `base`, which have the reals of `root` as well; `None` where it has not all of
/// the pools that `root` has.
pub(crate) fn read_reals(
    root: &mut Section<'_, '_>,
    base: Option<&BalanceConfig>,
    warnings: &mut Vec<String>,
) -> Option<BalanceConfig> {
    let mut config = base?.clone();
    for (name, mut section) in root.named_sections("pool") {
        let at = config.pools.iter().position(|pool| pool.name == name)?;
        let of = format!("[pool.{name}]");
        let (pool, line) = (&mut config.pools[at], section.line());
        let others: Vec<_> = pool.own_reals().cloned().collect();
        let is_proxied = pool.is_proxied();
        let mut added = reals(&mut section, &of, "reals", REALS, is_proxied, &others);
        for real in &mut added {
            real.place = None;
            if let Some(known) = others.iter().find(|known| known.address == real.address) {
                let place = known.place.as_deref().unwrap_or("added by a command");
                section.error(
                    line,
                    format!("{of} has {} already ({place})", known.address),
                );
            }
        }
        let before = check::warnings(pool);
        pool.reals.extend(added);
        let new = check::warnings(pool).into_iter();
        warnings.extend(new.filter(|text| !before.contains(text)));
        pool.check_proxy(&section, line);
        quic::check(pool, &section, line, warnings);
        section.finish();
    }
    check_together(root, 0, &config.pools, &[], &BTreeMap::new());
    Some(config)
}

/// Says that there is such a pool, and where.
pub(crate) fn there_is(known: &PoolConfig) -> String {
    match &known.place {
        Some(place) => format!(
            "there is a pool {} in the configuration already ({place})",
            known.name
        ),
        None => format!("there is a pool {} already, added by a command", known.name),
    }
}

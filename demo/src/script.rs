//! What happens on the network, and what must be true of it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use weir_testkit::sshd::Outcome;

use crate::{
    MAX_RETRY,
    network::DemoNetwork,
    participant::{Participant, SOON},
    pool::{FILE_BYTES, SERVERS, Served, own_address},
    programs::REFUSED,
    screen::Screen,
};

/// An attack, a crash, a pool that loses a server, rules about programs, an explanation
/// and a pardon.
pub fn play(network: &mut DemoNetwork, screen: &mut Screen) -> anyhow::Result<()> {
    let [attacker, attacker6, customer, customer6] = [
        Participant::new("attacker", "198.51.100.66", "192.0.2.10"),
        Participant::new("attacker (IPv6)", "2001:db8:bad::66", "2001:db8::10"),
        Participant::new("customer", "203.0.113.20", "192.0.2.10"),
        Participant::new("customer (IPv6)", "2001:db8:c::20", "2001:db8::10"),
    ];
    screen.say("the host runs a real sshd, rsyslog and `weir daemon`; the Internet is a namespace");
    let status = network.json(&["status"])?;
    screen.say(&format!(
        "weir protects {} by {}",
        status["attachments"][0]["interface"], status["attachments"][0]["hook"]
    ));
    for participant in [&customer, &customer6] {
        ensure!(
            network.login(participant)? == Outcome::LoggedIn,
            "{participant} cannot log in before the attack"
        );
        screen.say(&format!("{participant} logs in with a key"));
    }

    screen.chapter("an attack");
    for (participant, users) in [
        (&attacker, ["root", "admin"]),
        (&attacker6, ["oracle", "root"]),
    ] {
        attack(network, screen, participant, users)?;
    }
    for participant in [&customer, &customer6] {
        ensure!(
            network.login(participant)? == Outcome::LoggedIn,
            "{participant} is not served any more"
        );
        screen.good(&format!("{participant} is still served"));
    }
    let dropped = network.dropped()?;
    ensure!(dropped > 0, "no packet was dropped");
    screen.good(&format!("{dropped} packets dropped so far, in the kernel"));

    screen.chapter("a crash");
    let before = network.bans()?;
    network.kill_daemon()?;
    screen.say("SIGKILL to weir daemon");
    for participant in [&attacker, &attacker6] {
        ensure!(
            !network.connects(participant)?,
            "{participant} gets through after the crash"
        );
    }
    screen.good("the attackers still cannot connect: tables and programs are pinned");
    ensure!(
        network.login(&customer)? == Outcome::LoggedIn,
        "the customer is not served after the crash"
    );
    screen.good("the customer is still served");
    network.start_daemon()?;
    let after = network.bans()?;
    ensure!(
        after.len() == before.len(),
        "{} bans before, {} after the restart",
        before.len(),
        after.len()
    );
    for ban in &after {
        let same = before
            .iter()
            .find(|b| b.subject == ban.subject)
            .context("a ban is gone")?;
        let moved = ban.until.duration_since(same.until).as_secs_f64().abs();
        ensure!(
            moved < 1.0,
            "{}: the ban's end was {} and is {} after the restart",
            ban.subject,
            same.until,
            ban.until
        );
        let left = ban.until.duration_since(Timestamp::now()).as_secs_f64();
        ensure!(
            (left - ban.remaining as f64).abs() <= 1.0,
            "{}: {} s remain by the daemon, {left:.1} s by the clock",
            ban.subject,
            ban.remaining
        );
        screen.good(&format!(
            "after the restart {} is banned for {} more seconds, until {:.0} as before",
            ban.subject, ban.remaining, ban.until
        ));
    }

    pool(
        network,
        screen,
        [&customer, &customer6],
        [&attacker, &attacker6],
    )?;

    programs(network, screen)?;

    screen.chapter("why?");
    let why = network.weir(&["why", &attacker.from.to_string()])?;
    ensure!(
        why.contains("sshd"),
        "weir why does not name the jail: {why}"
    );
    screen.quote(&format!("weir why {}", attacker.from), &why);
    network.weir(&["unban", &attacker.from.to_string()])?;
    screen.say(&format!("weir unban {}", attacker.from));
    ensure!(
        network.connects(&attacker)?,
        "the attacker is still shut out after the unban"
    );
    ensure!(
        !network.connects(&attacker6)?,
        "the other attacker got in, too"
    );
    screen.good("it can connect again; the other one still cannot");
    screen.note("packets dropped", &network.dropped()?.to_string());
    Ok(())
}

/// Guesses passwords until the ban, and proves that it holds.
fn attack(
    network: &mut DemoNetwork,
    screen: &mut Screen,
    participant: &Participant,
    users: [&str; 2],
) -> anyhow::Result<()> {
    screen.say(&format!(
        "{participant} at {} guesses passwords with ssh",
        participant.from
    ));
    let mut guesses = 0;
    let ban = loop {
        let user = users[guesses as usize % users.len()];
        let outcome = network.guess(participant, user, &format!("password{guesses}"))?;
        guesses += 1;
        // Denied is what the client saw; what counts is what weir found.
        let found = network.found(participant, guesses, outcome == Outcome::Denied)?;
        if let Some(reason) = found {
            screen.say(&format!("  weir found: {reason}"));
        }
        if guesses >= MAX_RETRY
            && let Some(ban) = network.await_ban(participant, Duration::from_secs(2))?
        {
            break ban;
        }
        ensure!(
            guesses < 4 * MAX_RETRY,
            "{participant} was not banned after {guesses} failures"
        );
    };
    screen.good(&format!(
        "BAN {} for {} s: {}",
        ban.subject, ban.remaining, ban.reason
    ));
    ensure!(
        !network.connects(participant)?,
        "{participant} can still connect"
    );
    screen.good(&format!("{participant} cannot connect any more"));
    let times = network.times(participant)?;
    screen.good(&format!(
        "{:.1} ms from the log line (as rsyslog stamped it) to the ban; {:.1} ms to the next packet it sent, dropped",
        times.to_ban, times.to_drop
    ));
    screen.note(
        &format!("{participant}: from log line to ban, to first dropped packet"),
        &format!("{:.1} ms, {:.1} ms", times.to_ban, times.to_drop),
    );
    Ok(())
}

/// One program of the host fetches a page, another one is refused by the kernel, also while
/// there is no daemon.
fn programs(network: &mut DemoNetwork, screen: &mut Screen) -> anyhow::Result<()> {
    if let Err(lacks) = &network.programs {
        screen.note("rules about programs, not shown", lacks);
        return Ok(());
    }
    screen.chapter("programs");
    screen.say("a rule lets curl talk to port 80, by the SHA-256 of its file; nobody else may");
    for is_running in [true, false] {
        if !is_running {
            network.kill_daemon()?;
            screen.say("SIGKILL to weir daemon");
        }
        for family in [0, 1] {
            two_programs(network, screen, &own_address(0, family))?;
        }
    }
    network.start_daemon()?;
    let listed = network.weir(&["app", "list"])?;
    screen.quote("weir app list", &listed);
    screen.claim(
        "one program of the host could talk to the network, another one could not, daemon or none",
    );
    Ok(())
}

/// The one that may and the one that may not, at the same server.
fn two_programs(network: &DemoNetwork, screen: &mut Screen, address: &str) -> anyhow::Result<()> {
    let Ok(programs) = &network.programs else {
        bail!("no rules about programs");
    };
    let url = match address.contains(':') {
        true => format!("http://[{address}]/"),
        false => format!("http://{address}/"),
    };
    // A program that weir has never seen is dropped until it knows who that is.
    let begun = Instant::now();
    let status = loop {
        let status = programs.fetch(network.host(), &url)?;
        if status == "200" {
            break status;
        }
        ensure!(begun.elapsed() < SOON, "curl {url}: {status}");
    };
    let refused = loop {
        let said = programs.connect(network.host(), address)?;
        ensure!(said != "connected", "python3 connects to {address}");
        if said == REFUSED {
            break said;
        }
        ensure!(begun.elapsed() < 2 * SOON, "python3 to {address}: {said}");
    };
    screen.good(&format!(
        "curl {url}: {status}; python3 to the same port: {refused}"
    ));
    Ok(())
}

/// Two servers behind one address, of which one dies under traffic.
fn pool(
    network: &mut DemoNetwork,
    screen: &mut Screen,
    customers: [&Participant; 2],
    attackers: [&Participant; 2],
) -> anyhow::Result<()> {
    /// New connections, so many that no server is left out by chance.
    const VISITS: usize = 40;
    const FILES: usize = 20;
    let customers = customers.map(Participant::to_pool);
    let [customer, customer6] = &customers;
    screen.chapter("a pool");
    screen.say(&format!(
        "two nginx share {} and {}; weir hands them packets, they answer by themselves",
        customer.to.ip(),
        customer6.to.ip()
    ));
    network.await_live(SERVERS)?;
    let mut served = [0; SERVERS];
    for participant in customers.iter().cycle().take(VISITS) {
        served[network.visit(participant, SOON)?.who(participant)?] += 1;
    }
    ensure!(
        !served.contains(&0),
        "one server was never asked: {served:?}"
    );
    screen.good(&format!(
        "{VISITS} connections over IPv4 and IPv6: {} to server 1, {} to server 2, which see the client's address",
        served[0], served[1]
    ));

    let before = network.host_bytes()?;
    for participant in customers.iter().cycle().take(FILES) {
        let file = network.visit(participant, SOON)?.get("/1000k")?;
        ensure!(file.len() == FILE_BYTES, "a file of {} bytes", file.len());
    }
    let (all, crossed) = (FILES * FILE_BYTES, network.host_bytes()? - before);
    ensure!(
        crossed < all as u64 / 4,
        "{crossed} bytes of {all} crossed the host"
    );
    screen.good(&format!(
        "direct server return: {:.1} MB of files reached the customer, {:.2} MB crossed the host",
        all as f64 / 1e6,
        crossed as f64 / 1e6
    ));

    for attacker in attackers {
        let visitor = attacker.to_pool();
        ensure!(!network.connects(&visitor)?, "{attacker} reaches the pool");
        let asked = network.pool.asked_by(attacker.from)?;
        ensure!(asked.is_empty(), "{attacker} was served by {asked:?}");
    }
    screen.good("the banned attackers reach neither server");

    dies(network, screen, &customers)?;
    let listed = network.weir(&["pool", "show", "web"])?;
    screen.quote("weir pool show web", &listed);
    network.pool.revive(0)?;
    network.await_live(SERVERS)?;
    let mut served = 0;
    while network.visit(customer, SOON)?.who(customer)? != 0 {
        served += 1;
        ensure!(served < VISITS, "server 1 gets no connection");
    }
    screen.good("server 1 is started again, and serves again");
    Ok(())
}

/// Server 1 is killed while customers come; those of server 2 notice nothing.
fn dies(
    network: &mut DemoNetwork,
    screen: &mut Screen,
    customers: &[Participant; 2],
) -> anyhow::Result<()> {
    /// Traffic without the dead server, before it counts as gone.
    const AFTER: Duration = Duration::from_secs(1);
    let mut kept = Vec::new();
    for participant in customers {
        let mut visit = network.visit(participant, SOON)?;
        while visit.who(participant)? == 0 {
            visit = network.visit(participant, SOON)?;
        }
        kept.push((visit, participant));
    }
    let traffic = network.traffic(&customers.each_ref());
    std::thread::sleep(AFTER / 2);
    screen.say("SIGKILL to server 1, while customers come one after the other");
    let killed = Instant::now();
    network.pool.kill(0);
    network.await_live(SERVERS - 1)?;
    let noticed = Instant::now();
    std::thread::sleep(AFTER);
    let all = traffic.end()?;
    let of = |begun: &dyn Fn(Instant) -> bool| {
        let these: Vec<&Served> = all.iter().filter(|one| begun(one.at)).collect();
        let failed = these.iter().filter_map(|one| one.by.as_ref().err());
        (these.len(), failed.collect::<Vec<_>>())
    };
    let (meanwhile, failed) = of(&|at| (killed..noticed).contains(&at));
    let (since, failed_since) = of(&|at| at >= noticed);
    if let Some(error) = failed_since.first() {
        bail!("a customer was not served although weir knew: {error:#}");
    }
    ensure!(since >= 10, "only {since} customers came");
    screen.good(&format!(
        "{:.1} s later weir does without it; of {} connections meanwhile {} failed, of {} since none",
        (noticed - killed).as_secs_f64(),
        meanwhile,
        failed.len(),
        since
    ));
    for (visit, participant) in &mut kept {
        ensure!(visit.who(participant)? == 1, "a connection moved");
    }
    screen.good("connections to server 2 from before its death are still open");
    screen.note(
        "from a server's death until the pool did without it",
        &format!("{:.1} s", (noticed - killed).as_secs_f64()),
    );
    Ok(())
}

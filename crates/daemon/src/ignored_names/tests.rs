use super::*;
use crate::config::tests::check;

const JAILS: &str = "[jail.one]\nfilter = \"sshd\"\nipv6_prefix = 64\n\
    [jail.two]\nfilter = \"sshd\"\nipv6_prefix = 128\n";

fn name(text: &str) -> HostName {
    HostName::new(text.as_bytes()).unwrap()
}

fn target(text: &str) -> BanTarget {
    text.parse().unwrap()
}

/// What the resolver says of these addresses.
fn by_family(found: &[&str]) -> [Answer; 2] {
    let found: Vec<IpAddr> = found.iter().map(|addr| addr.parse().unwrap()).collect();
    let (ipv6, ipv4) = found.into_iter().partition(IpAddr::is_ipv6);
    [Ok(ipv4), Ok(ipv6)]
}

/// For tests of other modules as well.
impl IgnoredNames {
    pub(crate) fn without_resolver(alerts: Arc<Alerts>, lift: Box<Lift>) -> Self {
        let ledger = Arc::new(Current::new(Ledger::new(Vec::new())));
        let no_lookup = |_: &HostName| unreachable!("there is no thread");
        let names = Self::with(Box::new(no_lookup), ledger, alerts, lift);
        names.threads.store(LOOKUPS, Relaxed);
        names
    }

    pub(crate) fn answer(&self, text: &str, found: &[&str]) {
        self.answered(&name(text), by_family(found), Instant::now());
    }
}

/// Names without a resolver, and what was lifted.
struct Asked {
    names: Arc<IgnoredNames>,
    alerts: Arc<Alerts>,
    lifted: Arc<Mutex<Vec<String>>>,
    jails: Vec<JailConfig>,
}

impl Asked {
    /// Both jails ignore these names.
    fn new(names: &[&str]) -> Self {
        let mut jails = check(JAILS).unwrap().jails;
        let all: Vec<_> = names.iter().map(|text| name(text)).collect();
        for jail in &mut jails {
            jail.ignore_names.clone_from(&all);
        }
        let alerts = Arc::new(Alerts::default());
        let lifted = Arc::<Mutex<Vec<String>>>::default();
        let to = lifted.clone();
        let lift = move |jail: &str, subject: BanTarget, _: &str| {
            to.lock().unwrap().push(format!("{jail} {subject}"));
        };
        let names = IgnoredNames::without_resolver(alerts.clone(), Box::new(lift));
        let asked = Self {
            names: Arc::new(names),
            alerts,
            lifted,
            jails,
        };
        asked.names.run(&asked.jails);
        asked
    }

    fn answered(&self, name_: &str, answer: Result<&[&str], &str>) {
        let answer = match answer {
            Ok(found) => by_family(found),
            Err(why) => [Err(why.to_owned()), Err(why.to_owned())],
        };
        self.names.answered(&name(name_), answer, Instant::now());
    }

    fn lifted(&self) -> Vec<String> {
        std::mem::take(&mut self.lifted.lock().unwrap())
    }

    fn spares(&self, jail: &str, subject: &str) -> bool {
        self.names.spares(jail, target(subject)).is_some()
    }

    fn alert(&self, name: &str) -> Option<String> {
        let alerts = self.alerts.list().into_iter();
        let about = about(&self::name(name));
        let mut of_name = alerts.filter(|alert| alert.about == about);
        of_name.next().map(|alert| alert.message)
    }

    /// When the name is looked up next.
    fn due(&self, text: &str) -> Duration {
        let due = self.names.state().known[&name(text)].due;
        due.saturating_duration_since(Instant::now())
    }
}

#[test]
fn a_name_spares_the_addresses_that_it_has() {
    let asked = Asked::new(&["home.example"]);
    assert!(!asked.spares("one", "192.0.2.7"));
    asked.answered("home.example", Ok(&["::ffff:192.0.2.7", "2001:db8::7"]));
    for jail in ["one", "two"] {
        assert!(asked.spares(jail, "192.0.2.7"), "{jail}");
        assert!(asked.spares(jail, "2001:db8::7"), "{jail}");
        assert!(asked.spares(jail, "2001:db8::/64"), "{jail}");
        assert!(!asked.spares(jail, "2001:db8::8"), "{jail}");
        assert!(!asked.spares(jail, "192.0.2.8"), "{jail}");
    }
    assert!(!asked.spares("three", "192.0.2.7"));
    // Whoever was banned before is let in, by his network where the jail bans that.
    assert_eq!(
        asked.lifted(),
        [
            "one 192.0.2.7",
            "one 2001:db8::7",
            "one 2001:db8::/64",
            "two 192.0.2.7",
            "two 2001:db8::7",
        ]
    );
    // Once more a second later, and no earlier: a ban may have been on its way.
    let mut state = asked.names.state();
    assert!(state.take_lifts(Instant::now()).is_empty());
    let later = Instant::now() + BAN_IN_FLIGHT;
    assert_eq!(state.take_lifts(later).len(), 5);
    assert!(state.lift_again.is_empty());
    drop(state);
    assert!(asked.due("home.example") > REFRESH - Duration::from_secs(9));

    // The same again lifts nothing, for somebody may have banned by hand; what is new does.
    asked.answered("home.example", Ok(&["192.0.2.7", "2001:db8::7"]));
    assert_eq!(asked.lifted(), Vec::<String>::new());
    asked.answered("home.example", Ok(&["192.0.2.9"]));
    assert_eq!(asked.lifted(), ["one 192.0.2.9", "two 192.0.2.9"]);
    assert!(asked.spares("one", "192.0.2.9") && !asked.spares("one", "192.0.2.7"));
}

#[test]
fn what_nobody_answers_for_holds_on_and_is_an_alert() {
    let asked = Asked::new(&["home.example"]);
    asked.answered("home.example", Err("timeout"));
    let alert = asked.alert("home.example").unwrap();
    assert!(alert.contains("exempts nobody by it"), "{alert}");
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    assert_eq!(asked.alert("home.example"), None);
    asked.answered("home.example", Err("timeout"));
    let alert = asked.alert("home.example").unwrap();
    assert!(
        alert.contains("(timeout): its last addresses (192.0.2.7) stay exempt"),
        "{alert}"
    );
    assert!(asked.spares("one", "192.0.2.7"));
    assert!(asked.due("home.example") <= RETRY);
    // The answer that there is none is one.
    asked.answered("home.example", Ok(&[]));
    assert!(!asked.spares("one", "192.0.2.7"));
    let alert = asked.alert("home.example").unwrap();
    assert!(alert.contains("has no address"), "{alert}");
}

/// A name server that answers for IPv4 only takes no IPv6 address away.
#[test]
fn a_family_without_an_answer_keeps_its_addresses() {
    let asked = Asked::new(&["home.example"]);
    asked.answered("home.example", Ok(&["192.0.2.7", "2001:db8::7"]));
    asked.lifted();
    let answer = [
        Ok(vec!["192.0.2.9".parse().unwrap()]),
        Err("timeout".to_owned()),
    ];
    asked
        .names
        .answered(&name("home.example"), answer, Instant::now());
    assert_eq!(asked.lifted(), ["one 192.0.2.9", "two 192.0.2.9"]);
    assert!(asked.spares("one", "2001:db8::7") && asked.spares("one", "192.0.2.9"));
    assert!(!asked.spares("one", "192.0.2.7"));
    let alert = asked.alert("home.example").unwrap();
    let wanted = "(IPv6: timeout): its last addresses (192.0.2.9, 2001:db8::7) stay exempt";
    assert!(alert.contains(wanted), "{alert}");
    assert!(asked.due("home.example") <= RETRY);
}

/// Names that nobody answers for keep those waiting least that are answered for.
#[test]
fn names_that_were_answered_for_are_looked_up_first() {
    let mut asked = Asked::new(&["dead.example", "home.example", "work.example"]);
    let now = Instant::now();
    asked.answered("dead.example", Err("timeout"));
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    let all = now + 2 * REFRESH;
    let take = |asked: &Asked, now| {
        let name = asked.names.state().take_due(now);
        name.map(|name| name.to_string())
    };
    assert_eq!(take(&asked, Instant::now()).unwrap(), "work.example");
    assert_eq!(take(&asked, Instant::now()), None);
    assert_eq!(take(&asked, all).unwrap(), "home.example");
    assert_eq!(take(&asked, all).unwrap(), "dead.example");
    // All are under way, and stay so over a reload.
    asked.jails.pop();
    asked.names.run(&asked.jails);
    assert_eq!(take(&asked, all), None);
    asked.answered("dead.example", Ok(&[]));
    assert_eq!(take(&asked, all).unwrap(), "dead.example");
}

#[test]
fn so_many_addresses_of_a_name_count_and_no_more() {
    let asked = Asked::new(&["cloud.example"]);
    let many: Vec<_> = (0..40).map(|n| format!("192.0.2.{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    asked.answered("cloud.example", Ok(&many));
    let spared = many.iter().filter(|addr| asked.spares("one", addr)).count();
    assert_eq!(spared, MAX_ADDRESSES);
    let alert = asked.alert("cloud.example").unwrap();
    assert!(alert.contains("24 addresses more than the 16"), "{alert}");
}

#[test]
fn a_reload_forgets_names_and_lifts_for_a_jail_that_comes_to_one() {
    let mut asked = Asked::new(&["home.example", "gone.example"]);
    asked.jails[1].ignore_names.clear();
    asked.names.run(&asked.jails);
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    asked.answered("gone.example", Ok(&[]));
    assert_eq!(asked.lifted(), ["one 192.0.2.7"]);
    assert!(!asked.spares("two", "192.0.2.7"));
    assert!(asked.alert("gone.example").is_some());

    for jail in &mut asked.jails {
        jail.ignore_names = vec![name("home.example")];
    }
    asked.names.run(&asked.jails);
    assert_eq!(asked.alert("gone.example"), None);
    asked.answered("gone.example", Ok(&["192.0.2.8"]));
    assert!(!asked.spares("one", "192.0.2.8"));
    // What is known holds on while it is looked up anew.
    assert!(asked.spares("one", "192.0.2.7") && asked.spares("two", "192.0.2.7"));
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    assert_eq!(asked.lifted(), ["one 192.0.2.7", "two 192.0.2.7"]);

    for jail in &mut asked.jails {
        jail.ignore_names.clear();
    }
    asked.names.run(&asked.jails);
    assert!(!asked.spares("one", "192.0.2.7"));
    assert!(asked.names.is_idle.load(Relaxed));
}

/// Another reload, before the name is answered for once more.
#[test]
fn a_second_reload_forgets_no_bans_that_are_to_be_lifted() {
    let asked = Asked::new(&["home.example"]);
    let mut alone = asked.jails.clone();
    alone[1].ignore_names.clear();
    asked.names.run(&alone);
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    asked.lifted();
    asked.names.run(&asked.jails);
    asked.names.run(&asked.jails);
    asked.answered("home.example", Ok(&["192.0.2.7"]));
    assert!(asked.lifted().contains(&"two 192.0.2.7".to_owned()));
}

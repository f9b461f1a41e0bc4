use super::*;

/// A sink that remembers what it was told.
struct Sink {
    name: &'static str,
    kinds: u32,
    told: Mutex<Vec<Arc<Event>>>,
}

impl Sink {
    fn of(name: &'static str, kinds: &[Kind]) -> Arc<Self> {
        Arc::new(Self {
            name,
            kinds: kinds.iter().fold(0, |all, kind| all | kind.bit()),
            told: Mutex::default(),
        })
    }

    /// The reasons of the events since the last call.
    fn told(&self) -> Vec<String> {
        let told = std::mem::take(&mut *self.told.lock().unwrap());
        told.iter().map(|event| event.reason.clone()).collect()
    }
}

impl Listener for Sink {
    fn name(&self) -> &str {
        self.name
    }

    fn kinds(&self) -> u32 {
        self.kinds
    }

    fn offer(&self, event: &Arc<Event>) {
        self.told.lock().unwrap().push(event.clone());
    }
}

fn event(kind: Kind, reason: &str) -> Event {
    Event::new(kind, Timestamp::UNIX_EPOCH, reason)
}

fn ban() -> Ban {
    Ban {
        subject: "192.0.2.7".parse().unwrap(),
        scope: "22/tcp".parse().unwrap(),
        producer: BanSource::Jail("sshd".into()),
        action: Action::Reject,
        reason: "5 failures".into(),
        since: Timestamp::UNIX_EPOCH,
        until: Until::Never,
        evidence: (0..30).map(|n| format!("line {n}")).collect(),
    }
}

#[test]
fn kinds_have_the_words_of_their_json() {
    for (name, kind) in Kind::ALL {
        assert_eq!(kind.name(), name);
        assert_eq!(serde_json::to_value(kind).unwrap(), name);
    }
    let bits = Kind::ALL.iter().fold(0, |all, (_, kind)| all | kind.bit());
    assert_eq!(bits.count_ones() as usize, Kind::ALL.len());
}

#[test]
fn a_bans_events_say_all_of_it() {
    let ban = ban();
    let told = Event::ban(&ban);
    assert_eq!((told.kind, told.time), (Kind::Ban, ban.since));
    assert_eq!(told.subject, Some(ban.subject.prefix()));
    assert_eq!(
        (told.scope, told.action),
        (Some(ban.scope.clone()), Some(ban.action))
    );
    assert_eq!(
        (told.reason, told.until),
        (ban.reason.clone(), Some(ban.until))
    );
    assert_eq!(told.jail.as_deref(), Some("sshd"));
    assert_eq!(
        (told.producer, told.list),
        (Some(ban.producer.clone()), None)
    );
    assert_eq!(told.evidence, ban.evidence);
    let lifted = Event::unban(ban.subject, &ban.producer, &ban.scope, "lifted");
    assert_eq!(
        (lifted.kind, lifted.reason.as_str()),
        (Kind::Unban, "lifted")
    );
    assert_eq!(lifted.subject, Some(ban.subject.prefix()));
    assert_eq!(
        (lifted.scope, lifted.producer),
        (Some(ban.scope), Some(ban.producer))
    );
    // A list's, and one of nobody's.
    let of = |producer| event(Kind::Ban, "").by(&producer);
    let list = of(BanSource::List("bad".into()));
    assert_eq!((list.list.as_deref(), list.jail), (Some("bad"), None));
    let manual = of(BanSource::Manual);
    assert_eq!((manual.list, manual.jail), (None, None));
    assert_eq!(manual.producer, Some(BanSource::Manual));
}

#[test]
fn a_sink_is_told_of_the_kinds_that_it_wants() {
    let events = Events::default();
    let (bans, errors) = (
        Sink::of("bans", &[Kind::Ban, Kind::Unban]),
        Sink::of("errors", &[Kind::Error, Kind::Ban]),
    );
    events.tell(&event(Kind::Ban, "before"));
    events.set_listeners(Arc::new([bans.clone(), errors.clone()]));
    events.tell(&event(Kind::Found, "found"));
    events.tell(&event(Kind::Unban, "unban"));
    events.tell(&Event::ban(&ban()));
    let evidence = bans.told.lock().unwrap().last().unwrap().evidence.clone();
    assert_eq!(evidence.len(), QUEUED_EVIDENCE);
    assert_eq!((&*evidence[0], &*evidence[9]), ("line 20", "line 29"));
    // A kind that another one wants is offered to all: each looks by itself.
    assert!(bans.told().ends_with(&["5 failures".to_owned()]));
    assert!(errors.told().ends_with(&["5 failures".to_owned()]));
    // No sink is told that it fails itself.
    events.bus().alert("sink:errors", "full");
    events.bus().alert("database", "gone");
    assert_eq!(errors.told(), ["database: gone"]);
    assert_eq!(bans.told(), ["sink:errors: full", "database: gone"]);
    events.set_listeners(Arc::new([]));
    events.tell(&event(Kind::Ban, "after"));
    assert_eq!((bans.told(), errors.told()), (vec![], vec![]));
}

#[test]
fn readers_have_all_events_as_json() {
    let events = Events::default();
    assert!(!events.has_readers());
    let mut reader = events.subscribe();
    assert!(events.has_readers());
    events.tell(&Event::ban(&ban()));
    events.tell(&event(Kind::Found, "\u{9b}2J"));
    let line = reader.try_recv().unwrap();
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&json["kind"], &json["jail"]),
        (&"ban".into(), &"sshd".into())
    );
    assert_eq!(json["evidence"].as_array().unwrap().len(), 30);
    assert_eq!(json.get("packet"), None);
    // Nothing in it steers a terminal.
    let line = reader.try_recv().unwrap();
    assert!(line.is_ascii() && line.contains("found"), "{line}");
    assert!(reader.try_recv().is_err());
    drop(reader);
    assert!(!events.has_readers());
    // Findings and drops are dear; a sink of bans does not ask for them.
    for (kind, wanted) in [(Kind::Ban, false), (Kind::Found, true), (Kind::Drop, true)] {
        events.set_listeners(Arc::new([Sink::of("one", &[kind])]));
        assert_eq!(events.has_readers(), wanted, "{kind:?}");
    }
}

#[test]
fn an_alert_is_told_when_it_is_new_or_has_changed() {
    let events = Events::default();
    let sink = Sink::of("errors", &[Kind::Error]);
    events.set_listeners(Arc::new([sink.clone()]));
    let alerts = alerts::Alerts::default();
    alerts.tell(events.bus());
    for message in ["broken", "broken", "worse"] {
        alerts.raise("database", message.to_owned());
    }
    alerts.raise("source:/a", "gone".to_owned());
    alerts.raise("source:/b", "gone".to_owned());
    assert_eq!(
        sink.told(),
        [
            "database: broken",
            "database: worse",
            "source:/a: gone",
            "source:/b: gone"
        ]
    );
    let kinds = |alerts: &alerts::Alerts| alerts.kinds().into_iter().collect::<Vec<_>>();
    assert_eq!(
        kinds(&alerts),
        [("database".to_owned(), 1), ("source".to_owned(), 2)]
    );
    alerts.forget("source:/a");
    alerts.clear("database");
    assert_eq!(kinds(&alerts), [("source".to_owned(), 1)]);
    alerts.raise("database", "broken".to_owned());
    assert_eq!(sink.told(), ["database: broken"]);
    // Of a kind that has more than are shown, one line says so.
    for n in 0..200 {
        alerts.raise(&format!("jail:{n:03}"), "silent".to_owned());
    }
    let told = sink.told();
    assert_eq!(told.len(), 65, "{told:?}");
    assert_eq!(
        told[64],
        "alerts:jail: there are 65 alerts about `jail`: 64 of them are shown"
    );
}

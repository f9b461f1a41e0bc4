use std::path::PathBuf;

use weir_core::Action;

use super::*;
use crate::{BackendChoice, BootNanos, DryRun};

fn ban(n: u8, second: u64) -> Entry {
    Entry {
        subject: format!("192.0.2.{n}").parse().unwrap(),
        policy: Arc::new(Policy {
            producer: BanSource::Jail("sshd".into()),
            scope: PortSet::all(),
            action: Action::Drop,
        }),
        expiry: Expiry::At(BootNanos((1 << 50) + second * 1_000_000_000)),
    }
}

fn subjects(mut entries: Vec<Entry>) -> Vec<String> {
    entries.sort_by_key(|entry| entry.subject);
    entries.iter().map(|e| e.subject.to_string()).collect()
}

fn over(before: DryRun) -> BackendSwap {
    BackendSwap {
        place: BackendHome {
            instance: "test".into(),
            pin_root: PathBuf::new(),
            ipv4_length: None,
            room: Default::default(),
            balanced_flows: None,
            settings: Settings {
                interfaces: Vec::new(),
                backend: BackendChoice::DryRun,
                advice: Default::default(),
                max_bans: 100,
                observe: false,
            },
        },
        present: RwLock::new(Present {
            kind: Family::DryRun,
            backend: Arc::new(before),
        }),
        coming: RwLock::new(None),
        no_room: Mutex::default(),
        evicted: Mutex::default(),
        mirrored: Mutex::default(),
        left: Mutex::default(),
        claim: Mutex::new(None),
        notified: NotifiedBans::new(100, None),
    }
}

/// Bans that end first make room, and are mirrored.
#[test]
fn what_the_next_backend_has_no_room_for_is_said() {
    let swap = over(DryRun::new(100, None));
    let bans: Vec<Entry> = (1..=9).map(|n| ban(n, n.into())).collect();
    swap.insert(&bans).unwrap();
    let next: Arc<dyn Backend> = Arc::new(DryRun::new(4, None));
    let before = swap.present();
    swap.fill(&before, &next, &MirroredState::default())
        .unwrap();
    // One comes meanwhile, and one is lifted.
    swap.insert(&[ban(10, 10)]).unwrap();
    swap.remove(ban(9, 9).subject, None, None).unwrap();
    swap.take_over(&before, Family::DryRun, next).unwrap();
    let left = ["192.0.2.7", "192.0.2.8", "192.0.2.10"];
    assert_eq!(subjects(swap.entries().unwrap()), left);
    let evicted = swap.take_evicted();
    assert_eq!(evicted.len(), 6);
    assert_eq!(evicted[0].policy, bans[0].policy);
    let evicted = subjects(evicted);
    assert_eq!((&*evicted[0], &*evicted[5]), ("192.0.2.1", "192.0.2.6"));
    assert_eq!(swap.take_evicted(), []);
}

/// They are nothing to the backends, nor to a change from one to the next.
#[test]
fn bans_that_only_notify_stay_where_they_are_while_backends_change() {
    let swap = over(DryRun::new(100, None));
    let mut notifies = ban(1, 1);
    Arc::make_mut(&mut notifies.policy).action = Action::Notify;
    Arc::make_mut(&mut notifies.policy).producer = BanSource::Jail("mails".into());
    swap.insert(&[notifies.clone(), ban(2, 2)]).unwrap();
    let next: Arc<dyn Backend> = Arc::new(DryRun::new(100, None));
    let before = swap.present();
    swap.fill(&before, &next, &MirroredState::default())
        .unwrap();
    swap.insert(&[ban(1, 3)]).unwrap();
    swap.take_over(&before, Family::DryRun, next.clone())
        .unwrap();
    assert_eq!(
        subjects(next.entries().unwrap()),
        ["192.0.2.1", "192.0.2.2"]
    );
    assert_eq!(swap.usage().notified, 1);
    let held = swap.entries_for("192.0.2.1".parse().unwrap()).unwrap();
    assert!(held.contains(&notifies) && held.contains(&ban(1, 3)));
    let lifted = swap.remove(notifies.subject, Some(&notifies.policy.producer), None);
    assert_eq!(lifted.unwrap(), [notifies]);
    assert_eq!(
        subjects(swap.entries().unwrap()),
        ["192.0.2.1", "192.0.2.2"]
    );
}

/// A backend that sees no packets has neither; the next one may.
#[test]
fn what_only_some_backends_can_is_kept_for_the_next() {
    let dry = DryRun::new(100, None);
    assert!(dry.classes().is_none() && dry.decoys().is_none());
    assert!(dry.packet_events().is_none());
    let swap = over(dry);
    let backend: &dyn Backend = &swap;
    let classes = Arc::new(Classes {
        classes: vec![Default::default(); 2],
        v4: vec![weir_core::geo::Span {
            first: 1,
            last: 9,
            value: 1,
        }],
        ..Classes::default()
    });
    let decoys = Decoys {
        ports: weir_core::decoy::DecoyPorts::new(&["23/tcp".parse().unwrap()]),
        ..Decoys::default()
    };
    features::set_classes(backend, &classes).unwrap();
    features::set_decoys(backend, &decoys).unwrap();
    let mirrored = swap.mirrored();
    assert_eq!(mirrored.classes.as_ref(), Some(&classes));
    assert_eq!(mirrored.decoys, decoys);
    let filter = backend.classes().unwrap();
    assert!(!filter.has_classes() && filter.class_counts().unwrap().is_empty());
    let none = Duration::ZERO;
    let events = backend.packet_events().unwrap();
    assert_eq!(events.poll_events(none, &mut |_| {}).unwrap(), 0);
}

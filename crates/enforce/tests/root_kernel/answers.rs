//! What bans that reject do where nothing can answer.

use super::*;

/// The packet path with answers cannot be loaded, here for want of descriptors:
/// what asks for an answer is dropped, and a limit says so. In a process of its
/// own, for the limit on descriptors is all of a process's.
#[test]
fn root_a_reject_that_cannot_be_loaded_drops() {
    if !is_alone("answers::root_a_reject_that_cannot_be_loaded_drops") {
        return;
    }
    let instance = Instance::new("answers", 1000);
    let backend = instance.open();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    for n in [2, 3] {
        let mut ban = entry(n, Producer::Manual, 3600);
        Arc::make_mut(&mut ban.policy).action = Action::Reject;
        assert!(!is_limited(&*backend) || n == 3);
        setrlimit(Resource::Nofile, none).unwrap();
        let done = backend.insert(&[ban]);
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(done.unwrap().new, 1);
        assert!(
            is_limited(&*backend),
            "nothing says that it does not answer"
        );
        assert_eq!(backend.usage().generation, 1);
        let source = subject(n).prefix().addr();
        assert!(is_dropped(&instance.pinned(), source, 22));
    }
}

fn is_limited(backend: &dyn Backend) -> bool {
    let limits = backend.limits();
    limits.iter().any(|limit| limit.feature == Feature::Reject)
}

//! From one level of `[app]` to another, and killed or refused on the way: the next start, at
//! whichever level, takes over what is there, and nothing of the other level stays.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

/// Both are held at a fault point.
#[cfg(feature = "fault-points")]
mod at_fault_points {
    use std::{
        fs,
        path::{Path, PathBuf},
        time::{Duration, Instant},
    };

    use weir_bpf::identity::{Level, level};

    use crate::{
        app_host::{ADDRESSES, TestHost, curl_only},
        common::soon,
    };

    /// The verifier takes its time with the programs of another level.
    const LONG: Duration = Duration::from_secs(120);

    /// A level beside push that this kernel has.
    fn other_level() -> Option<Level> {
        let others = [Level::Tracepoint, Level::Fentry];
        others.into_iter().find(|other| level(Some(*other)).is_ok())
    }

    /// A host that starts at this level; none: this kernel has no two levels.
    fn host(name: &str, at: Level, env: &str) -> Option<(TestHost, Level)> {
        let other = other_level();
        if other.is_none() || level(Some(Level::Push)).is_err() {
            eprintln!("skipped: two levels of [app], of which one is push (probe: its BTF)");
            return None;
        }
        let under = |host: &mut TestHost| {
            let at = if at == Level::Push {
                at
            } else {
                other.unwrap()
            };
            host.configure_at(at.name(), &curl_only());
            let env = format!("{env}={}", host.host.path("points").display());
            host.host.under = vec!["env".into(), env];
        };
        Some((TestHost::with(name, &curl_only(), under)?, other?))
    }

    /// The pins that level push alone has, of those that are there.
    fn of_push(host: &TestHost) -> Vec<&'static str> {
        let instance = Path::new("/sys/fs/bpf/weir").join(&host.instance);
        let forms: Vec<PathBuf> = fs::read_dir(instance)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(forms.len(), 1, "{forms:?}");
        let pins = ["ident_changes", "link-unlock", "link-lower"];
        pins.into_iter()
            .filter(|pin| forms[0].join(pin).exists())
            .collect()
    }

    #[track_caller]
    fn judges_at(host: &TestHost, level: Level, what: &str) {
        assert_eq!(host.host.json(&["app", "list"])["level"], level.name());
        for address in ADDRESSES {
            soon("curl to be known", || {
                (host.curl(address) == "200").then_some(())
            });
            soon("python to be known, and refused at once", || {
                (host.connects(address).trim() == "PermissionError").then_some(())
            });
        }
        let expected = if level == Level::Push { 3 } else { 0 };
        let pins = of_push(host);
        assert_eq!(pins.len(), expected, "{what}: {pins:?}");
    }

    /// Has the daemon go to this level, and kills it at a fault point on the way.
    fn killed_at(host: &mut TestHost, point: &str, to: Level) {
        host.host.write("points", point);
        host.configure_at(to.name(), &curl_only());
        host.host.signal("HUP");
        let reached = host.host.path(&format!("points.{point}"));
        let until = Instant::now() + LONG;
        while !reached.exists() {
            assert!(Instant::now() < until, "{point}: {}", host.host.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        host.host.end("KILL");
        fs::remove_file(reached).unwrap();
        host.host.write("points", "");
    }

    #[test]
    fn root_a_change_of_levels_that_is_killed_is_gone_on_with_or_taken_back() {
        let Some((mut host, other)) = host("torn", Level::Push, "WEIR_FAULT_HOLD") else {
            return;
        };
        judges_at(&host, Level::Push, "at first");
        // On the way from push: with all of it, some of it, and nothing but its table.
        for point in [
            "app-noting",
            "app-ended-unlock",
            "app-ended-lower",
            "app-ended-all",
        ] {
            for next in [Level::Push, other] {
                let what = format!("{point} on the way from push, then {}", next.name());
                killed_at(&mut host, point, other);
                println!("{what}: {:?}", of_push(&host));
                host.configure_at(next.name(), &curl_only());
                host.host.start();
                judges_at(&host, next, &what);
                if next != Level::Push {
                    host.host.end("TERM");
                    host.configure_at("push", &curl_only());
                    host.host.start();
                    judges_at(&host, Level::Push, &what);
                }
            }
        }
        // On the way to it.
        for next in [Level::Push, other] {
            host.host.end("TERM");
            host.configure_at(other.name(), &curl_only());
            host.host.start();
            judges_at(&host, other, "before");
            let what = format!("on the way to push, then {}", next.name());
            killed_at(&mut host, "app-noting", Level::Push);
            assert_eq!(of_push(&host).len(), 3, "{what}");
            host.configure_at(next.name(), &curl_only());
            host.host.start();
            judges_at(&host, next, &what);
        }
    }

    #[test]
    fn root_a_change_of_levels_that_is_refused_leaves_nothing() {
        let Some((host, other)) = host("refused", Level::Fentry, "WEIR_FAULT_REFUSE") else {
            return;
        };
        judges_at(&host, other, "at first");
        let reload = |level: Level| {
            host.configure_at(level.name(), &curl_only());
            host.host.ask(&["reload"])
        };
        host.host.write("points", "app-judging-push\n");
        let (code, said) = reload(Level::Push);
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains("attach what judges"), "{said}");
        judges_at(&host, other, "refused");
        // Nor may the rules before be put back: whatever is left goes with the next reload.
        let both = format!("app-judging-push\napp-judging-{}\n", other.name());
        host.host.write("points", &both);
        let (code, said) = reload(Level::Push);
        assert_ne!(code, Some(0), "{said}");
        assert_eq!(of_push(&host).len(), 3, "{said}");
        host.host.write("points", "");
        let (code, said) = reload(other);
        assert_eq!(code, Some(0), "{said}");
        judges_at(&host, other, "after a reload");
        let (code, said) = reload(Level::Push);
        assert_eq!(code, Some(0), "{said}");
        judges_at(&host, Level::Push, "at last");
    }
}

#[cfg(not(feature = "fault-points"))]
#[test]
fn root_a_change_of_levels_that_is_killed_is_gone_on_with_or_taken_back() {
    println!("skipped: built without the feature fault-points");
}

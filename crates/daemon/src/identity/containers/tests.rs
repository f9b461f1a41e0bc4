use std::{os::unix::net::UnixListener, thread};

use super::*;

const ID: &str = "3f9a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccdde";

/// A runtime that gives these answers, one after the other, and asks to be asked properly.
fn runtime(dir: &Path, answers: Vec<Vec<u8>>) -> (PathBuf, thread::JoinHandle<()>) {
    let path = dir.join("runtime.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            let mut chunk = [0; 512];
            while !asked.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut chunk).unwrap();
                asked.extend(&chunk[..length]);
            }
            let asked = String::from_utf8(asked).unwrap();
            let line = format!("GET /containers/{ID}/json HTTP/1.0\r\n");
            assert!(asked.starts_with(&line), "{asked}");
            // Who has heard enough hangs up.
            let _ = stream.write_all(&answer);
        }
    });
    (path, serve)
}

fn found(pid: u32, labels: &str) -> Vec<u8> {
    format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{{\"Id\":\"{ID}\",\"State\":{{\"Pid\":{pid}}},\"Config\":{{\"Labels\":{labels}}}}}").into_bytes()
}

/// These runtimes, with Docker's API, and no others.
fn at(sockets: &[PathBuf]) -> Sources {
    Sources {
        sockets: sockets.to_vec(),
        ..Sources::default()
    }
}

fn why(known: &Known) -> String {
    known.labels.as_ref().unwrap_err().to_string()
}

#[test]
fn a_container_is_found_in_the_path_of_a_control_group() {
    for (cgroup, group) in [
        (format!("/system.slice/docker-{ID}.scope"), Some("scope")),
        (
            format!("/machine.slice/libpod-{ID}.scope/container/init"),
            Some("scope"),
        ),
        (
            format!("/kubepods.slice/cri-containerd-{ID}.scope"),
            Some("scope"),
        ),
        (format!("/docker/{ID}/child"), Some("dde")),
        (format!("/docker/{}", &ID[1..]), None),
        (format!("/docker/{ID}0"), None),
        (format!("/docker/{}", ID.to_uppercase()), None),
        ("/system.slice/ssh.service".to_owned(), None),
        ("/".to_owned(), None),
        (String::new(), None),
    ] {
        let found = group_of(&cgroup);
        assert_eq!(found.is_some(), group.is_some(), "{cgroup}");
        if let (Some((found, id)), Some(end)) = (found, group) {
            assert_eq!(id, ID);
            assert!(found.ends_with(end) && cgroup.starts_with(found), "{found}");
        }
    }
    // Podman's monitor is not in the container whose number it has in its name.
    let monitor = format!("/machine.slice/libpod-conmon-{ID}.scope");
    assert_eq!(group_of(&monitor), None);
    // A pod's number is no container's.
    let pod = ID.replace('3', "7");
    for around in [
        format!("/machine.slice/machine-libpod_pod_{pod}.slice"),
        format!("/libpod_parent/{pod}"),
    ] {
        assert_eq!(group_of(&around), None);
        let inside = format!("{around}/libpod-{ID}.scope");
        let below = format!("{inside}/container");
        assert_eq!(group_of(&below), Some((inside.as_str(), ID)));
    }
    let alone = format!("/libpod_parent/libpod-{ID}");
    assert_eq!(group_of(&alone), Some((alone.as_str(), ID)));
    // Of containers in each other the outer one counts: its runtime is this host's.
    let inner = format!("/docker/{ID}/docker/{}", ID.replace('3', "4"));
    assert_eq!(group_of(&inner).unwrap().0, format!("/docker/{ID}"));
}

#[test]
fn an_answer_that_is_none_gives_no_labels_and_a_reason() {
    let group = format!("/docker/{ID}");
    let own = std::process::id();
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n";
    let old = b"HTTP/1.0 400 \x1b[2J\r\n\r\nclient version 1.24 is too old";
    for (answer, told) in [
        (
            b"HTTP/1.0 404 Not Found\r\n\r\n{}".to_vec(),
            "no container runtime knows it, of ",
        ),
        (
            old.to_vec(),
            "the answer is \"HTTP/1.0 400 \\u{1b}[2J client version 1.24 is too old",
        ),
        (b"hello\r\n".to_vec(), "the answer is no HTTP"),
        (
            b"HTTP/1.0 200 OK\r\n\r\n[]".to_vec(),
            "the answer is not Docker's",
        ),
        (chunked.to_vec(), "the answer is not Docker's"),
        (
            vec![b'x'; MAX_ANSWER as usize + 1],
            "the answer has more than 1048576 bytes",
        ),
        (
            found(own, "{\"app\":\"web\"}"),
            "is not in its control group",
        ),
        (found(0, "{\"app\":\"web\"}"), "is not in its control group"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (path, serve) = runtime(dir.path(), vec![answer]);
        let until = Instant::now() + Duration::from_secs(20);
        let known = Shared::default().ask(&at(&[path]), &group, ID, until);
        serve.join().unwrap();
        assert!(why(&known).contains(told), "{}", why(&known));
    }
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.sock");
    let until = Instant::now() + PER_QUESTION;
    let known = Shared::default().ask(&at(std::slice::from_ref(&absent)), &group, ID, until);
    assert!(why(&known).contains("no container runtime is there, of "));
    // The next runtime is asked, and the mistake of one that answers goes before.
    let (path, serve) = runtime(dir.path(), vec![b"nonsense".to_vec()]);
    let until = Instant::now() + Duration::from_secs(20);
    let known = Shared::default().ask(&at(&[absent, path]), &group, ID, until);
    serve.join().unwrap();
    assert!(why(&known).contains("runtime.sock: the answer is no HTTP"));
}

#[test]
fn labels_are_those_of_the_group_of_the_first_process() {
    let inspected = |labels: &str| {
        let text = found(1, labels);
        let at = text.windows(4).position(|f| f == b"\r\n\r\n").unwrap();
        serde_json::from_slice::<Inspected>(&text[at + 4..]).unwrap()
    };
    let group = format!("/docker/{ID}");
    for first in [group.clone(), format!("{group}/init")] {
        let labels = inspected("{\"app\":\"web\"}").labels_at(&first, &group);
        assert_eq!(labels.unwrap()["app"], "web");
    }
    let none = inspected("null").labels_at(&group, &group).unwrap();
    assert!(none.is_empty());
    for first in ["", "/", "/docker", &format!("/own/docker/{ID}")] {
        let error = inspected("null").labels_at(first, &group).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("is not in its control group"), "{error}");
    }
    let many = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_LABELS));
    let error = inspected(&many).labels_at(&group, &group).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("65537 bytes; allowed: 65536"), "{error}");
}

/// A runtime that stands still holds up nobody for longer than it may.
#[test]
fn a_runtime_that_does_not_answer_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mute.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let error = inspect(&path, ID, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // Its queue is full, too.
    let full: Vec<_> = (0..5000)
        .map_while(|_| {
            let stream = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
            let stream = stream.unwrap();
            stream.set_nonblocking(true).unwrap();
            let address = socket2::SockAddr::unix(&path).unwrap();
            stream.connect(&address).ok().map(|()| stream)
        })
        .collect();
    assert!(!full.is_empty());
    for within in [Duration::from_millis(50), Duration::ZERO] {
        assert!(inspect(&path, ID, within).is_err());
    }
    drop(full);
    // Once it has had its time it is not asked for a while, and the next one is.
    let group = format!("/docker/{ID}");
    let shared = Shared::default();
    let until = || Instant::now() + Duration::from_secs(60);
    let sockets = [path.clone(), dir.path().join("absent.sock")];
    let told = why(&shared.ask(&at(&sockets), &group, ID, until()));
    assert!(told.contains("mute.sock"), "{told}");
    for _ in 0..100 {
        let told = why(&shared.ask(&at(&sockets), &group, ID, until()));
        let wanted = "mute.sock: it has not answered in time";
        assert!(told.contains(wanted), "{told}");
    }
    // Without time nobody is asked.
    let told = why(&Shared::default().ask(&at(&sockets), &group, ID, Instant::now()));
    assert!(told.contains("there was no time left"), "{told}");
    drop(listener);
}

#[test]
fn what_is_remembered_and_what_waits_is_bounded() {
    let containers = Containers::default();
    let group = |n: usize| format!("/docker/{n:064x}");
    {
        let mut table = containers.0.table();
        // Nobody asks.
        table.is_started = true;
        for n in 0..=MAX_KNOWN {
            let known = Known {
                labels: Ok(BTreeMap::new()),
                at: Instant::now(),
                is_said: true,
                owner: 0,
            };
            table.note(group(n), known);
        }
    }
    let status = containers.status();
    assert_eq!((status.known, status.waiting), (MAX_KNOWN, 0));
    assert!(containers.of(&group(1), 1).is_some());
    // The first one has made room.
    assert_eq!(containers.of(&group(0), 1), None);
    for n in 0..=MAX_WAITING {
        assert_eq!(containers.of(&group(100_000 + n), 7), None);
    }
    let status = containers.status();
    assert_eq!((status.waiting, status.put_off), (MAX_WAITING, 2));
    for pid in 0..=MAX_PROCESSES as u32 {
        assert_eq!(containers.of(&group(0), 1000 + pid), None);
    }
    let mut table = containers.0.table();
    assert_eq!(table.waiting[&group(0)].processes.len(), MAX_PROCESSES);
    // Who has come first is asked for first.
    assert_eq!(table.order.len(), MAX_WAITING);
    assert_eq!(table.order.front(), Some(&group(0)));
    // Who has waited asks again.
    table.release_all();
    drop(table);
    assert_eq!(containers.take_answered().len(), MAX_PROCESSES + 1);
    // No process of none is asked about.
    assert_eq!(
        containers.of("/system.slice/a.service", 1),
        Some((Container::None, None))
    );
}

/// Who may make control groups names them as he likes.
#[test]
fn control_groups_of_one_user_keep_no_containers_of_others_out() {
    let containers = Containers::default();
    let group = |owner: u32, n: usize| format!("/{owner}/docker/{n:064x}");
    let share = MAX_KNOWN / OWNERS;
    let mut table = containers.0.table();
    let now = Instant::now();
    let mut note = |owner: u32, n: usize| {
        let known = Known {
            labels: Ok(BTreeMap::new()),
            at: now + Duration::from_millis(n as u64),
            is_said: true,
            owner,
        };
        table.note(group(owner, n), known);
        let of = |is: u32| table.known.values().filter(|one| one.owner == is).count();
        (of(owner), table.known.len())
    };
    for n in 0..share {
        note(0, n);
    }
    for n in 0..MAX_KNOWN * 2 {
        note(1000, n);
    }
    assert_eq!(note(1000, MAX_KNOWN * 2), (share, share * 2));
    for owner in 1001..1010 {
        for n in 0..share {
            note(owner, n);
        }
    }
    // All users together leave root a part; of all the oldest goes for another one of his.
    assert_eq!(note(0, 0), (share, MAX_KNOWN));
    assert_eq!(note(0, share), (share, MAX_KNOWN));
    // So it is with those that wait.
    let mut wait = |owner: u32, n: usize| {
        let group = group(owner, MAX_KNOWN * 4 + n);
        containers.wait_for(&mut table, &group, || owner)
    };
    let most = MAX_WAITING / OWNERS;
    assert!((0..most).all(|n| wait(1000, n)) && !wait(1000, most));
    assert!(wait(1000, 0), "it waits already");
    assert!(wait(1001, 0) && wait(0, 0));
    assert_eq!(table.put_off, 1);
}

#[test]
fn control_groups_of_root_are_roots() {
    for group in ["/", "/docker/abc", "/system.slice/none/at/all"] {
        assert_eq!(owner_of_group(group), 0, "{group}");
    }
}

/// A container without labels is asked for again, and not before its time.
#[test]
fn a_container_that_was_not_known_is_found_again() {
    let containers = Containers::default();
    let group = format!("/docker/{ID}");
    let note = |labels, at, is_said| {
        let known = Known {
            labels,
            at,
            is_said,
            owner: 0,
        };
        containers.0.table().note(group.clone(), known);
    };
    let without = || Err(NoLabels("x".into()));
    containers.0.table().is_started = true;
    note(without(), Instant::now(), true);
    let groups = [group.as_str()];
    assert!(containers.found_again(groups.into_iter()).is_empty());
    assert_eq!(containers.status().waiting, 0);
    let (container, why) = containers.of(&group, 1).unwrap();
    assert_eq!(
        (container, why),
        (Container::Unknown, Some(NoLabels("x".into())))
    );
    if let Some(before) = Instant::now().checked_sub(AGAIN) {
        note(without(), before, true);
        assert!(containers.found_again(groups.into_iter()).is_empty());
        assert_eq!(containers.status().waiting, 1);
    }
    note(Ok(BTreeMap::new()), Instant::now(), true);
    assert_eq!(
        containers.found_again(groups.into_iter()),
        [group.clone()].into()
    );
    // That no runtime can be asked any more takes no labels away; that none knows it does.
    note(without(), Instant::now(), false);
    assert_eq!(containers.status().known, 1);
    note(without(), Instant::now(), true);
    assert_eq!(containers.status().known, 0);
    note(Ok(BTreeMap::new()), Instant::now(), true);
    // Other runtimes have not been asked yet.
    let other = || at(&["/run/other.sock".into()]);
    assert!(containers.ask_these(other()) && !containers.ask_these(other()));
    assert_eq!(containers.status().known, 0);
}

/// Of a container of Kubernetes files are read first; a runtime with Docker's API is asked where
/// they do not have it, as under cri-dockerd.
#[test]
fn containers_of_kubernetes_are_found_in_bundles_and_at_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let until = || Instant::now() + Duration::from_secs(20);
    let group = format!("/kubepods/podx/{ID}");
    let bundles = dir.path().join("bundles");
    let absent = dir.path().join("absent.sock");
    let sources = Sources {
        sockets: vec![absent.clone()],
        bundles: vec![bundles.clone()],
    };
    let shared = Shared::default();
    let known = shared.ask(&sources, &group, ID, until());
    let told = format!(
        "no container runtime is there, of {}, {}",
        absent.display(),
        bundles.display()
    );
    assert_eq!((why(&known), known.is_said), (told, false));
    std::fs::create_dir_all(bundles.join(ID)).unwrap();
    let file = bundles.join(ID).join("config.json");
    let config = |group: &str| {
        format!(
            "{{\"annotations\":{{\"io.kubernetes.cri.sandbox-namespace\":\"shop\"}},\"linux\":{{\"cgroupsPath\":\"{group}\"}}}}"
        )
    };
    std::fs::write(&file, config(&group)).unwrap();
    let known = shared.ask(&sources, &group, ID, until());
    assert_eq!(known.labels.unwrap()["io.kubernetes.pod.namespace"], "shop");
    assert!(known.is_said);
    // Another group of that number, and one that is none of Kubernetes'.
    std::fs::write(&file, config("/kubepods/pody")).unwrap();
    let known = shared.ask(&sources, &group, ID, until());
    assert!(why(&known).contains("its control group is"));
    let docker = format!("/docker/{ID}");
    std::fs::write(&file, config(&docker)).unwrap();
    let known = shared.ask(&sources, &docker, ID, until());
    assert!(why(&known).contains("no container runtime is there"));
}

//! Lists and the allow list while they change: nobody slips by, and what cannot
//! be put leaves nothing behind.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// While somebody takes the rules away, so that all of it is written again, the
/// allow list changes all the time: neither is in the other's way.
#[test]
fn root_ipset_allow_list_changes_while_all_is_written_again() {
    if skipped(&PROGRAMS) {
        return;
    }
    const CHANGES: usize = 25;
    let net = TestNet::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let weir = Weir::new(&net.host, "");
    let office: String = (0..20_000u32)
        .map(|n| {
            let v4 = IpAddr::from((0x0b00_0000 + 2 * n).to_be_bytes());
            format!("{v4}\n2001:db8:a:{n:x}::1\n")
        })
        .collect();
    fs::write(weir.path("office.txt"), office).unwrap();
    let list = format!(
        "[list.office]\nfile = {:?}\naction = \"allow\"\n",
        weir.path("office.txt")
    );
    weir.configure(&config(case, &list));
    let mut weir = weir;
    weir.run();
    weir.ask(&["ban", "198.18.0.0/16", "--for", "1h"]).done();
    let stop = AtomicBool::new(false);
    let times = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (net, stop, times) = (&net, &stop, &times);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                net.host.run("iptables", &["-t", "raw", "-F"]).unwrap();
                soon("all of it to be written again", || {
                    let saved = net.host.output("iptables-save", &["-t", "raw"]).unwrap();
                    let saved = String::from_utf8(saved.stdout).unwrap();
                    saved.contains("-A PREROUTING -j weir_").then_some(())
                });
                times.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 0..CHANGES {
            let who = format!("198.18.0.{n}");
            weir.ask(&["allow", "add", &who]).done();
            weir.ask(&["allow", "del", &who]).done();
        }
    });
    println!("all was written {times:?} times");
    assert!(!weir.said().contains("ERROR"), "{}", weir.said());
    weir.ask(&["allow", "add", "198.18.0.7"]).done();
    let saved = net.host.output("ipset", &["save"]).unwrap();
    let saved = String::from_utf8(saved.stdout).unwrap();
    assert!(!saved.contains(".new"), "a set that was filled is left");
    for (family, host) in [(4, "198.18.0.7"), (6, "2001:db8:a:4e1f::1")] {
        let elements = saved
            .lines()
            .filter(|line| line.starts_with("add ") && line.contains(&format!(".allow{family} ")));
        let (count, found) = elements.fold((0, false), |(count, found), line| {
            (count + 1, found || line.ends_with(&format!(" {host}")))
        });
        assert!(count >= 20_000 && found, "allow{family}: {count} entries");
    }
}

/// Allowed addresses of thousands, as a list of one's own.
fn office(weir: &Weir) -> String {
    let office: String = (0..5000u32)
        .map(|n| {
            let v4 = IpAddr::from((0x0b00_0000 + 2 * n).to_be_bytes());
            format!("{v4}\n2001:db8:a:{n:x}::1\n")
        })
        .collect();
    let file = weir.path("office.txt");
    fs::write(&file, office).unwrap();
    format!("[list.office]\nfile = {file:?}\naction = \"allow\"\n")
}

/// The allow list changes all the time, and bans that begin to touch it move to
/// other sets: who is allowed before and after gets every packet through though
/// somebody has banned his network, and who never was gets none.
#[test]
fn root_nobody_slips_by_while_the_allow_list_changes() {
    if skipped(&PROGRAMS) {
        return;
    }
    const CHANGES: usize = 12;
    const KILLS: usize = 4;
    for backend in ["nft", "ipset"] {
        println!("{backend}");
        let net = TestNet::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let mut weir = Weir::new(&net.host, "");
        let more = format!("allow = {CUSTOMER:?}\n{}", office(&weir));
        weir.configure(&config(case, &more));
        weir.run();
        for subject in [
            "203.0.113.0/24",
            "2001:db8:c::/48",
            "198.51.100.0/24",
            "2001:db8:bad::/48",
        ] {
            weir.ask(&["ban", subject, "--for", "1h"]).done();
        }
        let server = UdpServer::start(&net.host, any(PORT)).unwrap();
        let _shop = UdpServer::start(&net.host, any(PORT + 1)).unwrap();
        let traffic = Traffic::default();
        for is_killed in [false, true] {
            traffic.flows(&net, PORT, || {
                for turn in 0..if is_killed { KILLS } else { CHANGES } {
                    if is_killed {
                        weir.kill();
                        weir.run();
                    }
                    // Beside the attackers, and somewhere else.
                    let who = ["198.51.100.9", "2001:db8:bad::9", "11.9.9.9"];
                    for verb in ["add", "del"] {
                        for who in who {
                            weir.ask(&["allow", verb, who]).done();
                        }
                    }
                    assert_eq!(server.received(), 0, "{backend}, {is_killed}, {turn}");
                }
            });
            let Traffic { denied, customers } = &traffic;
            println!("killed: {is_killed}; {denied:?} denied packets, none passed");
            all_arrived(&net, customers.load(Ordering::Relaxed));
        }
    }
}

/// Lists come and go in front of others, which have another number for it: who
/// is listed before and after gets no packet through.
#[test]
fn root_ipset_lists_hold_while_others_come_and_go() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let mut weir = Weir::new(&net.host, "");
    let list = |name: &str, text: &str| {
        let file = weir.path(&format!("{name}.txt"));
        fs::write(&file, text).unwrap();
        format!("[list.{name}]\nfile = {file:?}\n")
    };
    let listed = list("m", &ATTACKER.join("\n")) + &list("n", &OTHER.join("\n"));
    // Of documentation's and tests' networks, none of them a sender.
    let many: String = (0..5000u32)
        .map(|n| format!("198.19.{}.{}\n2001:db8:f00:{n:x}::1\n", n >> 6, n % 64 * 2))
        .collect();
    let front = list("a", &many);
    let without = config(case, &listed);
    let with = config(case, &(front + &listed));
    weir.configure(&without);
    weir.run();
    let server = UdpServer::start(&net.host, any(PORT)).unwrap();
    let denied = [ATTACKER, OTHER].concat();
    let sent = Stream::beside(&net, &denied, PORT, |_| {
        for turn in 0..8 {
            for config in [&with, &without] {
                weir.configure(config);
                match turn {
                    0..5 => {
                        weir.ask(&["reload"]).done();
                    }
                    // Another order of lists than the one in the kernel.
                    _ => {
                        weir.kill();
                        weir.run();
                    }
                }
                let front = config == &with;
                soon("the lists as they are configured", || {
                    let said = weir.why("198.19.0.2")["verdict"] == "listed";
                    (said == front).then_some(())
                });
                assert_eq!(server.received(), 0, "turn {turn}: a listed packet passed");
            }
        }
    });
    println!("{sent} denied packets, none passed");
    // A set that a rule of before still holds goes a second later.
    soon("no set of a list to be left behind", || {
        let sets = net.host.output("ipset", &["list", "-name"]).unwrap();
        let sets = String::from_utf8(sets.stdout).unwrap();
        let lists = sets.lines().filter(|set| set.contains(".list")).count();
        (lists == 4).then_some(())
    });
}

/// Lists that ipset does not take, here because somebody has a set of our name: what
/// was made for them goes at each attempt, and what is in force stays. The same
/// where every number for sets is taken.
#[test]
fn root_ipset_lists_that_cannot_be_put_leave_nothing_behind() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let mut weir = Weir::new(&net.host, "");
    let file = weir.path("bad.txt");
    let list = |who: &[&str]| fs::write(&file, who.join("\n")).unwrap();
    list(&ATTACKER);
    weir.configure(&config(case, &format!("[list.bad]\nfile = {file:?}\n")));
    weir.run();
    let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    let run = |program: &str, args: &[&str]| net.host.run(program, args).unwrap();
    let sets = || {
        let sets = net.host.output("ipset", &["list", "-name"]).unwrap();
        let sets = String::from_utf8(sets.stdout).unwrap();
        sets.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let base = sets()
        .iter()
        .find_map(|set| set.strip_suffix(".allow4").map(str::to_owned))
        .unwrap();
    // Rules of somebody else's hold sets.
    let hold = |set: &str, verb: &str| {
        let rule = ["-m", "set", "--match-set", set, "dst"];
        run(
            "iptables",
            &[&["-t", "raw", verb, "OUTPUT"][..], &rule].concat(),
        );
    };
    let in_force = |listed: &[&str], others: &[&str]| {
        for (all, is_listed) in [(listed, true), (others, false)] {
            for who in all {
                let to = at(usize::from(who.contains(':')), PORT);
                match is_listed {
                    true => assert!(!net.connects(who, to), "{who}"),
                    false => net.serves(who, to),
                }
            }
        }
    };
    in_force(&ATTACKER, &OTHER);
    let usual = sets().len();

    let aside = format!("{base}.new");
    run("ipset", &["create", &aside, "hash:ip"]);
    hold(&aside, "-A");
    list(&OTHER);
    weir.ask(&["list", "refresh"]);
    soon("the error to be told", || {
        let said = weir.ask(&["status"]).out;
        said.contains("cannot change the sets of ipset")
            .then_some(())
    });
    // It tries again every second: what it made is not there for long.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let there = sets();
        assert!(there.len() <= usual + 3, "{there:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    in_force(&ATTACKER, &OTHER);
    hold(&aside, "-D");
    // Ours to destroy, for want of another owner. IPv6 comes behind IPv4.
    soon("the new list", || {
        let is_listed = |n: usize| !net.connects(OTHER[n], at(n, PORT));
        (is_listed(0) && is_listed(1)).then_some(())
    });
    in_force(&OTHER, &ATTACKER);
    // Each of those that failed writes all sets anew when its turn comes.
    soon("it to work again", || {
        let said = weir.ask(&["status"]).out;
        (!said.contains("cannot change the sets of ipset")).then_some(())
    });
    soon("what is left to go", || {
        (sets().len() == usual).then_some(())
    });

    let number = |set: &str| {
        let rest = set.strip_prefix(&format!("{base}.list"))?;
        rest.get(..1)?.parse::<u8>().ok()
    };
    let numbers: Vec<u8> = sets().iter().filter_map(|set| number(set)).collect();
    let taken: Vec<String> = (0..10)
        .filter(|n| !numbers.contains(n))
        .map(|n| format!("{base}.list{n}-9-4"))
        .collect();
    for set in &taken {
        run("ipset", &["create", set, "hash:net"]);
        hold(set, "-A");
    }
    list(&ATTACKER);
    weir.ask(&["reload"]);
    soon("the error to be told", || {
        let said = weir.ask(&["status"]).out;
        said.contains("cannot make sets of ipset beside those in force")
            .then_some(())
    });
    in_force(&OTHER, &ATTACKER);
    assert_eq!(sets().len(), usual + taken.len());
    for set in &taken {
        hold(set, "-D");
    }
    soon("the new list", || {
        let is_listed = |n: usize| !net.connects(ATTACKER[n], at(n, PORT));
        (is_listed(0) && is_listed(1)).then_some(())
    });
    in_force(&ATTACKER, &OTHER);
    soon("what is left to go", || {
        (sets().len() == usual).then_some(())
    });
}

/// While the rules of iptables cannot be read, each ban is an attempt to write all
/// sets anew: none leaves its copies behind, and the ten numbers last.
#[test]
fn root_ipset_attempts_without_a_look_at_the_rules_leave_nothing_behind() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let mut weir = Weir::new(&net.host, "");
    let (programs, refused) = (weir.path("programs"), weir.path("refused"));
    fs::create_dir(&programs).unwrap();
    let path = std::env::var("PATH").unwrap();
    let program = programs.join("ip6tables-save");
    let text = format!(
        "#!/bin/sh\n[ -e {refused:?} ] && exit 1\nPATH={path:?} exec ip6tables-save \"$@\"\n"
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    weir.env = vec![("PATH", format!("{}:{path}", programs.display()))];
    let file = weir.path("bad.txt");
    fs::write(&file, ATTACKER.join("\n")).unwrap();
    weir.configure(&config(case, &format!("[list.bad]\nfile = {file:?}\n")));
    weir.run();
    let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    weir.ask(&["ban", "198.51.100.200"]).done();
    let sets = || {
        let sets = net.host.output("ipset", &["list", "-name"]).unwrap();
        String::from_utf8(sets.stdout).unwrap().lines().count()
    };
    let usual = sets();
    fs::write(&refused, "").unwrap();
    fs::write(&file, CUSTOMER.join("\n")).unwrap();
    weir.ask(&["list", "refresh"]);
    soon("the error to be told", || {
        let told = weir.said().contains("cannot read the rules of iptables");
        told.then_some(())
    });
    for n in 0..12 {
        weir.ask(&["ban", &format!("198.51.100.{}", 201 + n)]);
        assert!(!net.connects(ATTACKER[0], at(0, PORT)));
    }
    // The last attempt of another thread may be on its way.
    soon("what the attempts made to go", || {
        (sets() <= usual).then_some(())
    });
    fs::remove_file(&refused).unwrap();
    soon("the new list", || {
        (!net.connects(CUSTOMER[0], at(0, PORT))).then_some(())
    });
    net.serves_soon(ATTACKER[0], at(0, PORT));
    soon("what is left to go", || (sets() == usual).then_some(()));
}

/// The allow list may hold everybody: not every kind of set has a length of zero.
#[test]
fn root_everybody_may_be_allowed() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let weir = Weir::start(&net.host, &config(case, ""));
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        for (family, everybody) in ["0.0.0.0/0", "::/0"].into_iter().enumerate() {
            let bad = ATTACKER[family];
            weir.ask(&["ban", bad, "--for", "1h"]).done();
            assert!(!net.connects(bad, at(family, PORT)), "{bad}");
            weir.ask(&["allow", "add", everybody, "--force"]).done();
            net.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", everybody]).done();
            assert!(!net.connects(bad, at(family, PORT)), "{bad}");
            net.serves(CUSTOMER[family], at(family, PORT));
        }
    }
}

//! Pools and reals that commands add and delete while flows live.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::*;

/// Addresses of the pool that is added.
const SHOP: [&str; 2] = ["192.0.2.81", "2001:db8::81"];

/// The reals have the addresses of the pool that will be added, and the balancer does.
fn with_shop(segment: &PoolNetwork) {
    for (namespace, dev) in [
        (&segment.reals[0], "lo"),
        (&segment.reals[1], "lo"),
        (&segment.host, "eth0"),
    ] {
        let [v4, v6] = SHOP;
        namespace
            .ip(&[
                format!("addr add {v4}/32 dev {dev}"),
                format!("addr add {v6}/128 dev {dev} nodad preferred_lft 0"),
            ])
            .unwrap();
    }
}

/// A connection to the pool that was added.
fn open(segment: &PoolNetwork, family: usize) -> Option<Flow> {
    let to = SocketAddr::new(addr(SHOP[family]), 80);
    let from = Some(addr(CLIENT[family]));
    let (stream, _) = traffic::tcp_open(&segment.client, from, to, SILENCE).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    Some(Flow(stream))
}

/// So many new connections to it are served by these.
#[track_caller]
fn served_by(segment: &PoolNetwork, count: usize) -> BTreeSet<usize> {
    let each = (0..count).map(|n| n % 2);
    each.map(|family| {
        let mut flow = open(segment, family).expect("a connection");
        flow.ask(CLIENT[family])
    })
    .collect()
}

#[track_caller]
fn ask_all(flows: &mut [(usize, usize, Flow)]) {
    for (family, number, flow) in flows {
        assert_eq!(flow.ask(CLIENT[*family]), *number);
    }
}

fn add_shop(weir: &Weir, more: &[&str]) -> common::Answer {
    let [v4, v6] = SHOP;
    let usual = [
        "pool",
        "add",
        "shop",
        "--vip",
        v4,
        v6,
        "--port",
        "80/tcp",
        "--check",
        "interval=1s,rise=1",
    ];
    weir.ask(&[&usual, more].concat())
}

/// What a command says of it; on a busy machine its first check may not be over by then.
#[track_caller]
fn is_added(weir: &Weir, said: &str) {
    let words = [0, 1].map(|live| format!("pool shop is added: {live} of 1 reals are live\n"));
    assert!(words.iter().any(|words| words == said), "{said}");
    live_reals(weir, "shop", 1);
}

fn named(weir: &Weir, name: &str) -> Option<Value> {
    let pools = weir.json(&["pool", "list"])["pools"].clone();
    let mut pools = pools.as_array().unwrap().iter();
    pools.find(|pool| pool["name"] == name).cloned()
}

#[track_caller]
fn live_reals(weir: &Weir, name: &str, count: u64) {
    soon(&format!("{count} live reals of {name}"), || {
        (named(weir, name)?["live"] == count).then_some(())
    });
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

fn kept(weir: &Weir) -> Value {
    let text = fs::read_to_string(weir.path("state/pools.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The line of weir.toml with this table.
fn line_of(weir: &Weir, table: &str) -> String {
    let file = weir.path("weir.toml");
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().position(|line| line == table).unwrap() + 1;
    format!("{}:{line}", file.display())
}

#[test]
fn root_a_pool_that_a_command_adds_serves_at_once_and_outlives_a_crash() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let both = BTreeSet::from([0, 1]);
    for backend in ["tcx", "xdp"] {
        let segment = PoolNetwork::new(backend);
        with_shop(&segment);
        let events = segment.dir.path().join("events.json");
        let sink = format!(
            "[sink.log]\nkind = \"file\"\npath = \"{}\"\nevents = [\"pool\"]\n",
            events.display()
        );
        let told = |words: &str| {
            soon(words, || {
                let lines = fs::read_to_string(&events).ok()?;
                lines.contains(words).then_some(())
            });
        };
        let config = config(backend) + &sink;
        let mut weir = Weir::start(&segment.host, &config);
        live_soon(&weir, 2);
        let mut of_web = segment.flows();
        assert!((0..2).all(|family| open(&segment, family).is_none()));

        let added = add_shop(&weir, &["--real", "192.0.2.11,weight=3"])
            .done()
            .out;
        is_added(&weir, &added);
        assert_eq!(served_by(&segment, 10), [0].into());
        ask_all(&mut of_web);
        told("pool shop: added, 192.0.2.81, 2001:db8::81 with 1 real");
        let web = named(&weir, "web").unwrap();
        assert_eq!(web["origin"], line_of(&weir, "[pool.web]"));
        let shop = named(&weir, "shop").unwrap();
        let real = &shop["reals"][0];
        assert_eq!(
            (&shop["origin"], &real["origin"]),
            (&"added".into(), &"added".into())
        );
        assert_eq!(real["weight"], 3);
        let listed = weir.ask(&["pool", "list"]).done().out;
        assert!(
            listed.contains("weir.toml:") && listed.contains("added"),
            "{listed}"
        );

        // Another real takes its share of new flows, and those of the first stay there.
        let mut of_shop: Vec<_> = (0..8)
            .map(|n| (n % 2, 0, open(&segment, n % 2).unwrap()))
            .collect();
        ask_all(&mut of_shop);
        let real = weir.ask(&["real", "add", "shop", REAL[1], "weight=3", "--json"]);
        assert_eq!(real.done().json()["real"]["origin"], "added");
        live_reals(&weir, "shop", 2);
        assert_eq!(served_by(&segment, 40), both);
        told("pool shop: real 192.0.2.12 is added");
        ask_all(&mut of_shop);
        ask_all(&mut of_web);

        // Drained it keeps its flows; deleted it has none, and those of the others stay.
        let mut of_second = soon("a flow to the second real", || {
            let mut flow = open(&segment, 0)?;
            (flow.ask(CLIENT[0]) == 1).then_some(flow)
        });
        let drained = weir.json(&["real", "drain", "shop", REAL[1]]);
        assert_eq!(drained["real"]["mode"], "draining", "{drained}");
        assert_eq!(served_by(&segment, 20), [0].into());
        assert_eq!(of_second.ask(CLIENT[0]), 1);
        weir.ask(&["real", "del", "shop", REAL[1]]).done();
        told("pool shop: real 192.0.2.12 is deleted");
        assert_eq!(served_by(&segment, 20), [0].into());
        ask_all(&mut of_shop);
        ask_all(&mut of_web);
        // A real that is back has what it was told forgotten.
        weir.ask(&["real", "add", "shop", REAL[1], "weight=3"])
            .done();
        live_reals(&weir, "shop", 2);
        assert_eq!(served_by(&segment, 40), both);

        // SIGKILL, a restart and a reload change nothing of it.
        weir.kill();
        assert_eq!(served_by(&segment, 40), both);
        weir.run();
        live_reals(&weir, "shop", 2);
        live_reals(&weir, "web", 2);
        assert_eq!(served_by(&segment, 40), both);
        weir.ask(&["reload"]).done();
        ask_all(&mut of_shop);
        ask_all(&mut of_web);
        assert_eq!(named(&weir, "shop").unwrap()["origin"], "added");
        assert_eq!(alerts(&weir), "[]");

        weir.ask(&["pool", "del", "shop"]).done();
        told("pool shop: deleted");
        assert!((0..2).all(|family| open(&segment, family).is_none()));
        ask_all(&mut of_web);
        assert!(named(&weir, "shop").is_none());
        assert_eq!(kept(&weir), serde_json::json!({ "pools": [], "reals": [] }));
        weir.kill();
        weir.run();
        assert!(named(&weir, "shop").is_none());
    }
}

/// What a file says holds; what was added waits, and an alert says so.
#[test]
fn root_a_pool_of_the_configuration_goes_before_one_that_was_added() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    with_shop(&segment);
    let plain = config("tcx");
    let mut weir = Weir::start(&segment.host, &plain);
    live_soon(&weir, 2);
    add_shop(&weir, &["--real", REAL[0]]).done();
    let reals = format!("reals = [{{ address = \"{}\" }}]", REAL[1]);
    let same_name =
        format!("{plain}[pool.shop]\nvip = [\"192.0.2.82\"]\nports = [\"80/tcp\"]\n{reals}\n");
    let same_vip = format!(
        "{plain}[pool.other]\nvip = [\"{}\"]\nports = [\"80/tcp\"]\n{reals}\n",
        SHOP[0]
    );
    let is_back = |weir: &Weir| {
        weir.configure(&plain);
        weir.ask(&["reload"]).done();
        live_reals(weir, "shop", 1);
        assert_eq!(served_by(&segment, 10), [0].into());
        assert_eq!(alerts(weir), "[]");
    };
    for restarts in [false, true] {
        let goes_on = |weir: &mut Weir, config: &str, why: &str| {
            weir.configure(config);
            let warned = format!("pool shop, added by a command, is not in force: {why}");
            let checked = weir.ask(&["check", "--json"]).json()["warnings"].to_string();
            assert!(checked.contains(&warned.replace('"', "\\\"")), "{checked}");
            match restarts {
                false => {
                    let reloaded = weir.ask(&["reload"]).done().out;
                    assert!(reloaded.contains(&warned), "{reloaded}");
                }
                true => {
                    weir.kill();
                    weir.run();
                }
            }
        };
        weir.configure(&same_name);
        let place = line_of(&weir, "[pool.shop]");
        let why = format!("there is a pool shop in the configuration already ({place})");
        goes_on(&mut weir, &same_name, &why);
        assert_eq!(named(&weir, "shop").unwrap()["origin"], place);
        assert!(alerts(&weir).contains(&why), "{}", alerts(&weir));
        let listed = weir.ask(&["pool", "list"]).done();
        assert!(listed.err.contains(&why), "{listed:?}");
        let listed = weir.ask(&["pool", "list", "--json"]).done();
        assert!(listed.err.contains(&why), "{listed:?}");
        assert_eq!(listed.json()["not_in_force"][0]["why"], why.as_str());
        is_back(&weir);

        let why = "[pool.shop] serves 80/tcp of 192.0.2.81, which [pool.other] serves";
        goes_on(&mut weir, &same_vip, why);
        live_reals(&weir, "other", 1);
        assert!(named(&weir, "shop").is_none());
        assert!(alerts(&weir).contains(why), "{}", alerts(&weir));
        assert_eq!(open(&segment, 0).unwrap().ask(CLIENT[0]), 1);
        is_back(&weir);
    }

    // Without [balance] it cannot be in force; the daemon runs, and says why.
    weir.kill();
    weir.configure("interfaces = [\"eth0\"]\nbackend = \"tcx\"\n");
    weir.run();
    assert!(alerts(&weir).contains("the configuration has no [balance]"));
    assert!(named(&weir, "shop").is_none());
    weir.ask(&["real", "weight", "shop", REAL[0], "5"])
        .refused(&["there is no pool shop"]);
    weir.ask(&["pool", "del", "shop"]).done();
    assert_eq!(alerts(&weir), "[]");

    // The first pool of a daemon may be one that is added.
    weir.configure("interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[balance]\ninterface = \"eth0\"\n");
    weir.kill();
    weir.run();
    let added = add_shop(&weir, &["--real", REAL[0]]).done().out;
    is_added(&weir, &added);
    assert_eq!(served_by(&segment, 10), [0].into());
    assert_eq!(alerts(&weir), "[]");

    // What cannot be read is an alert, stays as it is, and lets nothing be added.
    weir.kill();
    fs::write(weir.path("state/pools.json"), "{").unwrap();
    weir.run();
    assert!(
        alerts(&weir).contains("state/pools.json: EOF"),
        "{}",
        alerts(&weir)
    );
    add_shop(&weir, &["--real", REAL[0]]).refused(&["cannot read", "mend it or remove it"]);
    assert_eq!(
        fs::read_to_string(weir.path("state/pools.json")).unwrap(),
        "{"
    );
}

/// A real that is added to a pool of the configuration, and what is refused.
#[test]
fn root_what_cannot_be_added_or_deleted_is_refused_with_the_reason() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    with_shop(&segment);
    let [one, two] = REAL;
    let reals = format!("[{{ address = \"{one}\" }}, {{ address = \"{two}\" }}]");
    let config = config("tcx").replace(&reals, &format!("[{{ address = \"{one}\" }}]"));
    let mut weir = Weir::start(&segment.host, &config);
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(10), [0].into());
    weir.ask(&["real", "add", "web", two]).done();
    live_soon(&weir, 2);
    let mut flows = segment.flows();
    weir.ask(&["real", "weight", "web", two, "0"]).done();
    weir.kill();
    weir.run();
    live_soon(&weir, 1);
    ask_all(&mut flows);
    let shown = pool(&weir);
    let origins: Vec<_> = { shown["reals"].as_array().unwrap().iter() }
        .map(|real| real["origin"].as_str().unwrap())
        .collect();
    let place = line_of(&weir, "[pool.web]");
    let place = place.rsplit_once(':').unwrap().0;
    assert!(
        origins[0].starts_with(place) && origins[1] == "added",
        "{origins:?}"
    );
    assert_eq!(shown["reals"][1]["weight"], 0, "{shown}");

    let place = line_of(&weir, "[pool.web]");
    weir.ask(&["pool", "del", "web"])
        .refused(&[&format!("pool web is defined in {place}: remove it there")]);
    weir.ask(&["pool", "del", "nobody"])
        .refused(&["there is no added pool nobody; there are: none"]);
    weir.ask(&["real", "del", "web", one])
        .refused(&["192.0.2.11 of pool web is defined in ", "weir.toml:"]);
    weir.ask(&["real", "del", "web", "192.0.2.99"])
        .refused(&["there is no real 192.0.2.99 in pool web; there are: 192.0.2.11, 192.0.2.12"]);
    weir.ask(&["real", "add", "nobody", two])
        .refused(&["there is no pool nobody; there are: web"]);
    weir.ask(&["real", "add", "web", two])
        .refused(&["pool web has 192.0.2.12 already (added by a command)"]);
    weir.ask(&["real", "add", "web", "192.0.2.13", "weigth=2"])
        .refused(&["unknown key \"weigth\"", "weight"]);
    weir.ask(&["real", "add", "web", "192.0.2.13", "weight=1001"])
        .refused(&["weight in [pool.web.reals] is 1001; allowed: a whole number 0-1000"]);
    weir.ask(&["real", "add", "web", VIP[0]])
        .refused(&["192.0.2.80, a virtual address"]);
    let before = weir.json(&["pool", "list"])["pools"][0]["reals"].to_string();
    let real = ["--real", one];
    for (more, words) in [
        (
            &["--method", "fastest"][..],
            &[
                "method in [pool.shop] is \"fastest\"",
                "\"maglev\", \"source-hash\"",
            ][..],
        ),
        (
            &["--forward", "nat"],
            &[
                "forward in [pool.shop] is \"nat\"",
                "\"l2\", \"ipip\", \"gue\", \"proxy\"",
            ],
        ),
        (
            &["--set", "slow_start=2d"],
            &["slow_start in [pool.shop] is \"2d\"; allowed: 0s-1h"],
        ),
        (
            &["--set", "colour=red"],
            &["unknown key \"colour\" in [pool.shop]"],
        ),
        (
            &["--set", "acl=[\"deny 203.0.113.0/24\"]"],
            &["without acl_default"],
        ),
        (
            &["--set", "vip=x"],
            &["--set has vip, which has an option of its own"],
        ),
        (
            &["--emergency", "backup"],
            &["emergency in [pool.shop] is \"backup\"", "(web)"],
        ),
        (
            &["--real", "192.0.2.12,weight"],
            &["--real has \"weight\"; allowed: KEY=VALUE"],
        ),
        (
            &["--real", one],
            &["reals in [pool.shop] has 192.0.2.11 twice"],
        ),
        (
            &["--vip", "192.0.2.300"],
            &["vip in [pool.shop] has \"192.0.2.300\"; allowed: an address"],
        ),
        (
            &["--vip", VIP[0]],
            &["[pool.shop] serves 80/tcp of 192.0.2.80, which [pool.web] serves"],
        ),
        (
            &["--port", "80/sctp"],
            &["ports in [pool.shop] has \"80/sctp\""],
        ),
        (
            &["--forward", "proxy", "--port", "81/tcp"],
            &["CAP_NET_BIND_SERVICE", "needs a restart"],
        ),
    ] {
        let refused = add_shop(&weir, &[&real, more].concat());
        refused.refused(words);
    }
    add_shop(&weir, &["--real", "192.0.2.11,weight=x"])
        .refused(&["weight in [pool.shop.reals] is \"x\"; allowed: a whole number 0-1000"]);
    weir.ask(&[
        "pool", "add", "a b", "--vip", SHOP[0], "--port", "80/tcp", "--real", one,
    ])
    .refused(&["pool name \"a b\"; allowed: 1-"]);
    weir.ask(&[
        "pool", "add", "web", "--vip", SHOP[0], "--port", "80/tcp", "--real", one,
    ])
    .refused(&["there is a pool web in the configuration already", &place]);
    let many: Vec<_> = (0..6000)
        .map(|n| format!("198.51.{}.{}", 100 + n / 200, 1 + n % 200))
        .collect();
    add_shop(&weir, &["--real", one, "--vip", &many.join(",")]).refused(&["more than 65536 bytes"]);
    // Nothing of all that is there, or on disk.
    assert_eq!(
        weir.json(&["pool", "list"])["pools"][0]["reals"].to_string(),
        before
    );
    assert_eq!(kept(&weir)["pools"], serde_json::json!([]));

    // A pool that another one needs stays, and the last real of one does.
    add_shop(&weir, &real).done();
    add_shop(&weir, &real).refused(&["there is a pool shop already, added by a command"]);
    weir.ask(&["real", "del", "shop", one])
        .refused(&["192.0.2.11 is the last real of pool shop; weir pool del shop"]);
    let needs = [
        "pool", "add", "needs", "--vip", SHOP[0], "--port", "8080/tcp", "--real", one,
    ];
    let more = ["--emergency", "shop", "--check", "port=80"];
    weir.ask(&[&needs[..], &more].concat()).done();
    weir.ask(&["pool", "del", "shop"]).refused(&[
        "pool needs needs it",
        "emergency in [pool.needs] is \"shop\"",
    ]);
    assert_eq!(served_by(&segment, 10), [0].into());
    weir.ask(&["pool", "del", "needs"]).done();
    weir.ask(&["pool", "del", "shop"]).done();

    ask_all(&mut flows);
    // What cannot be saved is in force all the same, is said, and is saved by a reload.
    let obstacle = weir.path("state/pools.json.new");
    fs::create_dir(&obstacle).unwrap();
    let deleted = weir.ask(&["real", "del", "web", two]).done();
    assert!(deleted.err.contains("warning: not saved: "), "{deleted:?}");
    assert_eq!(segment.all_served_by(10), [0].into());
    let why = "the next start has the pools as they were last saved";
    assert!(alerts(&weir).contains(why), "{}", alerts(&weir));
    assert_eq!(kept(&weir)["reals"].as_array().unwrap().len(), 1);
    fs::remove_dir(&obstacle).unwrap();
    weir.ask(&["reload"]).done();
    assert_eq!(kept(&weir)["reals"], serde_json::json!([]));
    assert_eq!(alerts(&weir), "[]");
}

/// Descriptors and files of the daemon.
fn held(weir: &Weir) -> (usize, Vec<String>, u64) {
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let descriptors = names(Path::new(&format!("/proc/{}/fd", weir.pid()))).len();
    let pins = Path::new("/sys/fs/bpf/weir").join(&weir.instance);
    let length = fs::metadata(weir.path("state/pools.json")).unwrap().len();
    (descriptors, names(&pins), length)
}

/// What is added and deleted leaves nothing in the kernel, in the daemon or on disk, and
/// flows of other pools stay.
#[test]
fn root_five_hundred_pools_added_and_deleted_leave_nothing() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    with_shop(&segment);
    let weir = Weir::start(&segment.host, &config("tcx"));
    live_soon(&weir, 2);
    let mut flows = segment.flows();
    let mut before = None;
    for n in 0..500 {
        let name = format!("p{n}");
        let ports = format!("{}-{}/tcp", 1024 + n, 1031 + n);
        let [v4, v6] = SHOP;
        weir.ask(&[
            "pool",
            "add",
            &name,
            "--vip",
            v4,
            v6,
            "--port",
            "80/tcp",
            &ports,
            "--real",
            REAL[0],
            REAL[1],
            "--check",
            "vip=false",
        ])
        .done();
        if n % 100 == 0 {
            live_reals(&weir, &name, 2);
            served_by(&segment, 2);
            weir.ask(&["real", "drain", &name, REAL[0]]).done();
            ask_all(&mut flows);
        }
        weir.ask(&["pool", "del", &name]).done();
        // By now each socket is open that pools of the file take; those of checks come and go.
        if n == 100 {
            let samples = (0..20).map(|_| {
                thread::sleep(Duration::from_millis(50));
                held(&weir)
            });
            before = Some((samples.min().unwrap(), weir.resident()));
        }
    }
    let (before, resident) = before.unwrap();
    let begin = Instant::now();
    while held(&weir) != before && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(held(&weir), before, "the daemon holds what it held");
    assert!(
        weir.resident() < resident + 8 * 1024,
        "{resident} KiB before"
    );
    ask_all(&mut flows);
    let reals = fs::read_to_string(weir.path("state/reals.json")).unwrap();
    assert_eq!(reals, "[]");
    assert_eq!(
        weir.json(&["pool", "list"])["pools"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(alerts(&weir), "[]");
}

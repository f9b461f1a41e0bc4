//! `weir-bench hooks`, small: that every row is given the same packets and
//! drops all of them by its own counter, that a hook that is not there is
//! named and the others go on, that a real interface is left as it was, and
//! that nothing remains.

use std::{
    io::{BufRead, BufReader},
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use weir_netlab::{FakeHost, Namespace, Net, Side, Veth, VethOpts};

const BENCH: &str = env!("CARGO_BIN_EXE_weir-bench");
/// Rows whose hooks lose nothing; what they need beside a kernel.
const ROWS: [(&str, Option<&str>); 17] = [
    ("cbpf-socket", None),
    ("ebpf-socket", None),
    ("iptables-input", Some("iptables")),
    ("iptables-raw", Some("iptables")),
    ("nft-prerouting", Some("nft")),
    ("netfilter-bpf", None),
    ("nft-ingress", Some("nft")),
    ("cls_bpf", None),
    ("tcx", None),
    ("xdp-generic", None),
    ("xdp", None),
    ("weir-tcx-1", None),
    ("weir-nft-131k", None),
    ("weir-ipset-131k", Some("ipset")),
    ("weir-netfilter-131k", None),
    ("weir-cls_bpf-131k", None),
    ("weir-xdp-131k", None),
];

/// Packets that no flood sent: the first reports of multicast groups.
const OF_THE_KERNEL: u64 = 4;

fn left_by(pid: u32) -> Vec<PathBuf> {
    let named = |dir: &str, begin: String| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin))
            .map(|entry| entry.path())
            .collect()
    };
    let mut left = named("/run/netns", format!("wl{pid}-"));
    left.extend(named("/sys/fs/bpf/weir", format!("bench-hooks-{pid}")));
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        left.extend(named(root, format!("weir-bench-{pid}-")));
    }
    left
}

fn hooks(seconds: &str, args: &[&str], json: &Path) -> Command {
    let mut command = Command::new(BENCH);
    command
        .args([
            "hooks",
            "--rounds",
            "1",
            "--seconds",
            seconds,
            "--idle",
            "0",
        ])
        .args(args)
        .arg("--json")
        .arg(json)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The results and the tables of a run, which must succeed and leave nothing.
fn done(child: std::process::Child, json: &Path) -> (Value, String) {
    let pid = child.id();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert_eq!(left_by(pid), [] as [PathBuf; 0]);
    let text = std::fs::read(json).unwrap();
    (
        serde_json::from_slice(&text).unwrap(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
    )
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("{key} in {of}"))
}

fn points<'a>(run: &'a Value, hook: &str) -> Vec<&'a Value> {
    let all = run["points"].as_array().unwrap();
    all.iter().filter(|point| point["hook"] == hook).collect()
}

#[test]
fn root_every_hook_drops_all_of_the_same_packets() {
    if let Some(why) = weir_netlab::missing(&[]) {
        return eprintln!("skipped: {why}");
    }
    let rows: Vec<&str> = ROWS
        .iter()
        .filter(|(_, program)| weir_netlab::missing(program.as_slice()).is_none())
        .map(|(name, _)| *name)
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("hooks.json");
    let plots = dir.path().to_string_lossy().into_owned();
    let asked = [&rows[..], &["userspace-notrack", "tc-u32"]]
        .concat()
        .join(",");
    let child = hooks(
        "0.03",
        &[
            "--hooks",
            &asked,
            "--sizes",
            "16,1472",
            "--plot",
            &plots,
            "--watts-per-core",
            "4",
        ],
        &json,
    )
    .spawn()
    .unwrap();
    let (run, tables) = done(child, &json);
    for hook in &rows {
        let points = points(&run, hook);
        assert_eq!(points.len(), 4, "{hook}: two sizes, two families");
        for point in points {
            let [sent, arrived, dropped] = ["sent", "arrived", "dropped"].map(|k| number(point, k));
            assert!(sent > 0, "{point}");
            // A wire's ring may overflow once; what came of the flood is dropped to
            // the last. A packet of the kernel's own may be among what came.
            assert!(arrived * 100 >= sent * 99, "{point}");
            assert!(arrived <= sent + OF_THE_KERNEL, "{point}");
            assert!(dropped <= arrived, "{point}");
            assert!(dropped + OF_THE_KERNEL >= arrived, "{point}");
            let estimate = point["joules"].as_object().unwrap();
            assert!(estimate.keys().all(|name| !name.is_empty()), "{point}");
        }
        assert!(
            tables.contains(&format!("\n| {hook} | ")),
            "{hook}: {tables}"
        );
    }
    let sizes: Vec<_> = points(&run, "tcx")
        .iter()
        .map(|p| (number(p, "payload"), number(p, "frame")))
        .collect();
    assert_eq!(sizes, [(16, 58), (1472, 1514), (16, 78), (1452, 1514)]);
    // What a program reads is dropped there; the rest in its full buffer.
    for point in points(&run, "userspace-notrack") {
        let [arrived, dropped] = ["arrived", "dropped"].map(|k| number(point, k));
        assert!(dropped > 0 && dropped <= arrived, "{point}");
    }
    // This kernel may lack what tc's rule needs; then it says so.
    let missing: Vec<&Value> = run["missing"].as_array().unwrap().iter().collect();
    match points(&run, "tc-u32").len() {
        0 => assert!(
            tables.contains("| tc-u32 | unavailable (probe: act_gact: "),
            "{tables}"
        ),
        _ => assert!(missing.is_empty(), "{missing:?}"),
    }
    assert!(tables.contains("estimate, 4 W a busy core"), "{tables}");
    assert!(dir.path().join("cpu-by-hook-ipv4.svg").exists());
    assert!(dir.path().join("throughput-by-size-ipv6.svg").exists());

    // Parts of a run are one report; nothing is measured for it, but energy may
    // be told later.
    let file = json.to_string_lossy();
    let joined = dir.path().join("joined.json");
    let child = hooks(
        "1",
        &["--watts-per-core", "9", "--join", &file, &file],
        &joined,
    )
    .spawn()
    .unwrap();
    let (twice, _) = done(child, &joined);
    let points = points(&twice, "tcx");
    assert_eq!(points.len(), 8);
    assert_eq!(twice["commit"], run["commit"]);
    let cpu = ["cpu_sender", "cpu_softirq", "cpu_program"].map(|k| points[0][k].as_f64().unwrap());
    let joules = points[0]["joules"]["estimate, 9 W a busy core"]
        .as_f64()
        .unwrap();
    assert!(
        (joules - 9.0 * cpu.iter().sum::<f64>()).abs() < 1e-6,
        "{}",
        points[0]
    );
}

#[test]
fn root_a_hook_that_is_not_there_is_named_and_the_others_go_on() {
    if let Some(why) = weir_netlab::missing(&["nft"]) {
        return eprintln!("skipped: {why}");
    }
    let net = Net::new().unwrap();
    let namespace = net.namespace("view").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("hooks.json");
    // A kernel without nf_tables says no to nft; so does this.
    let nft = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"]
        .into_iter()
        .find(|file| Path::new(file).exists())
        .unwrap();
    let host = FakeHost::default().instead_of(nft, "/bin/false");
    let mut command = hooks(
        "0.03",
        &[
            "--hooks",
            "nft-ingress,tcx",
            "--sizes",
            "32",
            "--family",
            "ipv4",
        ],
        &json,
    );
    let out = std::fs::File::create(dir.path().join("out")).unwrap();
    command.stdout(out).stderr(Stdio::null());
    let mut child = namespace.spawn_on(command, &host).unwrap();
    let status = child.wait(Duration::from_secs(60)).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    let run: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(points(&run, "tcx").len(), 1);
    assert_eq!(points(&run, "nft-ingress").len(), 0);
    let tables = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert!(
        tables.contains("| nft-ingress | unavailable (probe: nf_tables, netdev, ingress"),
        "{tables}"
    );
}

/// Everything of packet filters in a namespace, as text.
fn filters(namespace: &Namespace) -> String {
    let mut all = String::new();
    for command in [
        "nft list ruleset",
        "iptables-save",
        "tc qdisc show",
        "tc filter show dev d0 ingress",
        "ip -d link show dev d0",
    ] {
        let mut words = command.split(' ');
        let program = words.next().unwrap();
        if let Ok(out) = namespace.output(program, &words.collect::<Vec<_>>()) {
            all += &String::from_utf8_lossy(&out.stdout);
        }
    }
    // When it was saved, and what was counted, differ.
    all.lines()
        .filter(|line| !line.starts_with('#') && !line.contains("[0:0]") && !line.starts_with(':'))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn wire(net: &Net) -> Veth {
    let (outside, host) = (
        net.namespace("net").unwrap(),
        net.namespace("host").unwrap(),
    );
    let opts = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"]).unwrap();
    let veth = net.veth(&outside, "g0", &host, "d0", opts).unwrap();
    host.enter(|| weir_bpf::device::set_gro("d0", true))
        .unwrap()
        .unwrap();
    veth
}

#[test]
fn root_a_load_from_elsewhere_is_measured_and_the_interface_left_as_it_was() {
    if let Some(why) = weir_netlab::missing(&["nft", "iptables", "tc"]) {
        return eprintln!("skipped: {why}");
    }
    let net = Net::new().unwrap();
    let veth = wire(&net);
    let (outside, host) = (veth.namespace(Side::A), veth.namespace(Side::B));
    let to: IpAddr = "10.9.0.2".parse().unwrap();
    let mac = veth
        .mac(Side::B)
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    host.run("nft", &["add", "table", "inet", "others"])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("remote.json");
    let before = filters(host);
    assert!(before.contains("others"), "{before}");

    let mut load = Command::new(BENCH);
    load.args(["hooks", "--interface", "g0", "--sender", "here"])
        .args(["--to", &to.to_string(), "--to-mac", &mac])
        .args(["--sizes", "64", "--seconds", "120"])
        .stdout(Stdio::null());
    let load = outside.spawn(load).unwrap();
    let rows = "iptables-raw,nft-ingress,cls_bpf,tcx,xdp-generic,xdp,nft-set-131k,weir-xdp-131k,weir-xdp-1";
    let said = std::fs::File::create(dir.path().join("said")).unwrap();
    let out = std::fs::File::create(dir.path().join("out")).unwrap();
    let mut command = hooks(
        "0.1",
        &[
            "--interface",
            "d0",
            "--sender",
            "remote",
            "--sizes",
            "64",
            "--hooks",
            rows,
        ],
        &json,
    );
    command.stdout(out).stderr(said);
    let mut child = host.spawn(command).unwrap();
    let status = child.wait(Duration::from_secs(90)).unwrap();
    let said = std::fs::read_to_string(dir.path().join("said")).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{said}");
    drop(load);
    assert!(
        said.contains("hping3 -I IF --udp --rand-source --destport 12345 -d 64"),
        "{said}"
    );
    assert!(
        said.contains(&format!("--to 10.9.0.2 --to-mac {mac} --sizes 64")),
        "{said}"
    );

    let run: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for hook in rows.split(',').filter(|hook| *hook != "weir-xdp-1") {
        let points = points(&run, hook);
        assert_eq!(points.len(), 1, "{hook}: {}", run["missing"]);
        let [arrived, dropped] = ["arrived", "dropped"].map(|k| number(points[0], k));
        // Counters are read one after the other, beside the load: on a busy
        // machine far more may arrive than was dropped when that was read.
        assert!(arrived > 1000 && dropped > 1000, "{}", points[0]);
    }
    let tables = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert!(
        tables.contains("| weir-xdp-1 | unavailable (probe: --sender remote"),
        "{tables}"
    );
    assert_eq!(filters(host), before);
}

#[test]
fn root_an_interrupted_run_leaves_nothing() {
    if let Some(why) = weir_netlab::missing(&["nft"]) {
        return eprintln!("skipped: {why}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = hooks(
        "20",
        &["--hooks", "cgroup_skb,nft-ingress,weir-tcx-131k"],
        &dir.path().join("none.json"),
    )
    .spawn()
    .unwrap();
    let pid = child.id();
    // The first point is there: everything is set up, and the next one runs.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("round 0")));
    assert!(first.is_some(), "it ended by itself");
    assert_ne!(left_by(pid), [] as [PathBuf; 0], "nothing was set up");
    let kill = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    let status = child.wait().unwrap();
    assert!(!status.success(), "{:?}", rest.join());
    assert_eq!(left_by(pid), [] as [PathBuf; 0]);
}

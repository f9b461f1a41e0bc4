//! `weir real-side`: what it makes of a server behind a balancer, and that it takes back
//! that and nothing else. (A pool of nginx that is served by it: `root_balance.rs`.)

mod common;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{Answer, SILENCE, SOON, WEIR, addr, skipped, soon};
use serde_json::Value;
use weir_netlab::{Namespace, Net, Veth, VethOpts};
use weir_testkit::traffic;

const VIP: [&str; 2] = ["198.51.100.80", "2001:db8:80::80"];
const SYSCTLS: [&str; 2] = ["arp_ignore", "arp_announce"];

struct Host {
    dir: tempfile::TempDir,
    real: Namespace,
    peer: Namespace,
    _veth: Veth,
    _net: Net,
}

impl Host {
    fn new() -> Self {
        let net = Net::new().unwrap();
        let real = net.namespace("real").unwrap();
        let peer = net.namespace("peer").unwrap();
        let opts = VethOpts::new(
            &["192.0.2.11/24", "2001:db8::11/64"],
            &["192.0.2.100/24", "2001:db8::100/64"],
        );
        let veth = net.veth(&real, "eth0", &peer, "eth0", opts.unwrap());
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
            real,
            peer,
            _veth: veth.unwrap(),
            _net: net,
        };
        // Of a namespace that ended, and had the same number.
        let _ = fs::remove_dir_all(host.pins());
        host
    }

    fn record(&self) -> PathBuf {
        self.dir.path().join("run").join("real-side.json")
    }

    fn run(&self, args: &[&str], env: Option<&str>) -> Answer {
        let mut command = Command::new(WEIR);
        command.arg("real-side").args(args);
        command.arg("--record").arg(self.record());
        command.stdin(Stdio::null());
        command.envs(env.map(|point| ("WEIR_FAULT", point)));
        Answer::of(self.real.enter(move || command.output()).unwrap().unwrap())
    }

    fn ask(&self, args: &[&str]) -> Answer {
        self.run(args, None)
    }

    /// Name and outcome of each step.
    fn steps(&self, args: &[&str]) -> Vec<(String, String)> {
        let answer = self.ask(&[args, &["--json"]].concat()).json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let steps = answer["steps"].as_array().unwrap().iter();
        steps
            .map(|step| (text(&step["name"]), text(&step["outcome"])))
            .collect()
    }

    /// The settings that the verb may change: addresses and sysctls of the namespace.
    fn state(&self) -> String {
        let addresses = self.real.output("ip", &["-o", "addr", "show"]).unwrap();
        let values = SYSCTLS.map(|name| self.sysctl(name)).join(" ");
        let addresses = String::from_utf8(addresses.stdout).unwrap();
        // For a moment.
        let addresses = addresses.replace(" tentative", "");
        format!("{addresses}{values}")
    }

    fn sysctl(&self, name: &str) -> String {
        let path = Path::new("/proc/sys/net/ipv4/conf/all").join(name);
        let read = self.real.enter(|| fs::read_to_string(path));
        read.unwrap().unwrap().trim().to_owned()
    }

    /// Is a program pinned that takes packets out of tunnels?
    fn takes_out(&self) -> bool {
        self.pins().join("link").exists()
    }

    fn pins(&self) -> PathBuf {
        let namespace = fs::metadata(self.real.path()).unwrap().ino();
        Path::new("/sys/fs/bpf/weir-real-side").join(format!("{namespace}-eth0"))
    }

    /// Does its peer find the address on the wire?
    fn is_found(&self, vip: &str) -> bool {
        self.peer.ip(&["neigh flush dev eth0".into()]).unwrap();
        traffic::ping(&self.peer, None, addr(vip), SILENCE).is_ok()
    }
}

fn outcomes(steps: &[(String, String)]) -> Vec<&str> {
    steps.iter().map(|(_, outcome)| outcome.as_str()).collect()
}

#[test]
fn root_a_real_is_made_and_taken_back() {
    if skipped(&[]) {
        return;
    }
    let host = Host::new();
    let before = host.state();
    host.ask(&[]).says_no(&["has done nothing here"]);

    let planned = host.ask(&[VIP[0], VIP[1], "--dry-run"]).done().out;
    assert!(
        planned.contains("198.51.100.80/32 on lo: would be set"),
        "{planned}"
    );
    assert!(
        planned.contains("arp_ignore 0 -> 1: would be set"),
        "{planned}"
    );
    assert_eq!(host.state(), before);
    assert!(!host.record().exists());

    let done = host.steps(&VIP);
    assert_eq!(outcomes(&done), ["set"; 4], "{done:?}");
    assert_eq!(SYSCTLS.map(|name| host.sysctl(name)), ["1", "2"]);
    let made = host.state();
    // Chosen as the source of nothing.
    assert!(made.contains("198.51.100.80/32 scope host lo"), "{made}");
    assert!(
        made.contains("2001:db8:80::80/128 scope global deprecated"),
        "{made}"
    );
    host.ask(&[]).done();

    // Again: nothing is changed, and what was before is not forgotten.
    let again = host.steps(&VIP);
    assert_eq!(outcomes(&again), ["kept"; 4], "{again:?}");
    assert_eq!(host.state(), made);

    // What somebody has taken away is mended.
    let gone = format!("addr del {}/32 dev lo", VIP[0]);
    host.real.ip(&[gone]).unwrap();
    host.real.sysctl("ipv4.conf.all.arp_ignore", "0").unwrap();
    host.ask(&[])
        .says_no(&["gone already", "changed by somebody"]);
    assert_eq!(outcomes(&host.steps(&VIP)), ["set", "kept", "set", "kept"]);
    assert_eq!(SYSCTLS.map(|name| host.sysctl(name)), ["1", "2"]);

    // One of them, then all.
    let one = host.steps(&["--undo", VIP[1]]);
    assert_eq!(
        one,
        [(format!("{}/128 on lo", VIP[1]), "undone".to_owned())]
    );
    let undone = host.steps(&["--undo", "--dry-run"]);
    assert_eq!(outcomes(&undone), ["undone"; 3], "{undone:?}");
    assert_ne!(host.state(), before);
    assert_eq!(host.steps(&["--undo"]), undone);
    assert_eq!(host.state(), before);
    assert!(!host.record().exists());
    assert_eq!(host.steps(&["--undo"]), []);
}

#[test]
fn root_what_was_there_before_weir_stays() {
    if skipped(&[]) {
        return;
    }
    let host = Host::new();
    host.peer
        .ip(&[format!("route add {}/32 dev eth0", VIP[0])])
        .unwrap();
    let by_hand = format!("addr add {}/32 dev lo", VIP[0]);
    host.real.ip(&[by_hand]).unwrap();
    host.real.sysctl("ipv4.conf.all.arp_announce", "2").unwrap();
    let before = host.state();
    // Linux answers ARP for it, and would take the balancer's clients.
    soon("an answer of the real", || {
        host.is_found(VIP[0]).then_some(())
    });
    assert_eq!(
        outcomes(&host.steps(&[VIP[0]])),
        ["set", "foreign", "foreign"]
    );
    assert!(!host.is_found(VIP[0]));
    traffic::ping(&host.peer, None, addr("192.0.2.11"), SOON).unwrap();

    // What somebody changes afterwards is his.
    host.real.sysctl("ipv4.conf.all.arp_ignore", "2").unwrap();
    let undone = host.ask(&["--undo"]).done().out;
    assert!(
        undone.contains("changed by somebody else since"),
        "{undone}"
    );
    assert_eq!(host.sysctl("arp_ignore"), "2");
    host.real.sysctl("ipv4.conf.all.arp_ignore", "0").unwrap();
    assert_eq!(host.state(), before);

    // IPv6 alone needs no sysctl: nobody answers neighbour discovery for what is on lo.
    assert_eq!(outcomes(&host.steps(&[VIP[1]])), ["set"]);
    assert_eq!(host.sysctl("arp_ignore"), "0");
    host.peer
        .ip(&[format!("route add {}/128 dev eth0", VIP[1])])
        .unwrap();
    assert!(!host.is_found(VIP[1]));
    host.ask(&["--undo"]).done();
    assert_eq!(host.state(), before);
}

#[test]
fn root_what_a_crash_leaves_is_taken_back() {
    if skipped(&[]) {
        return;
    }
    let host = Host::new();
    let before = host.state();
    let decap = ["--decap", "ipip,gue", "--interface", "eth0"];
    let args = [&VIP[..], &decap].concat();
    for point in [
        "real-side-recorded",
        "real-side-half-done",
        "real-side-attached",
    ] {
        let killed = host.run(&args, Some(point));
        assert_eq!(killed.code, None, "{killed:?}");
        assert!(host.record().exists(), "{point}");
        assert_eq!(host.takes_out(), point == "real-side-attached");
        host.ask(&["--undo"]).done();
        assert_eq!(host.state(), before, "{point}");
        assert!(!host.takes_out(), "{point}");
        // Or it is gone on with.
        assert_eq!(host.run(&args, Some(point)).code, None);
        host.ask(&args).done();
        host.ask(&[]).done();
        assert!(host.takes_out(), "{point}");
        host.ask(&["--undo"]).done();
        assert_eq!(host.state(), before, "{point}");
        assert!(!host.takes_out(), "{point}");
    }
}

#[test]
fn root_what_cannot_be_is_refused_and_changes_nothing() {
    if skipped(&[]) {
        return;
    }
    let host = Host::new();
    let before = host.state();
    for unfit in [
        "127.0.0.9",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fe80::1",
    ] {
        host.ask(&[VIP[0], unfit])
            .refused(&[unfit, "cannot be a virtual address"]);
    }
    host.ask(&["www.example.org"]).refused(&["www.example.org"]);
    host.ask(&["192.0.2.11"])
        .refused(&["is an address of eth0", "ip addr del 192.0.2.11"]);
    host.ask(&["--undo", VIP[0]])
        .refused(&["is not among the addresses that weir real-side has added"]);
    assert_eq!(host.state(), before);
    // Somebody else's namespace is not undone here.
    host.ask(&VIP).done();
    let mut elsewhere = Command::new(WEIR);
    elsewhere.args(["real-side", "--undo", "--record"]);
    elsewhere.arg(host.record());
    let answer = host.peer.enter(move || elsewhere.output());
    Answer::of(answer.unwrap().unwrap()).refused(&["another network namespace"]);
    host.ask(&["--undo"]).done();
    // A loopback interface that is down serves nobody.
    host.real.ip(&["link set lo down".into()]).unwrap();
    host.ask(&VIP).refused(&["lo is down"]);
}

/// Whom it takes packets from is never a guess, and what lets in anybody is told.
#[test]
fn root_balancers_are_taken_by_name() {
    if skipped(&[]) {
        return;
    }
    let host = Host::new();
    let before = host.state();
    let decap = ["--decap", "gue", "--interface", "eth0"];
    let typed = |from: &[&'static str]| [&VIP[..], &decap, from].concat();

    // A second word is no balancer, and becomes no virtual address.
    for (first, second) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        for from in [
            &["--from", first, second][..],
            &["--from", "192.0.2.9", "--from", first, second],
        ] {
            host.ask(&typed(from)).refused(&[
                &format!("{second} behind --from {first}"),
                &format!("--from {first},{second}"),
            ]);
        }
    }
    // Nor has a balancer a virtual address.
    for vip in VIP {
        host.ask(&typed(&["--from", vip]))
            .refused(&[vip, "is a virtual address and the address of a balancer"]);
    }
    assert_eq!(host.state(), before);
    assert!(!host.record().exists() && !host.takes_out());

    // A list and each by itself are one and the same.
    let named = "decap GUE at port 6080 on eth0, from 192.0.2.1, 192.0.2.2, 2001:db8::1, \
                 for 198.51.100.80, 2001:db8:80::80: ";
    for from in [
        &["--from", "192.0.2.1,192.0.2.2,2001:db8::1"][..],
        &[
            "--from",
            "192.0.2.1",
            "--from=192.0.2.2",
            "--from",
            "2001:db8::1",
        ],
    ] {
        let behind = [&["--from", "192.0.2.9"], &decap[..], &VIP].concat();
        host.ask(&behind)
            .refused(&[&format!("{} behind --from 192.0.2.9", VIP[0])]);
        let said = host.ask(&typed(from)).done().out;
        assert!(said.contains(named), "{said}");
        assert!(!said.contains("warning"), "{said}");
    }
    let shown = host.ask(&[]).done().out;
    assert!(
        shown.contains(named) && !shown.contains("warning"),
        "{shown}"
    );
    let json = host.ask(&["--json"]).json();
    assert_eq!(json["warnings"].to_string(), "[]");
    let steps = json["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["kind"] == "decap").unwrap();
    assert_eq!(
        step["ends"]["from"].to_string(),
        "[\"192.0.2.1\",\"192.0.2.2\",\"2001:db8::1\"]"
    );
    assert_eq!(
        step["ends"]["vips"].to_string(),
        "[\"198.51.100.80\",\"2001:db8:80::80\"]"
    );
    // A balancer of before becomes no virtual address later.
    host.ask(&["192.0.2.2"])
        .refused(&["192.0.2.2 is a virtual address and the address of a balancer"]);

    // Without them anybody is one, and that is said each time.
    let told = "warning: GUE at port 6080 on eth0: anybody who reaches this host can send it";
    for said in [
        host.ask(&typed(&["--dry-run"])).done().out,
        host.ask(&typed(&[])).done().out,
        host.ask(&[]).done().out,
    ] {
        assert!(
            said.contains("on eth0, from anybody, for 198.51.100.80"),
            "{said}"
        );
        assert!(said.contains(told), "{said}");
    }
    let undone = host.ask(&["--undo"]).done().out;
    assert!(
        undone.contains("decap GUE at port 6080 on eth0: taken back"),
        "{undone}"
    );
    assert!(!undone.contains("warning"), "{undone}");
    assert_eq!(host.state(), before);

    // The kernel would drop clients to whom routes lead elsewhere.
    let named = typed(&["--from", "192.0.2.1,2001:db8::1", "--dry-run"]);
    for (strict, is_warned) in [("1", true), ("2", false)] {
        let set = format!("net.ipv4.conf.eth0.rp_filter={strict}");
        host.real.run("sysctl", &["-qw", &set]).unwrap();
        let said = host.ask(&named).done().out;
        assert_eq!(said.contains("rp_filter is 1"), is_warned, "{said}");
    }

    // Where nobody could send it anything yet, it has not been set up.
    host.real
        .ip(&["addr flush dev eth0 scope global".into()])
        .unwrap();
    for from in ["192.0.2.1", "2001:db8::1"] {
        let family = if from.contains(':') { "IPv6" } else { "IPv4" };
        host.ask(&typed(&["--from", from]))
            .refused(&[&format!("this host has no {family} address of its own yet")]);
    }
    host.ask(&typed(&[])).refused(&["of its own yet"]);
}

/// A namespace that ended with the program attached leaves pins, and its number goes to the next
/// one: whoever attaches removes them.
#[test]
fn root_pins_of_namespaces_that_ended_are_removed() {
    if skipped(&[]) {
        return;
    }
    let ended = Host::new();
    let attached = [&VIP[..], &["--decap", "gue", "--interface", "eth0"]].concat();
    ended.ask(&attached).done();
    let pins = ended.pins();
    let host = Host::new();
    host.ask(&attached).done();
    assert!(pins.exists() && host.pins().exists());
    drop(ended);
    soon("the pins to be removed", || {
        host.ask(&["--undo"]).done();
        host.ask(&attached).done();
        (!pins.exists()).then_some(())
    });
    host.ask(&["--undo"]).done();
    assert!(!host.takes_out());
}

//! Namespaces, veth pairs, and the clients and servers in them.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use weir_netlab::{ErrorKind, Net, Side, Veth, VethOpts, missing, wait_for};
use weir_testkit::traffic::{TcpServer, UdpServer, ping, tcp_connect, tcp_open, udp_request};

const SOON: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn skipped(programs: &[&str]) -> bool {
    let why = missing(programs);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

fn pair(net: &Net) -> Veth {
    let a = net.namespace("a").unwrap();
    let b = net.namespace("b").unwrap();
    let opts = VethOpts::new(
        &["192.0.2.1/24", "2001:db8::1/64"],
        &["192.0.2.2/24", "2001:db8::2/64"],
    );
    net.veth(&a, "left", &b, "right", opts.unwrap().mtu(9000))
        .unwrap()
}

#[track_caller]
fn both_answer(veth: &Veth) {
    for (side, addr) in [
        (Side::A, "192.0.2.2"),
        (Side::A, "2001:db8::2"),
        (Side::B, "192.0.2.1"),
        (Side::B, "2001:db8::1"),
    ] {
        let answer = ping(veth.namespace(side), None, addr.parse().unwrap(), SOON);
        assert!(answer.is_ok(), "{}", answer.unwrap_err());
    }
}

#[test]
fn root_two_namespaces_ping_each_other() {
    if skipped(&[]) {
        return;
    }
    let net = Net::new().unwrap();
    let mut veth = pair(&net);
    both_answer(&veth);
    let index = veth.namespace(Side::A).ifindex("left").unwrap();
    assert!(index > 0);
    assert!(veth.namespace(Side::A).ifindex("right").is_err());

    veth.rename(Side::B, "eth0").unwrap();
    assert_eq!(veth.dev(Side::B), "eth0");
    both_answer(&veth);

    veth.delete().unwrap();
    let gone: IpAddr = "192.0.2.2".parse().unwrap();
    let error = ping(veth.namespace(Side::A), None, gone, SHORT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    veth.create().unwrap();
    both_answer(&veth);

    veth.set_up(Side::B, false).unwrap();
    assert!(ping(veth.namespace(Side::A), None, gone, SHORT).is_err());
    veth.set_up(Side::B, true).unwrap();
    both_answer(&veth);
}

/// What a device has sent, by the kernel's count.
fn sent(veth: &Veth, side: Side) -> u64 {
    let args = ["-s", "link", "show", "dev", veth.dev(side)];
    let out = veth.namespace(side).run("ip", &args).unwrap().stdout;
    let out = String::from_utf8(out).unwrap();
    out.lines()
        .last()
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn root_a_new_pair_is_silent() {
    if skipped(&[]) {
        return;
    }
    let net = Net::new().unwrap();
    let veth = pair(&net);
    // On a busy machine the one report of multicast comes later than a pair waits for it.
    for side in [Side::A, Side::B] {
        let file = format!("/proc/thread-self/net/dev_snmp6/{}", veth.dev(side));
        let _ = wait_for("a multicast report", Duration::from_secs(3), || {
            let counters = veth
                .namespace(side)
                .enter(|| std::fs::read_to_string(&file))?;
            let is_sent = counters.is_ok_and(|text| text.contains("Icmp6OutType143"));
            Ok(is_sent.then_some(()))
        });
    }
    let before = [sent(&veth, Side::A), sent(&veth, Side::B)];
    ping(
        veth.namespace(Side::A),
        None,
        "2001:db8::2".parse().unwrap(),
        SOON,
    )
    .unwrap();
    // Only time can show that nothing more comes.
    std::thread::sleep(Duration::from_secs(2));
    let after = [sent(&veth, Side::A), sent(&veth, Side::B)];
    assert_eq!(after, before.map(|n| n + 1), "more than request and reply");
}

#[test]
fn root_one_namespace_is_many_sources() {
    if skipped(&[]) {
        return;
    }
    let net = Net::new().unwrap();
    let mut veth = pair(&net);
    for prefix in ["198.18.0.0/15", "2001:db8:5::/48"] {
        veth.add_sources(Side::A, prefix).unwrap();
    }
    let ports = [
        ("192.0.2.2:0", ["198.18.0.1", "198.19.255.254"]),
        ("[2001:db8::2]:0", ["2001:db8:5::1", "2001:db8:5:ffff::9"]),
    ];
    for (at, sources) in ports {
        let at: SocketAddr = at.parse().unwrap();
        let tcp = TcpServer::start(veth.namespace(Side::B), at, b"hello\n").unwrap();
        let udp = UdpServer::start(veth.namespace(Side::B), at).unwrap();
        for source in sources {
            let source: IpAddr = source.parse().unwrap();
            let a = veth.namespace(Side::A);
            let (mut stream, took) = tcp_open(a, Some(source), tcp.addr(), SOON).unwrap();
            assert!(took < SOON);
            assert_eq!(stream.local_addr().unwrap().ip(), source);
            stream.write_all(b"x").unwrap();
            let mut answer = [0; 7];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello\nx");
            let (answer, _) = udp_request(a, Some(source), udp.addr(), b"who", SOON).unwrap();
            assert_eq!(answer, b"who");
            ping(a, Some(source), at.ip(), SOON).unwrap();
        }
        assert_eq!((tcp.accepted(), udp.received()), (2, 2));
        let closed = tcp.addr();
        drop(tcp);
        let error = tcp_connect(veth.namespace(Side::A), None, closed, SOON).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    let nobody = "192.0.2.99:9".parse().unwrap();
    let error = tcp_connect(veth.namespace(Side::A), None, nobody, SHORT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

#[test]
fn root_everything_is_removed_after_a_panic() {
    if skipped(&["sleep"]) {
        return;
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut pids = Vec::new();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let net = Net::new().unwrap();
        let veth = pair(&net);
        paths.extend([Side::A, Side::B].map(|side| veth.namespace(side).path()));
        assert!(paths.iter().all(|path| path.exists()));
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").stdin(Stdio::null());
        let child = veth.namespace(Side::A).spawn(sleep).unwrap();
        pids.push(child.pid());
        assert_eq!(veth.namespace(Side::A).pids(), pids);
        let panic = veth.namespace(Side::A).enter(|| panic!("as planned"));
        panic.unwrap()
    }));
    assert_eq!(
        *panic.unwrap_err().downcast::<&str>().unwrap(),
        "as planned"
    );
    assert_eq!((paths.len(), pids.len()), (2, 1));
    assert!(paths.iter().all(|path| !path.exists()));
    assert!(!PathBuf::from(format!("/proc/{}", pids[0])).exists());
}

#[test]
fn root_leftovers_of_a_dead_run_are_swept() {
    if skipped(&["true"]) {
        return;
    }
    let mut dead = Command::new("true").spawn().unwrap();
    let pid = dead.id();
    dead.wait().unwrap();
    let name = format!("wl{pid}-0-left");
    assert!(
        Command::new("ip")
            .args(["netns", "add", &name])
            .status()
            .unwrap()
            .success()
    );
    // The sweep is at the first network of a process: have a fresh one do it.
    let again = std::env::current_exe().unwrap();
    let one = "root_two_namespaces_ping_each_other";
    let status = Command::new(again)
        .args(["--exact", one])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(!PathBuf::from("/run/netns").join(name).exists());
}

#[test]
fn root_errors_name_the_command_and_what_it_said() {
    if skipped(&[]) {
        return;
    }
    let net = Net::new().unwrap();
    let a = net.namespace("a").unwrap();
    let error = a
        .run("ip", &["link", "show", "dev", "nosuch"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ip link show dev nosuch") && error.contains("does not exist"),
        "{error}"
    );
    let error = a
        .ip(&["link set nosuch up".into()])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("link set nosuch up") && error.contains("Cannot find device"),
        "{error}"
    );
    let error = wait_for("the moon", SHORT, || Ok(None::<()>)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(
        error.to_string(),
        "cannot wait for the moon: not within 200ms"
    );
}

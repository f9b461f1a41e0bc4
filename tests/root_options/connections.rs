//! Options that the kernel writes on the connections of a control group.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use weir_bpf::identity::CgroupAt;
use weir_netlab::{Child, Namespace};

use super::{
    common::soon,
    inject::from,
    lab::{Arrived, EAST, HTTP, Lab, WEST},
};

/// What the name tcp:exp-254 makes.
const OPTION: [u8; 6] = [254, 6, 0xde, 0xad, 0, 1];
/// The port of a server that is in the control group.
const PORT: u16 = 8090;

/// A control group, which goes with its processes.
struct Group(PathBuf);

impl Group {
    /// `None`: there is no hierarchy of version 2, which was said.
    fn new(name: &str) -> Option<Self> {
        let Some(root) = CgroupAt::mount_point() else {
            eprintln!("skipped: no control groups of version 2 (probe: /proc/self/mounts)");
            return None;
        };
        let group = root.join(format!("wl-inject-{name}-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        Some(Self(group))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A program that is in the group before it is the program.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args([
                "-c",
                "echo 0 > \"$0/cgroup.procs\" && exec \"$@\"",
                self.path(),
            ])
            .args(words)
            .stdin(Stdio::null());
        command
    }

    fn output(&self, site: &Namespace, words: &[&str]) -> Output {
        let mut command = self.command(words);
        site.enter(move || command.output()).unwrap().unwrap()
    }

    fn spawn(&self, site: &Namespace, words: &[&str]) -> Child {
        site.spawn(self.command(words)).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn url(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("http://[{address}]:{port}/"),
        false => format!("http://{address}:{port}/"),
    }
}

/// Sends a file and gets a megabyte by a curl of the group.
fn serves(lab: &Lab, group: &Group, address: &str) -> bool {
    let file = lab.path("upload");
    fs::write(&file, vec![7; 700_000]).unwrap();
    let at = url(address, HTTP);
    let words = ["curl", "-sS", "--max-time", "60"];
    let down = group.output(&lab.west, &[&words[..], &[&at]].concat());
    let up = ["-T", file.to_str().unwrap(), &at];
    let up = group.output(&lab.west, &[&words[..], &up].concat());
    down.stdout.len() == 256 * 4096 && up.stdout.len() == 64
}

fn has(packet: &Arrived) -> bool {
    packet.tcp_options.windows(6).any(|part| part == OPTION)
}

#[test]
fn root_the_kernel_writes_options_on_connections_of_a_control_group() {
    let (Some(lab), Some(group)) = (Lab::new(&[]), Group::new("client")) else {
        return;
    };
    for address in EAST {
        let capture = lab.capture(&lab.east);
        let place = ["--cgroup", group.path()];
        let said = format!("connections of {}", group.path());
        let injecting = lab.inject_on(&lab.west, &place, &["tcp:exp-254"], &said);
        assert!(serves(&lab, &group, address), "{address}");
        let packets = from(&capture.frames(), WEST);
        // Those without a socket (TIME_WAIT) say nothing.
        let of_socket = |packet: &&Arrived| packet.is_syn || packet.payload > 0;
        let sent: Vec<_> = packets.iter().filter(of_socket).collect();
        assert!(sent.len() > 400, "{}", sent.len());
        for packet in &sent {
            assert!(has(packet), "{packet:?}");
        }
        assert!(packets.iter().all(|packet| packet.has_right_checksums));
        // One is sent again where its answer is late.
        assert!(sent.iter().filter(|packet| packet.is_syn).count() >= 2);
        // Segments of superpackets have it too, and are as long as the path takes.
        let longest = sent
            .iter()
            .map(|packet| packet.payload + packet.tcp_options.len());
        let header = if address.contains(':') { 60 } else { 40 };
        assert_eq!(longest.max(), Some(1500 - header));

        // Others than those of the group have none.
        assert!(lab.serves(address), "{address}");
        assert!(!from(&capture.frames(), WEST).iter().any(has), "{address}");
        let said = injecting.end(2);
        assert!(said["changed"].as_u64() > Some(20), "{said}");
        let left = said["left"].as_object().unwrap();
        assert!(left.values().all(|count| *count == 0), "{said}");
        assert_eq!(said["cgroup"], group.path());

        // It has ended.
        assert!(serves(&lab, &group, address), "{address}");
        assert!(!from(&capture.frames(), WEST).iter().any(has), "{address}");
    }
    assert_eq!(lab.checksum_errors(&lab.east), 0);
}

#[test]
fn root_only_chosen_connections_of_a_control_group_get_options() {
    let (Some(lab), Some(group)) = (Lab::new(&[]), Group::new("server")) else {
        return;
    };
    let (port, said) = (PORT.to_string(), format!("connections of {}", group.path()));
    let begin = |words: &[&str]| {
        let words = [&["tcp:exp-254", "tcp:200/4"], words].concat();
        lab.inject_on(&lab.east, &["--cgroup", group.path()], &words, &said)
    };
    let all_of = |packet: &Arrived| {
        has(packet)
            && packet
                .tcp_options
                .windows(4)
                .any(|part| part[..2] == [200, 4])
    };
    for (words, v4, v6, syn_only) in [
        (&["--from-port", &port][..], true, true, false),
        (
            &["--from-port", &port, "--packets", "syn"],
            true,
            true,
            true,
        ),
        (&["--from-port", "8091"], false, false, false),
        (&["--port", &port], false, false, false),
    ] {
        let injecting = begin(words);
        // What answers a SYN is of a socket that listens since.
        let serve = [
            "python3",
            "-m",
            "http.server",
            "--bind",
            "::",
            "-d",
            "/proc/self/fdinfo",
        ];
        let server = group.spawn(&lab.east, &[&serve[..], &[&port]].concat());
        for (address, is_chosen) in EAST.into_iter().zip([v4, v6]) {
            let capture = lab.capture(&lab.west);
            soon("the server", || {
                let words = [
                    "-sS",
                    "-o",
                    "/dev/null",
                    "--max-time",
                    "30",
                    &url(address, PORT),
                ];
                lab.west
                    .output("curl", &words)
                    .unwrap()
                    .status
                    .success()
                    .then_some(())
            });
            let packets = from(&capture.frames(), EAST);
            let syns: Vec<_> = packets.iter().filter(|packet| packet.is_syn).collect();
            let rest: Vec<_> = packets
                .iter()
                .filter(|p| !p.is_syn && p.payload > 0)
                .collect();
            assert!(!syns.is_empty() && !rest.is_empty(), "{words:?}");
            let is_right = |packet: &&Arrived, wanted: bool| all_of(packet) == wanted;
            assert!(
                syns.iter().all(|p| is_right(p, is_chosen)),
                "{words:?} {syns:?}"
            );
            let wanted = is_chosen && !syn_only;
            assert!(
                rest.iter().all(|p| is_right(p, wanted)),
                "{words:?} {rest:?}"
            );
            assert!(packets.iter().all(|packet| packet.has_right_checksums));
        }
        drop(server);
        injecting.end(2);
    }

    // By the address of the peer: a socket of IPv6 that is connected by IPv4 as well.
    let connect = "
import socket, sys
c = socket.socket(socket.AF_INET6)
c.connect((sys.argv[1], int(sys.argv[2])))
c.send(b'GET / HTTP/1.0\\r\\n\\r\\n')
while c.recv(65536): pass
";
    let http = HTTP.to_string();
    let place = ["--cgroup", group.path()];
    let words = ["tcp:exp-254", "--to", "198.51.100.0/24", "--port", &http];
    let injecting = lab.inject_on(&lab.west, &place, &words, &said);
    for (address, is_chosen) in [("::ffff:198.51.100.1", true), (EAST[1], false)] {
        let capture = lab.capture(&lab.east);
        let words = ["python3", "-c", connect, address, &http];
        assert!(group.output(&lab.west, &words).status.success());
        let packets = from(&capture.frames(), WEST);
        let syns: Vec<_> = packets.iter().filter(|packet| packet.is_syn).collect();
        assert!(!syns.is_empty());
        assert!(syns.iter().all(|syn| has(syn) == is_chosen), "{syns:?}");
    }
    injecting.end(2);
}

#[test]
fn root_what_the_kernel_does_not_write_is_said() {
    let (Some(lab), Some(group)) = (Lab::new(&[]), Group::new("refused")) else {
        return;
    };
    let place = ["--cgroup", group.path()];
    let said = format!("connections of {}", group.path());
    // A header has no room for it beside time stamps; SYNs have an MSS of the kernel's.
    for (option, name, address) in [
        ("tcp:200/40", "no_room", EAST[0]),
        ("tcp:200/40", "no_room", EAST[1]),
        ("tcp:mss", "other", EAST[0]),
    ] {
        let injecting = lab.inject_on(&lab.west, &place, &[option, "--packets", "syn"], &said);
        assert!(serves(&lab, &group, address), "{option}");
        let said = injecting.end(15);
        assert!(said["left"][name].as_u64() >= Some(2), "{option} {said}");
        assert_eq!(said["changed"], 0, "{option} {said}");
    }
    let nowhere = Path::new(group.path()).join("nowhere");
    for (words, said) in [
        (
            &["ip:rr", "--cgroup", group.path()][..],
            "option ip:rr: the kernel writes options of tcp",
        ),
        (
            &["tcp:nop", "--cgroup", group.path()],
            "no option of one byte",
        ),
        (
            &["tcp:253/3", "--cgroup", group.path()],
            "no less than 4 bytes",
        ),
        (
            &["tcp:200/4", "--cgroup", group.path(), "--protocol", "132"],
            "--protocol 132 has no tcp options",
        ),
        (
            &["tcp:200/4", "--cgroup", nowhere.to_str().unwrap()],
            "No such file or directory",
        ),
        (&["tcp:200/4", "--cgroup", "/tmp"], "it is not below "),
        (
            &["tcp:200/4", "--cgroup", group.path(), "-i", "eth0"],
            "cannot be used with",
        ),
        (&["tcp:200/4"], "--interface <NAME>"),
    ] {
        lab.weir(&lab.west, &[&["options", "inject"], words].concat())
            .refused(&[said]);
    }
    // A group that goes.
    let gone = Group::new("gone").unwrap();
    let said = format!("connections of {}", gone.path());
    let place = ["--cgroup", gone.path()];
    let injecting = lab.inject_on(&lab.west, &place, &["tcp:exp-254"], &said);
    fs::remove_dir(&gone.0).unwrap();
    let (code, error) = injecting.ended();
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("is gone"), "{error}");
}

//! Rules about containers by their labels, as a real Podman gives them to real containers, and as a
//! real containerd writes them down for those of Kubernetes.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use app_host::{ADDRESSES, TestHost};
use common::{skipped, soon};
use weir_netlab::Child;

const RULES: &str = "default = \"drop\"\nunknown = \"drop\"\ncontainer_sockets = [\"{dir}/absent.sock\", \"{dir}/podman.sock\"]\n[app.rules.web]\nverdict = \"allow\"\ncontainer = [\"app=w*b\", \"other\"]\nports = [\"8080/tcp\"]\n";

/// A Podman of its own, with containers of this host's /usr in the namespace and below the
/// control group that are judged.
struct Podman {
    dir: PathBuf,
    options: Vec<String>,
    parent: String,
    netns: PathBuf,
}

/// A root for containers, which have this host's /usr in it.
fn make_root(root: &Path) {
    for name in ["usr", "etc", "proc", "sys", "dev", "tmp", "run"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
}

impl Podman {
    fn new(host: &TestHost) -> Self {
        let dir = host.host.path("podman");
        make_root(&dir.join("root"));
        let below = |name: &str| dir.join(name).display().to_string();
        let options = [
            format!("--root={}", below("storage")),
            format!("--runroot={}", below("runroot")),
            format!("--tmpdir={}", below("libpod")),
            "--storage-driver=vfs".into(),
            "--runtime=runc".into(),
            // There is no systemd, and on a hybrid hierarchy no crun.
            "--cgroup-manager=cgroupfs".into(),
            "--events-backend=file".into(),
        ];
        Self {
            dir,
            options: options.into(),
            parent: format!("/{}", host.instance),
            netns: host.space.path(),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(&self.options).args(words).stdin(Stdio::null());
        command
    }

    fn ask(&self, words: &[&str]) -> Output {
        let done = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "podman {words:?}: {said}");
        done
    }

    /// A container with these labels, which stands still; its number.
    fn run(&self, name: &str, labels: &[&str]) -> String {
        let root = self.dir.join("root").display().to_string();
        let netns = format!("--network=ns:{}", self.netns.display());
        let parent = format!("--cgroup-parent={}", self.parent);
        let mut words = vec!["run", "-d", "--name", name, &netns, &parent];
        // What this process may have is less than Podman asks for.
        words.extend(["--ulimit=nofile=512:512", "--ulimit=nproc=4096:4096"]);
        words.extend(["-v", "/usr:/usr:ro"]);
        for label in labels {
            words.extend(["--label", label]);
        }
        words.extend(["--rootfs", &root, "/usr/bin/sleep", "600"]);
        let done = self.ask(&words);
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// What curl says of the server in a container.
    fn curl(&self, name: &str, address: &str) -> String {
        let url = format!("http://{address}:8080/");
        let mut words = vec!["exec", name, "/usr/bin/curl", "-sS", "-o", "/dev/null"];
        words.extend(["-w", "%{http_code}", "--max-time", "4", &url]);
        let done = self.command(&words).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Serves Docker's API at podman.sock of the host.
    fn serve(&self, host: &TestHost) -> Child {
        let socket = host.host.path("podman.sock");
        let at = format!("unix://{}", socket.display());
        let mut command = self.command(&["system", "service", "--time=0", &at]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = Child::new("podman", command.spawn().unwrap());
        soon("Podman's socket", || {
            std::os::unix::net::UnixStream::connect(&socket).ok()
        });
        child
    }
}

/// Removes what runc leaves of the control groups of containers, in each hierarchy.
fn remove_groups(top: &str) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines().filter(|line| line.contains(" cgroup")) {
        let Some(at) = mount.split(' ').nth(1) else {
            continue;
        };
        let below = Path::new(at).join(top);
        if !top.is_empty() && below.is_dir() {
            let _ = Command::new("find")
                .arg(&below)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"])
                .output();
        }
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command(&["rm", "-f", "-a", "-t", "0"]).output();
        // Podman's mounts for what has ended.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in below.filter(|mount| Path::new(mount).starts_with(&self.dir)) {
            let _ = Command::new("umount").args(["-l", mount]).output();
        }
        remove_groups(self.parent.trim_start_matches('/'));
    }
}

/// What curl says of the server in this control group, and how it ends.
fn curl_in(host: &TestHost, group: &Path, address: &str) -> (Option<i32>, String) {
    let enter = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", group.display());
    let url = format!("http://{address}:8080/");
    let curl = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}"];
    let words = ["-c", &enter, "sh"].into_iter().chain(curl);
    let words: Vec<_> = words.chain(["--max-time", "4", &url]).collect();
    let done = host.space.output("sh", &words).unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (done.status.code(), said)
}

#[test]
fn root_a_container_is_allowed_by_its_labels() {
    if skipped(&["podman", "runc", "curl"]) {
        return;
    }
    let mut podman = None;
    let Some(host) = TestHost::with("labels", RULES, |host| {
        let made = Podman::new(host);
        let id = made.run("early", &["app=web"]);
        podman = Some((made, id));
    }) else {
        return;
    };
    let (podman, early) = podman.unwrap();
    // Nobody says what labels it has: that is told, and nobody gets out.
    for address in ADDRESSES {
        assert_eq!(podman.curl("early", address), "000", "{address}");
    }
    let alerts = || host.host.json(&["status"])["alerts"].to_string();
    soon("the alert", || {
        let alerts = alerts();
        let told = alerts.contains("the labels of 1 containers are not known")
            && alerts.contains(&early)
            && alerts.contains("no container runtime is there, of ");
        told.then_some(())
    });
    let serving = podman.serve(&host);
    // It is asked again after half a minute.
    soon("the container's labels", || {
        (podman.curl("early", ADDRESSES[0]) == "200").then_some(())
    });
    soon("no alert", || (!alerts().contains("labels")).then_some(()));
    podman.run("late", &["x=y", "other="]);
    podman.run("db", &["app=db"]);
    // Beside them: a group whose children have controllers takes no processes itself.
    let outside = host.cgroup.join("outside");
    fs::create_dir(&outside).unwrap();
    for address in ADDRESSES {
        for (name, wanted) in [("early", "200"), ("late", "200"), ("db", "000")] {
            soon(name, || {
                (podman.curl(name, address) == wanted).then_some(())
            });
        }
        let (code, said) = curl_in(&host, &outside, address);
        assert_eq!(said, "000", "outside of containers: {address}: {code:?}");
    }
    fs::remove_dir(&outside).unwrap();
    let pid = podman.ask(&["inspect", "late", "--format", "{{.State.Pid}}"]);
    let pid = String::from_utf8(pid.stdout).unwrap();
    let (_, why) = host.host.ask(&["app", "why", pid.trim()]);
    assert!(
        why.contains("container other x=y") && why.contains("rule web"),
        "{why}"
    );

    // A control group of somebody's with the container's number in its name is another one.
    let group = host.cgroup.join("own").join(format!("libpod-{early}"));
    fs::create_dir_all(&group).unwrap();
    for address in ADDRESSES {
        let (code, said) = curl_in(&host, &group, address);
        assert_eq!(said, "000", "{address}: {code:?}");
    }
    soon("the alert", || {
        alerts()
            .contains("is not in its control group")
            .then_some(())
    });
    fs::remove_dir(&group).unwrap();
    fs::remove_dir(group.parent().unwrap()).unwrap();

    // Labels that are known stay known when the runtime ends.
    drop(serving);
    for address in ADDRESSES {
        assert_eq!(podman.curl("early", address), "200", "{address}");
    }
    let status = host.host.json(&["status"]);
    let containers = &status["app"]["containers"];
    assert!(containers["known"].as_u64().unwrap() >= 2, "{status}");
}

const NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";

/// Of containers of Kubernetes those of one namespace may.
fn by_namespace() -> String {
    "default = \"drop\"\nunknown = \"drop\"\ncontainer_sockets = [\"{dir}/absent.sock\"]\n\
     container_bundles = [\"{dir}/state/io.containerd.runtime.v2.task/k8s.io\", \"{dir}/crio\"]\n\
     [app.rules.shop]\nverdict = \"allow\"\ncontainer = \"io.kubernetes.pod.namespace=shop\"\n\
     ports = [\"8080/tcp\"]\n"
        .to_owned()
}

/// A containerd of its own, with containers in the namespace and below the control group that are
/// judged.
struct Containerd {
    dir: PathBuf,
    group: String,
    netns: PathBuf,
    _daemon: Child,
}

impl Containerd {
    fn new(host: &TestHost) -> Self {
        let dir = host.host.path(".");
        make_root(&dir.join("root"));
        let config = "version = 2\nroot = \"{dir}/lib\"\nstate = \"{dir}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{dir}/containerd.sock\"\n";
        let config = host.host.write("containerd.toml", config);
        let mut command = Command::new("containerd");
        command.arg("-c").arg(&config).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let made = Self {
            group: format!("/{}/kubepods/podx", host.instance),
            netns: host.space.path(),
            _daemon: Child::new("containerd", command.spawn().unwrap()),
            dir,
        };
        soon("containerd", || {
            let version = made.command(&["version"]).output().unwrap();
            version.status.success().then_some(())
        });
        made
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.dir.join("containerd.sock"));
        command.args(["-n", "k8s.io"]).args(words);
        command.stdin(Stdio::null());
        command
    }

    /// A container, annotated as containerd's CRI does it, which stands still.
    fn run(&self, id: &str, annotations: &[&str]) {
        let root = self.dir.join("root").display().to_string();
        let netns = format!("network:{}", self.netns.display());
        let group = format!("{}/{id}", self.group);
        let mut words = vec!["run", "-d", "--rootfs", "--with-ns", &netns];
        words.extend(["--mount", "type=bind,src=/usr,dst=/usr,options=rbind:ro"]);
        words.extend(["--cgroup", &group]);
        for annotation in annotations {
            words.extend(["--annotation", annotation]);
        }
        words.extend([&root, id, "/usr/bin/sleep", "600"]);
        let done = self.command(&words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "ctr {words:?}: {said}");
    }

    /// What curl says of the server in a container.
    fn curl(&self, id: &str, address: &str) -> String {
        let url = format!("http://{address}:8080/");
        let name = format!("curl-{}", address.len());
        let mut words = vec!["task", "exec", "--exec-id", &name, id, "/usr/bin/curl"];
        words.extend(["-sS", "-o", "/dev/null", "-w", "%{http_code}"]);
        words.extend(["--max-time", "4", &url]);
        let done = self.command(&words).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let listed = self.command(&["task", "ls", "-q"]).output();
        let listed = listed.map(|done| done.stdout).unwrap_or_default();
        for id in String::from_utf8_lossy(&listed).lines() {
            for words in [&["task", "rm", "-f", id][..], &["container", "rm", id]] {
                let _ = self.command(words).output();
            }
        }
        let top = self.group.split('/').nth(1);
        remove_groups(top.unwrap_or_default());
    }
}

#[test]
fn root_a_container_of_kubernetes_is_allowed_by_its_namespace() {
    if skipped(&["containerd", "ctr", "runc", "curl"]) {
        return;
    }
    let Some(host) = TestHost::new("kubernetes", &by_namespace()) else {
        return;
    };
    let containerd = Containerd::new(&host);
    let id = |number: u32| format!("{:032x}{number:032x}", std::process::id());
    let [shop, other, unnamed, crio] = [1, 2, 3, 4].map(id);
    containerd.run(&shop, &[&format!("{NAMESPACE}=shop")]);
    let pod = "io.kubernetes.cri.sandbox-name=shop";
    containerd.run(&other, &[&format!("{NAMESPACE}=other"), pod]);
    for address in ADDRESSES {
        soon("the container of the namespace", || {
            (containerd.curl(&shop, address) == "200").then_some(())
        });
        assert_eq!(containerd.curl(&other, address), "000", "{address}");
    }
    let state = "state/io.containerd.runtime.v2.task/k8s.io";
    let pid = host.host.read(&format!("{state}/{shop}/init.pid"));
    let (_, why) = host.host.ask(&["app", "why", pid.trim()]);
    assert!(
        why.contains("container io.kubernetes.pod.namespace=shop") && why.contains("rule shop"),
        "{why}"
    );

    // A control group of somebody's with the container's number in its name is another one.
    let claimed = host.cgroup.join("own/kubepods").join(&shop);
    fs::create_dir_all(&claimed).unwrap();
    for address in ADDRESSES {
        let (code, said) = curl_in(&host, &claimed, address);
        assert_eq!(said, "000", "{address}: {code:?}");
    }
    soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("its control group is").then_some(())
    });
    containerd.run(&unnamed, &[]);
    for address in ADDRESSES {
        assert_eq!(containerd.curl(&unnamed, address), "000", "{address}");
    }

    // As CRI-O has it, with a program in the group that the file names.
    let scope = format!("kubepods/crio-{crio}");
    let group = host.cgroup.join(&scope);
    fs::create_dir_all(&group).unwrap();
    let file = format!("crio/{crio}/userdata/config.json");
    fs::create_dir_all(host.host.path(&file).parent().unwrap()).unwrap();
    let config = format!(
        r#"{{"ociVersion":"1.1.0","annotations":{{"io.container.manager":"cri-o","io.kubernetes.cri-o.ContainerType":"container",
        "io.kubernetes.cri-o.Labels":"{{\"io.kubernetes.container.name\":\"web\",\"io.kubernetes.pod.namespace\":\"shop\"}}"}},
        "linux":{{"cgroupsPath":"/{}/{scope}"}}}}"#,
        host.instance
    );
    // Others than root can write to it.
    let at = host.host.write(&file, &config);
    fs::set_permissions(&at, PermissionsExt::from_mode(0o666)).unwrap();
    for address in ADDRESSES {
        assert_eq!(curl_in(&host, &group, address).1, "000", "{address}");
    }
    fs::set_permissions(&at, PermissionsExt::from_mode(0o644)).unwrap();
    for address in ADDRESSES {
        // It is read again after half a minute.
        soon("the container of CRI-O", || {
            (curl_in(&host, &group, address).1 == "200").then_some(())
        });
    }
}

//! The labels of containers of Kubernetes. Its runtimes, containerd and CRI-O, have no API of
//! Docker's. Each keeps a directory (a bundle, as the OCI calls it) for every container that runs,
//! with the configuration that it was started by: annotations say which container of which pod it
//! is, and `cgroupsPath` which control group is its own.
//!
//! Who may make control groups elsewhere can give one the container's number; so it counts only in
//! the group that the configuration names.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use weir_identity::hash;

use super::{NoLabels, bounded};

/// Bytes of a configuration that are read.
const MAX_CONFIG: u64 = 1 << 20;
/// Where it is below the directory of a container, by whose that is.
const PLACES: [(&str, Runtime); 2] = [
    ("config.json", Runtime::Containerd),
    ("userdata/config.json", Runtime::CriO),
];
/// All labels in one annotation of CRI-O's, as JSON.
const LABELS: &str = "io.kubernetes.cri-o.Labels";
/// Annotations of containerd's, and the labels that a kubelet gives a container for the same, which
/// CRI-O has, and Docker had.
const ANNOTATIONS: [(&str, &str); 4] = [
    (
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
    ),
    ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    (
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.pod.namespace",
    ),
    ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
];

/// The runtime that has written a configuration. Each may pass annotations on that a pod's author
/// has chosen, so that what is only the other one's says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// By containerd's annotations.
    Containerd,
    /// By the annotation of CRI-O's that has all labels.
    CriO,
}

/// By their keys.
pub type Labels = BTreeMap<String, String>;

/// The configuration that a container was started by (OCI runtime specification).
#[derive(Debug, Deserialize)]
struct Config {
    annotations: Option<BTreeMap<String, String>>,
    linux: Option<Linux>,
}

#[derive(Debug, Deserialize)]
struct Linux {
    #[serde(rename = "cgroupsPath")]
    cgroups_path: Option<String>,
}

/// Is it the control group of a container of Kubernetes? A kubelet has all of them below
/// `kubepods`, and its runtimes' names for scopes are known.
pub fn is_kubernetes(group: &str) -> bool {
    let is_pods = |part: &str| part.starts_with("kubepods");
    let scopes = ["cri-containerd-", "crio-"];
    let is_scope = |part: &str| scopes.iter().any(|scope| part.starts_with(scope));
    let mut parts = group.split('/');
    parts.any(|part| is_pods(part) || is_scope(part))
}

/// The labels of the container with this number in this control group, by the first of these
/// directories that has it; `None`: none has.
pub fn labels(bundles: &[PathBuf], group: &str, id: &str) -> Option<Result<Labels, NoLabels>> {
    let mut first_error = None;
    for bundle in bundles {
        for (place, runtime) in PLACES {
            let file = bundle.join(id).join(place);
            let why = match read(bundle, &file) {
                Ok(text) => match labels_in(&text, group, runtime) {
                    Ok(labels) => return Some(Ok(labels)),
                    Err(why) => why,
                },
                Err(error) if is_absent(&error) => continue,
                Err(error) => error.to_string(),
            };
            first_error.get_or_insert(NoLabels(format!("{}: {why}", file.display())));
        }
    }
    first_error.map(Err)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The content of a file that only root can have put there.
fn read(bundle: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let refused = |why: String| io::Error::new(ErrorKind::PermissionDenied, why);
    let is_roots = |about: &fs::Metadata, what: &Path| {
        let own = rustix::process::geteuid().as_raw();
        let uid = about.uid();
        match (uid == 0 || uid == own) && about.mode() & 0o022 == 0 {
            true => Ok(()),
            false => Err(refused(format!(
                "others than root can write to {} (user {uid}, mode {:o}); allowed: root",
                what.display(),
                about.mode() & 0o7777
            ))),
        }
    };
    // Whoever could write to one of these could put another one in the place of the next.
    let below = path.ancestors().skip(1);
    for directory in below.take_while(|directory| directory.starts_with(bundle)) {
        is_roots(&fs::metadata(directory)?, directory)?;
    }
    let file: File = hash::open(path).map_err(|error| match error {
        hash::HashError::Io(error) => error,
        other => refused(other.to_string()),
    })?;
    is_roots(&file.metadata()?, path)?;
    let mut text = Vec::new();
    file.take(MAX_CONFIG + 1).read_to_end(&mut text)?;
    match text.len() as u64 > MAX_CONFIG {
        true => Err(refused(format!("it has more than {MAX_CONFIG} bytes"))),
        false => Ok(text),
    }
}

/// The labels that a configuration of this runtime's gives the container of this control group.
///
/// # Errors
/// It is none, is of another group's, or names nothing.
pub fn labels_in(text: &[u8], group: &str, runtime: Runtime) -> Result<Labels, String> {
    let config: Config = serde_json::from_slice(text)
        .map_err(|error| format!("it is no configuration of a container: {error}"))?;
    let path = config.linux.and_then(|linux| linux.cgroups_path);
    let path = path.ok_or_else(|| "it has no linux.cgroupsPath".to_owned())?;
    if group_at(&path).as_deref() != Some(group) {
        let path: String = path.chars().take(256).collect();
        return Err(format!("its control group is {path:?}, and not {group:?}"));
    }
    let mut annotations = config.annotations.unwrap_or_default();
    let (labels, wanted) = match runtime {
        Runtime::CriO => {
            let labels = annotations
                .remove(LABELS)
                .map_or_else(|| Ok(Labels::new()), |labels| serde_json::from_str(&labels));
            let labels = labels
                .map_err(|error| format!("its annotation {LABELS} has no labels: {error}"))?;
            (labels, LABELS)
        }
        Runtime::Containerd => {
            let named = ANNOTATIONS.into_iter().filter_map(|(annotation, label)| {
                Some((label.to_owned(), annotations.remove(annotation)?))
            });
            (named.collect(), ANNOTATIONS[0].0)
        }
    };
    if labels.is_empty() {
        return Err(format!("its annotation {wanted} is missing or empty"));
    }
    bounded(labels).map_err(|why| why.to_string())
}

/// The path of a control group as a configuration names it: whole, or as `slice:prefix:name`, of
/// which systemd makes a scope in that slice. `None`: it names none that can be known here.
fn group_at(path: &str) -> Option<String> {
    if path.starts_with('/') {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let is_plain = parts.all(|part| part != "." && part != "..");
        return is_plain.then(|| path.trim_end_matches('/').to_owned());
    }
    let mut fields = path.split(':');
    let (slice, prefix, name) = (fields.next()?, fields.next()?, fields.next()?);
    let is_part = |text: &str| !text.is_empty() && !text.contains('/');
    if fields.next().is_some() || !is_part(name) || prefix.contains('/') {
        return None;
    }
    let slice = if slice.is_empty() {
        "system.slice"
    } else {
        slice
    };
    let mut group = String::new();
    // a-b.slice stands in a.slice (systemd.slice(5)); -.slice is the root.
    let whole = slice
        .strip_suffix(".slice")
        .filter(|whole| is_part(whole))?;
    if whole != "-" {
        let mut ends: Vec<usize> = whole.match_indices('-').map(|(at, _)| at).collect();
        ends.push(whole.len());
        for end in ends {
            let parent = &whole[..end];
            if parent.is_empty() || parent.ends_with('-') {
                return None;
            }
            group.push_str(&format!("/{parent}.slice"));
        }
    }
    let prefix = match prefix {
        "" => String::new(),
        prefix => format!("{prefix}-"),
    };
    Some(format!("{group}/{prefix}{name}.scope"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const ID: &str = "3f9a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccdde";
    const POD: &str = "pod0f6c8a0e_4b7d_4c53_9a53_0f4c6cf6b1a2";

    /// As containerd's CRI writes it, with systemd's control groups.
    fn of_containerd() -> (String, String) {
        let text = format!(
            r#"{{"ociVersion":"1.0.2-dev","process":{{"user":{{"uid":0,"gid":0}},"args":["/pause"],"cwd":"/"}},
            "root":{{"path":"rootfs"}},"hostname":"web-7d9c-x2x","mounts":[],
            "annotations":{{"io.kubernetes.cri.container-name":"web","io.kubernetes.cri.container-type":"container",
            "io.kubernetes.cri.image-name":"docker.io/library/nginx:1.25","io.kubernetes.cri.sandbox-id":"{ID}",
            "io.kubernetes.cri.sandbox-name":"web-7d9c-x2x","io.kubernetes.cri.sandbox-namespace":"shop",
            "io.kubernetes.cri.sandbox-uid":"0f6c8a0e-4b7d-4c53-9a53-0f4c6cf6b1a2"}},
            "linux":{{"resources":{{"memory":{{"limit":1}}}},"cgroupsPath":"kubepods-besteffort-{POD}.slice:cri-containerd:{ID}","namespaces":[]}}}}"#
        );
        let group = format!(
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{POD}.slice/cri-containerd-{ID}.scope"
        );
        (text, group)
    }

    /// As CRI-O writes it.
    fn of_crio() -> (String, String) {
        let text = format!(
            r#"{{"ociVersion":"1.1.0","annotations":{{"io.container.manager":"cri-o","io.kubernetes.container.hash":"1f2e",
            "io.kubernetes.container.name":"web","io.kubernetes.cri-o.ContainerType":"container","io.kubernetes.cri-o.SandboxID":"{ID}",
            "io.kubernetes.cri-o.Labels":"{{\"io.kubernetes.container.name\":\"web\",\"io.kubernetes.pod.name\":\"web-7d9c-x2x\",\"io.kubernetes.pod.namespace\":\"shop\",\"io.kubernetes.pod.uid\":\"0f6c8a0e-4b7d-4c53-9a53-0f4c6cf6b1a2\"}}"}},
            "linux":{{"cgroupsPath":"kubepods-{POD}.slice:crio:{ID}"}}}}"#
        );
        let group = format!("/kubepods.slice/kubepods-{POD}.slice/crio-{ID}.scope");
        (text, group)
    }

    fn put(bundle: &Path, place: &str, text: &str) -> PathBuf {
        let file = bundle.join(ID).join(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn kubernetes_containers_have_the_labels_of_their_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let bundles = ["absent", "containerd", "crio"].map(|name| dir.path().join(name));
        let made = [
            (of_containerd(), &bundles[1], "config.json"),
            (of_crio(), &bundles[2], "userdata/config.json"),
        ];
        for ((text, group), bundle, place) in &made {
            assert!(is_kubernetes(group), "{group}");
            assert_eq!(labels(&bundles, group, ID), None);
            put(bundle, place, text);
            let labels = labels(&bundles, group, ID).unwrap().unwrap();
            let wanted = [
                ("io.kubernetes.container.name", "web"),
                ("io.kubernetes.pod.name", "web-7d9c-x2x"),
                ("io.kubernetes.pod.namespace", "shop"),
                (
                    "io.kubernetes.pod.uid",
                    "0f6c8a0e-4b7d-4c53-9a53-0f4c6cf6b1a2",
                ),
            ];
            let wanted = wanted.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(labels, wanted.into());
            fs::remove_dir_all(bundle).unwrap();
        }
    }

    #[test]
    fn a_configuration_that_names_another_group_or_nothing_gives_no_labels() {
        let (text, group) = of_containerd();
        let of = |runtime| {
            move |text: &str, group: &str, wanted: &str| {
                let why = labels_in(text.as_bytes(), group, runtime).unwrap_err();
                assert!(why.contains(wanted), "{why}");
            }
        };
        let told = of(Runtime::Containerd);
        // The same number, in a group of somebody's.
        let other = format!("/user.slice/kubepods.slice/cri-containerd-{ID}.scope");
        told(&text, &other, "its control group is \"kubepods-besteffort-");
        told("[]", &group, "it is no configuration of a container");
        told("{}", &group, "it has no linux.cgroupsPath");
        told(
            "{\"annotations\":{\"a\":7}}",
            &group,
            "it is no configuration",
        );
        let without = text.replace("io.kubernetes.cri.", "io.other.");
        told(
            &without,
            &group,
            "io.kubernetes.cri.container-name is missing",
        );
        let told = of(Runtime::CriO);
        told(&text, &group, "io.kubernetes.cri-o.Labels is missing");
        let (text, group) = of_crio();
        let torn = text.replace("{\\\"io.kubernetes.container.name", "[\\\"io");
        told(&torn, &group, "io.kubernetes.cri-o.Labels has no labels");
        let long = text.replace("web-7d9c-x2x", &"x".repeat(64 << 10));
        told(&long, &group, "bytes; allowed: 65536");
    }

    /// containerd passes annotations of pods on whose names `pod_annotations` in its configuration
    /// has: their authors claim nothing by CRI-O's.
    #[test]
    fn what_is_another_runtimes_annotation_gives_no_labels() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().to_owned();
        let (text, group) = of_containerd();
        let claim = format!(
            r#""annotations":{{"{LABELS}":"{{\"io.kubernetes.pod.namespace\":\"kube-system\"}}","#
        );
        let claiming = text.replace(r#""annotations":{"#, &claim);
        let file = put(&bundle, "config.json", &claiming);
        let labels = || labels(std::slice::from_ref(&bundle), &group, ID).unwrap();
        assert_eq!(labels().unwrap()["io.kubernetes.pod.namespace"], "shop");
        // Nor has one labels that is CRI-O's, by annotations of containerd's.
        fs::remove_file(file).unwrap();
        put(&bundle, "userdata/config.json", &text);
        let why = labels().unwrap_err().to_string();
        assert!(
            why.contains("io.kubernetes.cri-o.Labels is missing"),
            "{why}"
        );
    }

    #[test]
    fn a_configuration_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().to_owned();
        let (text, group) = of_containerd();
        let file = put(&bundle, "config.json", &text);
        let labels = || labels(std::slice::from_ref(&bundle), &group, ID).unwrap();
        assert!(labels().is_ok());
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let below = bundle.join(ID);
        for (path, before) in [(&file, 0o644), (&below, 0o755), (&bundle, 0o700)] {
            mode(path, before | 0o020);
            let why = labels().unwrap_err().to_string();
            assert!(why.contains("others than root can write to"), "{why}");
            mode(path, before);
            assert!(labels().is_ok());
        }
        fs::write(&file, vec![b' '; MAX_CONFIG as usize + 1]).unwrap();
        let why = labels().unwrap_err().to_string();
        assert!(why.contains("it has more than 1048576 bytes"), "{why}");
        fs::remove_file(&file).unwrap();
        // What would be waited for, and what is no file.
        symlink("/dev/zero", &file).unwrap();
        let why = labels().unwrap_err().to_string();
        assert!(why.contains("it is no regular file"), "{why}");
    }

    #[test]
    fn a_control_group_is_found_by_the_name_that_a_runtime_gives_it() {
        for (path, group) in [
            (
                "/kubepods/burstable/podx/abc",
                Some("/kubepods/burstable/podx/abc"),
            ),
            ("/kubepods/x/", Some("/kubepods/x")),
            ("/kubepods/../x", None),
            (
                "kubepods-burstable-podx_y.slice:cri-containerd:abc",
                Some(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_y.slice/cri-containerd-abc.scope",
                ),
            ),
            ("a.slice::abc", Some("/a.slice/abc.scope")),
            (":runc:abc", Some("/system.slice/runc-abc.scope")),
            ("-.slice:crio:abc", Some("/crio-abc.scope")),
            ("a--b.slice:crio:abc", None),
            ("-a.slice:crio:abc", None),
            ("a-.slice:crio:abc", None),
            (".slice:crio:abc", None),
            ("a/b.slice:crio:abc", None),
            ("a.slice:cr/io:abc", None),
            ("a.slice:crio:", None),
            ("a.slice:crio:abc:d", None),
            ("a:crio:abc", None),
            ("kubepods/x", None),
            ("", None),
        ] {
            assert_eq!(group_at(path).as_deref(), group, "{path}");
        }
        for (group, is) in [
            ("/kubepods/podx/abc", true),
            ("/kubepods.slice/docker-abc.scope", true),
            ("/system.slice/crio-abc.scope", true),
            ("/system.slice/docker-abc.scope", false),
            ("/machine.slice/libpod-abc.scope", false),
            ("/", false),
        ] {
            assert_eq!(is_kubernetes(group), is, "{group}");
        }
    }
}

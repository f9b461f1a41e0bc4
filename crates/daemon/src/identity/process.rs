//! What a process is, read from /proc: the files that it has mapped executable, by their
//! content, and what rules ask besides.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use weir_bpf::identity::{Key, Seen};
use weir_identity::{
    Container, Digest, Object, Program,
    hash::{self, FileKey},
};

use super::{
    below,
    containers::{Containers, NoLabels},
    mounts::{Found, RemoteMounts, Unasked},
    objects::{NoDigest, Objects, is_unsealed_memory},
    packages::Packages,
    way::reach,
};
use crate::host::{cgroup_of, parent_of};

/// Bytes of a list of mappings that are read: 65,536 mappings have about 6 MiB.
const MAX_MAPS: u64 = 8 << 20;
/// Executable mappings of files that are looked at, each of which takes a few calls. A program that
/// has more is what it is only in part.
const MAX_MAPPINGS: usize = 4096;
/// Files that one program has mapped executable.
const MAX_OBJECTS: usize = 1024;
/// Threads of a process that are tried where the first one has ended.
const MAX_THREADS: usize = 64;
/// Bytes of arguments.
const MAX_ARGUMENTS: u64 = 4096;

/// A process, and of which files it consists.
#[derive(Debug, Clone)]
pub struct ReadProgram {
    /// As rules ask about it.
    pub program: Program,
    /// The files that the process has mapped executable.
    pub files: BTreeSet<FileKey>,
    /// Its executable, if that has a digest.
    pub executable: Option<FileKey>,
    /// The path of its executable leads to this very file here: it is not of a container,
    /// and nobody has put another one in its place.
    pub is_at_path: bool,
    /// It is looked up of which package, or in which container, it is, if that is asked for.
    pub is_looked_up: bool,
    /// Why the labels of the container that it is in are not known.
    pub without_labels: Option<NoLabels>,
    /// Why the first file without a digest has none, and which it is.
    pub without: Option<(PathBuf, NoDigest)>,
}

/// One mapping of a file: where it is, and what the list of mappings says of the file. Its device
/// and inode are for people: shared memory has a number there that is nobody's inode, and an
/// overlay has one for two files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    range: String,
    device: Vec<u8>,
    inode: Vec<u8>,
    path: PathBuf,
}

impl Mapping {
    fn start(&self) -> Option<u64> {
        let (start, _) = self.range.split_once('-')?;
        u64::from_str_radix(start, 16).ok()
    }
}

/// What map_files calls a range: without the zeros by which the list of mappings fills low
/// addresses up, where programs without PIE are.
fn name_of(range: &str) -> String {
    let ends = range
        .split('-')
        .map(|end| match end.trim_start_matches('0') {
            "" => "0",
            end => end,
        });
    ends.collect::<Vec<_>>().join("-")
}

/// The mappings of files that are executable, in the order of their addresses; and are there more
/// than [`MAX_MAPPINGS`], or a longer list than is read? What is behind them is not read: the
/// kernel holds changes up while it is.
fn executable_mappings(maps: impl Read) -> io::Result<(Vec<Mapping>, bool)> {
    let mut maps = BufReader::with_capacity(64 << 10, maps.take(MAX_MAPS + 1));
    let (mut found, mut line, mut length) = (Vec::new(), Vec::new(), 0);
    loop {
        line.clear();
        length += maps.read_until(b'\n', &mut line)? as u64;
        if line.is_empty() || length > MAX_MAPS {
            return Ok((found, length > MAX_MAPS));
        }
        // address perms offset dev inode, blanks, and the path with whatever is in it.
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let mut fields = text.splitn(6, |byte| *byte == b' ');
        let mut field = || fields.next().unwrap_or_default();
        let (range, perms, _, device, inode) = (field(), field(), field(), field(), field());
        // What is of no file has no device.
        if perms.get(2) != Some(&b'x') || inode.is_empty() || device == b"00:00" {
            continue;
        }
        if found.len() == MAX_MAPPINGS {
            return Ok((found, true));
        }
        found.push(Mapping {
            range: name_of(&String::from_utf8_lossy(range)),
            device: device.to_vec(),
            inode: inode.to_vec(),
            path: PathBuf::from(OsStr::from_bytes(field().trim_ascii_start())),
        });
    }
}

/// A file that a process has mapped: its name there, and it open.
struct OpenedFile {
    path: PathBuf,
    file: Result<File, NoDigest>,
    /// The addresses at which it is mapped, if it is of an overlay.
    starts: Vec<u64>,
}

impl OpenedFile {
    fn new(path: PathBuf, file: Result<File, NoDigest>) -> Self {
        Self {
            path,
            file,
            starts: Vec::new(),
        }
    }

    /// The executable of a process that has mapped these.
    fn executable(path: PathBuf, file: Result<File, NoDigest>, mapped: &[Self]) -> Self {
        let key_of = |opened: &Self| {
            let about = opened.file.as_ref().ok()?.metadata().ok()?;
            Some(FileKey::of(&about))
        };
        let mut exe = Self::new(path, file);
        let mut of_overlays = mapped.iter().filter(|other| !other.starts.is_empty());
        if let Some(same) = of_overlays.find(|other| key_of(other) == key_of(&exe)) {
            exe.starts.clone_from(&same.starts);
        }
        exe
    }

    /// Notes that it is mapped there.
    fn add(&mut self, mapping: &Mapping) {
        if self.file.as_ref().is_ok_and(hash::is_overlay) {
            self.starts.extend(mapping.start());
        }
    }

    /// Its digest, if what is mapped is what has it.
    fn digest(self, thread: u32, objects: &mut Objects) -> Result<(FileKey, Digest), NoDigest> {
        let file = self.file?;
        if self.starts.is_empty() {
            return objects.digest_of(file);
        }
        let again = file.try_clone().map_err(|_| NoDigest::Unreadable)?;
        let found = objects.digest_of(file)?;
        below::refuse_other(&again, thread, &self.starts)?;
        Ok(found)
    }
}

/// Opens a file of a process with these mounts, if what is in it is as it was put there.
fn open(found: &Found, mounts: &RemoteMounts) -> Result<File, NoDigest> {
    let file = found.open()?;
    match hash::is_overlay(&file) && !mounts.trust_overlay(&file) {
        true => Err(NoDigest::Untrusted),
        false => Ok(file),
    }
}

/// The files of these mappings, open, each once, with their names; and are there more than
/// [`MAX_OBJECTS`]?
fn files_of(mappings: Vec<Mapping>, proc: &Path, remote: &RemoteMounts) -> (Vec<OpenedFile>, bool) {
    let (mut files, mut shown) = (Vec::<OpenedFile>::new(), BTreeSet::new());
    // With what can be written unseen apart: its number may be that of another one in memory.
    let mut known: BTreeMap<(FileKey, bool), usize> = BTreeMap::new();
    for mapping in mappings {
        let at = proc.join("map_files").join(&mapping.range);
        // By the link once, for another file may be mapped there next.
        let found = match remote.hold_device(&mapping.device) {
            true => Err(Unasked::Others),
            false => remote.find(&at),
        };
        let about = found.map_err(NoDigest::from).and_then(|found| {
            let about = found.about().map_err(|_| NoDigest::Unreadable)?;
            Ok((found, about))
        });
        let opened = match about {
            Err(_) if !shown.insert((mapping.device.clone(), mapping.inode.clone())) => continue,
            Err(why) => Err(why),
            Ok((found, about)) => {
                let key = FileKey::of(&about);
                if let Some(place) = known.get(&(key, false)).filter(|_| about.nlink() != 0) {
                    files[*place].add(&mapping);
                    continue;
                }
                let opened = open(&found, remote);
                let is_unsealed = opened.as_ref().is_ok_and(is_unsealed_memory);
                if let Some(place) = known.get(&(key, is_unsealed)) {
                    files[*place].add(&mapping);
                    continue;
                }
                if files.len() < MAX_OBJECTS {
                    known.insert((key, is_unsealed), files.len());
                }
                opened
            }
        };
        if files.len() >= MAX_OBJECTS {
            return (files, true);
        }
        let mut opened = OpenedFile::new(mapping.path.clone(), opened);
        opened.add(&mapping);
        files.push(opened);
    }
    (files, false)
}

/// Mappings of no file that are the kernel's own.
const OF_KERNEL: [&[u8]; 3] = [b"[vdso]", b"[vsyscall]", b"[uprobes]"];

/// A thread as /proc shows it, where no program of the kernel's looks: with what says, compared
/// with that of another look, that nobody has changed its executable mappings between them.
/// `None`: it is gone.
pub(super) fn look(thread: u32) -> Option<(Seen, Vec<u8>)> {
    let proc = PathBuf::from(format!("/proc/{thread}"));
    let (maps, _) = read_at_most(&proc.join("maps"), MAX_MAPS)?;
    let mut state = Vec::new();
    let mut anonymous = false;
    for line in maps.split(|byte| *byte == b'\n') {
        let mut fields = line.splitn(6, |byte| *byte == b' ').skip(1);
        let mut field = || fields.next().unwrap_or_default();
        let (perms, _, device, _) = (field(), field(), field(), field());
        if perms.get(2) != Some(&b'x') {
            continue;
        }
        let name = field().trim_ascii();
        if device == b"00:00" {
            anonymous |= !OF_KERNEL.contains(&name);
        }
        state.extend(line);
        state.push(b'\n');
    }
    // One that is gone, and threads of the kernel's, have none.
    if state.is_empty() {
        return None;
    }
    let exe = fs::read_link(proc.join("exe")).ok()?;
    state.extend(exe.as_os_str().as_bytes());
    let status = fs::read_to_string(proc.join("status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uid = users.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let key = Key {
        set: [0; 2],
        cgroup: 0,
        uid,
        space: 0,
        anonymous,
        altered: false,
    };
    let seen = Seen {
        key,
        executable: None,
        space: 0,
        sequence: 0,
        uid,
        cgroup: 0,
        walk_ns: 0,
    };
    Some((seen, state))
}

fn read_at_most(path: &Path, most: u64) -> Option<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(most + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    let is_cut = bytes.len() as u64 > most;
    bytes.truncate(most as usize);
    Some((bytes, is_cut))
}

/// The script among an interpreter's arguments: the first that is no option.
fn script_of(arguments: &[String], directory: Option<&Path>) -> Option<PathBuf> {
    let argument = arguments
        .iter()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))?;
    let path = Path::new(argument);
    match path.is_absolute() {
        true => Some(path.to_owned()),
        false => Some(directory?.join(path)),
    }
}

/// Other threads of a process of which the first one has ended while they go on, so that nothing
/// is to be read of it by the process's number; none, if that one goes on.
pub(super) fn threads_of_ended(pid: u32) -> Vec<u32> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let state = fs::read_to_string(proc.join("stat")).unwrap_or_default();
    // Behind the name, which may have whatever in it.
    let state = state.rsplit_once(')').map(|(_, state)| state.trim_start());
    if !state.is_some_and(|state| state.starts_with('Z')) {
        return Vec::new();
    }
    let threads = fs::read_dir(proc.join("task"));
    let threads = threads.into_iter().flatten().flatten();
    let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // One that has ended is there no more, but for the first and those that are traced.
    numbers
        .filter(|thread| *thread != pid)
        .take(MAX_THREADS)
        .collect()
}

/// Reads a process by one of its threads, which is as `seen` says, without its arguments, with
/// the package of its executable and the labels of its container if these are given; `None`: it
/// is gone.
pub(super) fn read(
    (pid, thread): (u32, u32),
    seen: &Seen,
    objects: &mut Objects,
    packages: Option<&Packages>,
    containers: Option<&Containers>,
) -> Option<ReadProgram> {
    let proc = PathBuf::from(format!("/proc/{thread}"));
    let maps = File::open(proc.join("maps")).ok()?;
    let (mappings, is_cut) = executable_mappings(maps).ok()?;
    let mut program = Program {
        anonymous: seen.key.anonymous,
        altered: seen.key.altered,
        uid: seen.uid,
        cgroup: cgroup_of(thread)?,
        ..Program::default()
    };
    let exe = fs::read_link(proc.join("exe")).ok();
    let remote = RemoteMounts::of(thread);
    let exe_link = proc.join("exe");
    let exe_found = exe.as_ref().map_or(Err(Unasked::Gone), |exe| {
        let mapped = mappings.iter().find(|mapping| mapping.path == *exe);
        let by_list = match mapped {
            Some(mapping) => remote.hold_device(&mapping.device),
            None => remote.hold_path(exe),
        };
        match by_list {
            true => Err(Unasked::Others),
            false => remote.find(&exe_link),
        }
    });
    // All are opened before one is hashed, which takes a while: of a process that ends
    // meanwhile the digests are known, and the next one of its kind is identified sooner.
    let (objects_opened, are_more) = files_of(mappings, &proc, &remote);
    program.truncated = is_cut || are_more;
    let exe_opened = exe.map(|path| match &exe_found {
        Err(why) => OpenedFile::new(path, Err((*why).into())),
        Ok(found) => OpenedFile::executable(path, open(found, &remote), &objects_opened),
    });
    let (mut files, mut without) = (BTreeSet::new(), None);
    let mut object = |opened: OpenedFile| {
        let path = opened.path.clone();
        let digest = match opened.digest(thread, objects) {
            Ok((id, digest)) => {
                files.insert(id);
                Some((id, digest))
            }
            Err(why) => {
                // What may have one later is what the program is looked at again for.
                let is_first = without
                    .as_ref()
                    .is_none_or(|(_, first): &(PathBuf, NoDigest)| {
                        why.is_for_now() && !first.is_for_now()
                    });
                if is_first {
                    without = Some((path.clone(), why));
                }
                None
            }
        };
        let file = digest.map(|(id, _)| id);
        let digest = digest.map(|(_, digest)| digest);
        (Object { path, digest }, file)
    };
    let (mut executable, mut is_looked_up) = (None, false);
    let objects = objects_opened.into_iter();
    program.objects = objects.map(|opened| object(opened).0).collect();
    // Two may have one path, as memory has, and lie anywhere.
    let order = |a: &Object, b: &Object| (&a.path, a.digest).cmp(&(&b.path, b.digest));
    program.objects.sort_by(order);
    if let Some(opened) = exe_opened {
        let exe;
        (exe, executable) = object(opened);
        // Without a SHA-256 it is of no package: others may write to it.
        if let (Some(packages), Some(digest)) = (packages, exe.digest)
            && let Ok(found) = &exe_found
            && let Ok(file) = found.open()
        {
            let package = packages.of(&exe.path, file, digest, pid);
            is_looked_up = package.is_none();
            program.package = package.flatten();
        }
        program.exe = Some(exe);
    }
    let mut without_labels = None;
    if let Some(containers) = containers {
        match containers.of(&program.cgroup, pid) {
            Some((container, why)) => (program.container, without_labels) = (container, why),
            None => {
                program.container = Container::Unknown;
                is_looked_up = true;
            }
        }
    }
    let namespace = fs::read_link(proc.join("ns/net")).ok();
    program.netns = namespace
        .and_then(|link| {
            let text = link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?;
            text.parse().ok()
        })
        .unwrap_or_default();
    let exe = program.exe.as_ref();
    // Here another mount may be at that path, and a link that its user has put there.
    let exe = exe.filter(|_| executable.is_some());
    let at_path = exe.and_then(|exe| reach(&exe.path)?.about().ok());
    Some(ReadProgram {
        is_at_path: at_path.is_some_and(|about| files.contains(&FileKey::of(&about))),
        is_looked_up,
        without_labels,
        program,
        files,
        executable,
        without,
    })
}

/// Reads the arguments of a process, and by these its script; `false`: it is gone.
///
/// Apart from [`read`]: where a title is written over the arguments (nginx's master,
/// PostgreSQL) the kernel may look for the end of it behind the stack (`get_mm_cmdline`), which
/// counts up the sequence of the mappings. Such a process would never stand still.
pub(super) fn read_arguments(pid: u32, program: &mut Program) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let Some((arguments, _)) = read_at_most(&proc.join("cmdline"), MAX_ARGUMENTS) else {
        return false;
    };
    program.cmdline = arguments
        .split(|byte| *byte == 0)
        .filter(|argument| !argument.is_empty())
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    let directory = fs::read_link(proc.join("cwd")).ok();
    program.script = script_of(&program.cmdline, directory.as_deref());
    true
}

/// Programs that run a script, which they name among their arguments.
const INTERPRETERS: [&str; 14] = [
    "bash", "dash", "sh", "zsh", "ksh", "python", "perl", "ruby", "node", "php", "lua", "java",
    "tclsh", "Rscript",
];
/// Options after which comes no script's path.
const NO_SCRIPT: [&str; 5] = ["-c", "-e", "-E", "-m", "-r"];

/// The script's file, of a program that is known to run scripts and names one that is
/// there: others have an argument where an interpreter has its script.
pub fn script_file(program: &Program) -> Option<&Path> {
    let exe = program.exe.as_ref()?;
    let name = exe.path.file_name()?.to_str()?;
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let mut options = program.cmdline.iter().skip(1);
    let options = options.by_ref().take_while(|word| word.starts_with('-'));
    if !INTERPRETERS.contains(&name) || options.into_iter().any(|word| NO_SCRIPT.contains(&&**word))
    {
        return None;
    }
    let is_file = |found: Found| found.about().is_ok_and(|about| about.is_file());
    let there = |path: &&Path| reach(path).is_some_and(is_file);
    program.script.as_deref().filter(there)
}

/// The parents of a process up to the first one: numbers and executables.
pub fn parents(pid: u32) -> Vec<(u32, String)> {
    let mut chain = Vec::new();
    let mut of = pid;
    // No host nests deeper, and a number may come again meanwhile.
    while chain.len() < 16 {
        let Some(parent) = parent_of(of) else {
            break;
        };
        let exe = fs::read_link(format!("/proc/{parent}/exe"));
        let exe = exe.map_or_else(
            |_| "?".to_owned(),
            |path| path.to_string_lossy().into_owned(),
        );
        chain.push((parent, exe));
        of = parent;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_whatever_their_path_has() {
        let maps = b"7f00-7f10 r--p 00000000 fe:00 12   /usr/bin/a b\n\
            7f10-7f20 r-xp 00001000 fe:00 12                /usr/bin/a b (deleted)\n\
            7f20-7f30 r-xp 00002000 fe:00 12                /usr/bin/a b\n\
            7f30-7f40 rwxp 00000000 00:00 0 \n\
            7f40-7f50 r-xp 00000000 00:01 1033              /memfd:x (deleted)\n\
            7f50-7f60 rwxs 00000000 00:01 0                 /SYSV00000000 (deleted)\n\
            7f60-7f70 r-xp 00000000 00:2e 2                 /mnt/m/g\n\
            7f70-7f80 r-xp 00000000 00:2e 2                 /mnt/m/e\n\
            7ffd-7fff r-xp 00000000 00:00 0                 [vdso]\n\
            torn";
        let (found, are_more) = executable_mappings(&maps[..]).unwrap();
        assert!(!are_more);
        let shown: Vec<_> = found
            .iter()
            .map(|m| format!("{} {}", m.range, m.path.display()))
            .collect();
        assert_eq!(
            shown,
            [
                "7f10-7f20 /usr/bin/a b (deleted)",
                "7f20-7f30 /usr/bin/a b",
                "7f40-7f50 /memfd:x (deleted)",
                "7f50-7f60 /SYSV00000000 (deleted)",
                "7f60-7f70 /mnt/m/g",
                "7f70-7f80 /mnt/m/e",
            ]
        );
    }

    /// At the cap: nobody has many thousands of calls made for one program.
    #[test]
    fn of_very_many_mappings_the_first_are_looked_at() {
        let line = |n: usize| format!("{:x}-{:x} r-xp 0 fe:00 12 /a\n", n << 12, (n + 1) << 12);
        let maps: String = (0..MAX_MAPPINGS).map(line).collect();
        let of = |maps: &str| {
            let (found, are_more) = executable_mappings(maps.as_bytes()).unwrap();
            (found.len(), are_more)
        };
        assert_eq!(of(&maps), (MAX_MAPPINGS, false));
        let others = "7f00-7f10 r--p 0 fe:00 12 /a\n";
        assert_eq!(of(&format!("{maps}{others}")), (MAX_MAPPINGS, false));
        let more = format!("{maps}{others}{}", line(MAX_MAPPINGS));
        assert_eq!(of(&more), (MAX_MAPPINGS, true));
        let long = others.repeat(MAX_MAPS as usize / others.len() + 1);
        assert_eq!(of(&long), (0, true));
    }

    #[test]
    fn low_ranges_are_called_as_map_files_does() {
        let maps = b"00423000-006c0000 r-xp 00023000 fe:00 9  /usr/bin/python3.11\n";
        let (found, _) = executable_mappings(&maps[..]).unwrap();
        assert_eq!(found[0].range, "423000-6c0000");
        assert_eq!(name_of("00000000-00001000"), "0-1000");
        assert_eq!(name_of("7f10-7f20"), "7f10-7f20");
    }

    #[test]
    fn the_script_is_the_first_argument_that_is_no_option() {
        let of = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
            script_of(&arguments, Some(Path::new("/srv")))
        };
        assert_eq!(of("python3 -u /opt/a.py x"), Some("/opt/a.py".into()));
        assert_eq!(of("python3 a.py"), Some("/srv/a.py".into()));
        assert_eq!(of("python3 -i"), None);
    }

    #[test]
    fn a_script_is_a_file_that_an_interpreter_runs() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("a.py");
        fs::write(&script, "").unwrap();
        let script = script.to_str().unwrap();
        for (line, is) in [
            (format!("/usr/bin/python3.11 -u {script} x"), true),
            (format!("/usr/bin/python3.11 {script}"), true),
            (format!("/usr/bin/python3.11 -c {script}"), false),
            (format!("/usr/bin/python3.11 -m {script}"), false),
            ("/usr/bin/python3.11 /none".to_owned(), false),
            (format!("/usr/bin/curl {script}"), false),
        ] {
            let cmdline: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let program = Program {
                exe: Some(Object {
                    path: cmdline[0].clone().into(),
                    digest: None,
                }),
                script: script_of(&cmdline, None),
                cmdline,
                ..Program::default()
            };
            assert_eq!(script_file(&program).is_some(), is, "{line}");
        }
    }

    #[test]
    fn this_process_has_parents() {
        let parents = parents(std::process::id());
        assert!(!parents.is_empty());
    }
}

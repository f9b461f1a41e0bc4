//! Loading, pinning and attaching the programs of identity. Their pins are in a directory
//! of their own: `app-N` of the instance, with N the form of the tables. A later daemon
//! loads its programs over the tables that are there and puts them in the place of the
//! earlier one's, so that nothing passes meanwhile.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Component, Path, PathBuf},
};

use libbpf_rs::{
    MapCore, MapHandle, OpenObject, libbpf_sys as sys,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use super::{
    Identity, diag,
    level::{Hooks, Level, can_end_connections, hooks},
};
use crate::{
    abi,
    error::{Context, Error, Result},
    fault,
    group_link::ControlGroup,
    object, pins,
    skeleton::identity::{IdentitySkelBuilder, OpenIdentitySkel, types::ident_ended},
};

/// The control group in which identity is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupAt {
    path: PathBuf,
    below: PathBuf,
    id: u64,
    level: u32,
}

impl CgroupAt {
    /// Where the hierarchy of version 2 is mounted; `None`: nowhere.
    pub fn mount_point() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        mounts.find_map(|mut fields| {
            let place = fields.nth(1)?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(place))
        })
    }

    /// The one at `path`; `None`: the root of version 2.
    ///
    /// # Errors
    /// There is none.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(root) = Self::mount_point() else {
            return Err(Error::refused(
                "find the control groups of version 2",
                "they are mounted nowhere: mount -t cgroup2 none /sys/fs/cgroup",
            ));
        };
        let shown = path.unwrap_or(&root).display().to_string();
        let what = || format!("use the control group {shown}");
        let path = fs::canonicalize(path.unwrap_or(&root)).context(what)?;
        let root = fs::canonicalize(&root).context(what)?;
        let Ok(below) = path.strip_prefix(&root) else {
            return Err(Error::refused(
                what(),
                format!("it is not below {}", root.display()),
            ));
        };
        let level = below.components().count() as u32;
        // The inode's number is the group's id.
        let id = fs::metadata(&path).context(what)?.ino();
        let below = below.to_owned();
        Ok(Self {
            path,
            below,
            id,
            level,
        })
    }

    /// The same, or where there is none at `path` yet one that may come there: programs are
    /// attached to it by [`Loaded::move_to`] then.
    ///
    /// # Errors
    /// There is none, and none can come there.
    pub fn open_or_await(path: Option<&Path>) -> Result<Self> {
        let error = match Self::open(path) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let (Some(path), Some(root)) = (path, Self::mount_point()) else {
            return Err(error);
        };
        let is_plain = |below: &&Path| {
            let mut parts = below.components();
            parts.all(|part| matches!(part, Component::Normal(_)))
        };
        let below = path.strip_prefix(&root).ok().filter(is_plain);
        match below.filter(|_| !path.exists()) {
            None => Err(error),
            Some(below) => Ok(Self {
                path: path.to_owned(),
                below: below.to_owned(),
                id: 0,
                level: below.components().count() as u32,
            }),
        }
    }

    /// Is the control group at `path` this very one, and not another one by that name?
    pub fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|about| about.ino() == self.id)
    }

    /// As the kernel numbers it; 0: it is not there yet.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The directory of the control group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path from the root of the hierarchy, as /proc/PID/cgroup has it.
    pub fn below_root(&self) -> String {
        format!("/{}", self.below.display())
    }
}

/// Where a program goes.
#[derive(Clone, Copy)]
enum Place {
    Cgroup(sys::bpf_attach_type),
    /// A tracepoint, or a function of the kernel's: the program has its name.
    Tracing,
}

/// A program that is loaded.
struct Program {
    /// Under which it is pinned.
    name: &'static str,
    place: Place,
    fd: OwnedFd,
}

/// Programs that are loaded.
pub struct Loaded {
    /// Programs that note changes of mappings.
    changes: Vec<Program>,
    /// Programs that make records of sockets.
    noting: Vec<Program>,
    /// Programs that judge by these records.
    judging: Vec<Program>,
    cgroup: CgroupAt,
    dir: PathBuf,
    level: Level,
    is_fresh: bool,
}

/// Is it a table of identity's, at this level?
fn is_pinned(map: &std::ffi::OsStr, level: Level) -> bool {
    map.to_string_lossy().starts_with("ident_") && (map != CHANGES || level == Level::Push)
}

/// The table that level push alone has.
const CHANGES: &str = "ident_changes";

/// Whether changes of mappings are noted in the table that level push has: a daemon that
/// died while it went to another level, or came from one, has left some of that.
fn is_counted(dir: &Path) -> bool {
    [CHANGES, "link-unlock", "link-lower"]
        .iter()
        .all(|pin| dir.join(pin).exists())
}

/// Below an instance's pins.
fn dir_of(root: &Path, instance: &str) -> PathBuf {
    root.join(pins::escape(instance))
        .join(format!("app-{}", abi::IDENT_ABI))
}

impl Identity {
    /// Loads the programs over the tables that an earlier daemon has left, or over new
    /// ones, at the best level; nothing of them is attached but what counts changes of mappings
    /// at level push. Tables for another control group go.
    ///
    /// # Errors
    /// The kernel refuses something, or the pins are not ours.
    pub fn load(root: &Path, instance: &str, cgroup: &CgroupAt) -> Result<(Self, Loaded)> {
        Self::load_at(root, instance, cgroup, None)
    }

    /// The same, at the level that is wanted.
    ///
    /// # Errors
    /// As of [`Self::load`], and the kernel lacks what a level takes.
    pub fn load_at(
        root: &Path,
        instance: &str,
        cgroup: &CgroupAt,
        wanted: Option<Level>,
    ) -> Result<(Self, Loaded)> {
        let hooks = hooks(wanted).map_err(|lacks| {
            let what = match wanted {
                Some(level) => format!("load the programs of [app] at level {}", level.name()),
                None => "load the programs of [app]".to_owned(),
            };
            Error::refused(what, format!("this kernel lacks {}", lacks.join(", ")))
        })?;
        pins::require_bpffs(root.parent().unwrap_or(root))?;
        let dir = dir_of(root, instance);
        let of_instance = root.join(pins::escape(instance));
        for one in [root, of_instance.as_path(), dir.as_path()] {
            pins::make_ours(one)?;
        }
        let made = Self::load_in(&dir, cgroup, hooks)?;
        let control = made.0.control()?;
        let is_same = (control.cgroup, control.level) == (cgroup.id, cgroup.level);
        if made.1.is_fresh || is_same {
            return Ok(made);
        }
        drop(made);
        detach(root, instance)?;
        pins::make_ours(&of_instance)?;
        pins::make_ours(&dir)?;
        Self::load_in(&dir, cgroup, hooks)
    }

    fn load_in(dir: &Path, cgroup: &CgroupAt, hooks: Hooks) -> Result<(Self, Loaded)> {
        let what = || {
            "load the programs of [app] (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)".to_owned()
        };
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let mut open: OpenIdentitySkel<'_> = IdentitySkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        // All or none: a daemon that died while it pinned has left some.
        let is_fresh = !dir.join("whole").exists();
        // What nobody has counted since says nothing here.
        let is_counted = !is_fresh && is_counted(dir);
        for mut map in open.open_object_mut().maps_mut() {
            if map.name() == CHANGES && hooks.level != Level::Push {
                map.set_autocreate(false).context(what)?;
            }
            // The others are the compiler's, and hold nothing.
            if !is_pinned(map.name(), hooks.level) {
                continue;
            }
            let pin = dir.join(map.name());
            if is_fresh || (map.name() == CHANGES && !is_counted) {
                let _ = fs::remove_file(&pin);
            } else {
                let pinned = MapHandle::from_pinned_path(&pin).context(what)?;
                map.reuse_fd(pinned.as_fd()).context(what)?;
            }
        }
        // At level push also where a program could, so that this is tried on every kernel.
        let by_diag = hooks.level == Level::Push || !can_end_connections();
        let can_cut = !by_diag || diag::can_end();
        open.progs.weir_app_cut_tcp.set_autoload(can_cut);
        open.progs.weir_app_cut_udp.set_autoload(can_cut);
        open.progs.weir_app_ended.set_autoload(can_cut && by_diag);
        let Hooks {
            level,
            by_function,
            has_pages,
        } = hooks;
        let is_push = level == Level::Push;
        let rodata = open.maps.rodata_data.as_deref_mut();
        let cfg = &mut rodata.expect("the object has rodata").ident_cfg;
        (cfg.push, cfg.diag) = (is_push.into(), by_diag.into());
        open.progs.weir_app_send.set_autoload(!by_function);
        for program in [
            &mut open.progs.weir_app_entry,
            &mut open.progs.weir_app_room,
            &mut open.progs.weir_app_open,
        ] {
            program.set_autoload(by_function);
        }
        open.progs.weir_app_pages.set_autoload(has_pages);
        open.progs
            .weir_app_unlock
            .set_autoload(is_push && by_function);
        open.progs
            .weir_app_lower
            .set_autoload(is_push && by_function);
        open.progs
            .weir_app_released
            .set_autoload(is_push && !by_function);
        open.progs
            .weir_app_lowered
            .set_autoload(is_push && !by_function);
        open.progs.weir_app_look.set_autoload(is_push);
        open.progs.weir_app_question.set_autoload(!is_push);
        let skel = open.load().context(what)?;
        let keep = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(what);
        let progs = &skel.progs;
        let of = |name, place, fd: BorrowedFd<'_>| {
            let fd = keep(fd)?;
            Ok(Program { name, place, fd })
        };
        let changes = match (is_push, by_function) {
            (false, _) => Vec::new(),
            (true, true) => vec![
                ("unlock", progs.weir_app_unlock.as_fd()),
                ("lower", progs.weir_app_lower.as_fd()),
            ],
            (true, false) => vec![
                ("unlock", progs.weir_app_released.as_fd()),
                ("lower", progs.weir_app_lowered.as_fd()),
            ],
        };
        let changes = changes.into_iter();
        let changes = changes.map(|(name, fd)| of(name, Place::Tracing, fd));
        let changes = changes.collect::<Result<Vec<_>>>()?;
        let mut noting = vec![
            of("exit", Place::Tracing, progs.weir_app_exit.as_fd())?,
            of(
                "create",
                Place::Cgroup(sys::BPF_CGROUP_INET_SOCK_CREATE),
                progs.weir_app_create.as_fd(),
            )?,
        ];
        let mut sending = match by_function {
            false => vec![("send", progs.weir_app_send.as_fd())],
            true => vec![
                ("send", progs.weir_app_entry.as_fd()),
                ("room", progs.weir_app_room.as_fd()),
                ("open", progs.weir_app_open.as_fd()),
            ],
        };
        if has_pages {
            sending.push(("pages", progs.weir_app_pages.as_fd()));
        }
        for (name, fd) in sending {
            noting.push(of(name, Place::Tracing, fd)?);
        }
        let judging = [
            (
                "connect4",
                sys::BPF_CGROUP_INET4_CONNECT,
                &progs.weir_app_connect4,
            ),
            (
                "connect6",
                sys::BPF_CGROUP_INET6_CONNECT,
                &progs.weir_app_connect6,
            ),
            (
                "egress",
                sys::BPF_CGROUP_INET_EGRESS,
                &progs.weir_app_egress,
            ),
            (
                "ingress",
                sys::BPF_CGROUP_INET_INGRESS,
                &progs.weir_app_ingress,
            ),
        ];
        let judging = judging
            .into_iter()
            .map(|(name, kind, program)| of(name, Place::Cgroup(kind), program.as_fd()))
            .collect::<Result<Vec<_>>>()?;
        let maps = &skel.maps;
        let handle =
            |map: &libbpf_rs::MapImpl<'_, libbpf_rs::Mut>| MapHandle::try_from(map).context(what);
        let identity = Self {
            dir: dir.to_owned(),
            level,
            by_function,
            control: handle(&maps.ident_control)?,
            rules: handle(&maps.ident_rules)?,
            networks: handle(&maps.ident_networks)?,
            programs: handle(&maps.ident_programs)?,
            sets: handle(&maps.ident_sets)?,
            executables: handle(&maps.ident_executables)?,
            events: handle(&maps.ident_events)?,
            counters: handle(&maps.ident_counters)?,
            hits: handle(&maps.ident_hits)?,
            adopt: keep(progs.weir_app_adopt.as_fd())?,
            flows: [
                handle(&maps.ident_flows)?,
                handle(&maps.ident_flows_in)?,
                handle(&maps.ident_overflow)?,
                handle(&maps.ident_refused)?,
            ],
            list: [
                keep(progs.weir_app_list.as_fd())?,
                keep(progs.weir_app_list_tcp.as_fd())?,
                keep(progs.weir_app_list_udp.as_fd())?,
            ],
            cut: match can_cut {
                true => vec![
                    ("app-cut-tcp", keep(progs.weir_app_cut_tcp.as_fd())?),
                    ("app-cut-udp", keep(progs.weir_app_cut_udp.as_fd())?),
                ],
                false => Vec::new(),
            },
            ended: match can_cut && by_diag {
                true => Some(keep(progs.weir_app_ended.as_fd())?),
                false => None,
            },
            question: match is_push {
                true => keep(progs.weir_app_look.as_fd())?,
                false => keep(progs.weir_app_question.as_fd())?,
            },
            file: keep(progs.weir_app_file.as_fd())?,
        };
        if is_fresh {
            let mut control = identity.control()?;
            control.cgroup = cgroup.id;
            control.level = cgroup.level;
            for word in &mut control.secret {
                let mut bytes = [0; 8];
                let flags = rustix::rand::GetRandomFlags::empty();
                rustix::rand::getrandom(&mut bytes, flags).context(what)?;
                *word = u64::from_ne_bytes(bytes);
            }
            identity.put_control(&control)?;
            for map in skel
                .object()
                .maps()
                .filter(|map| is_pinned(map.name(), level))
            {
                object::pin(map.as_fd(), &dir.join(map.name()))?;
            }
            object::pin(identity.question.as_fd(), &dir.join("whole"))?;
        } else if is_push && !is_counted {
            object::pin(skel.maps.ident_changes.as_fd(), &dir.join(CHANGES))?;
        }
        let loaded = Loaded {
            changes,
            noting,
            judging,
            cgroup: cgroup.clone(),
            dir: dir.to_owned(),
            level,
            is_fresh,
        };
        // Before anybody is looked at: of who has been none may go unnoticed.
        loaded.attach(&loaded.changes)?;
        Ok((identity, loaded))
    }
}

impl Loaded {
    /// Were there no tables of an earlier daemon?
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Attaches what makes records of sockets; nothing is refused yet.
    pub fn attach_noting(&self) -> Result<()> {
        self.attach(&self.noting)?;
        fault::point("app-noting");
        Ok(())
    }

    /// Attaches what judges, in place of what a weir whose tables had another form has left:
    /// that would judge as well, by rules that nobody changes any more.
    ///
    /// # Errors
    /// The kernel refuses a program, or a pin cannot be removed.
    pub fn attach_judging(&self) -> Result<()> {
        fault::refuse(&format!("app-judging-{}", self.level.name()))
            .context(|| "attach what judges by the rules of [app]".to_owned())?;
        self.attach(&self.judging)?;
        self.end_other_hooks()?;
        fault::point("app-ended-all");
        let instance = self.dir.parent().unwrap_or(&self.dir);
        let mut others = forms(instance).filter(|dir| *dir != self.dir);
        others.try_for_each(|dir| detach_form(&dir))
    }

    /// Takes away what a daemon at another level has attached beside what is attached now, or
    /// one that wanted to be at another level, and failed.
    fn end_other_hooks(&self) -> Result<()> {
        let what = || "take away the programs of another level".to_owned();
        let names: Vec<_> = self.all().map(|program| program.name).collect();
        for pin in fs::read_dir(&self.dir).context(what)?.flatten() {
            let pin = pin.path();
            let name = pin.file_name().and_then(|name| name.to_str());
            let link = name.and_then(|name| name.strip_prefix("link-"));
            if link.is_some_and(|link| !names.contains(&link)) {
                if let Ok(link) = object::open_pin(&pin) {
                    object::end_link(&link);
                }
                fs::remove_file(&pin).context(what)?;
                fault::point(&format!("app-ended-{}", link.unwrap_or_default()));
            }
        }
        match self.level {
            Level::Push => Ok(()),
            _ => match fs::remove_file(self.dir.join(CHANGES)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context(what),
                _ => Ok(()),
            },
        }
    }

    fn all(&self) -> impl Iterator<Item = &Program> {
        let programs = self.changes.iter().chain(&self.noting);
        programs.chain(&self.judging)
    }

    /// Has all hold for this control group, which has come in the place of the one before. Its
    /// sockets have no records until [`Identity::adopt_sockets`].
    ///
    /// # Errors
    /// The kernel refuses it: then it is to be tried again.
    pub fn move_to(&mut self, identity: &Identity, cgroup: &CgroupAt) -> Result<()> {
        let mut control = identity.control()?;
        (control.cgroup, control.level) = (cgroup.id, cgroup.level);
        identity.put_control(&control)?;
        self.cgroup = cgroup.clone();
        for programs in [&self.noting, &self.judging] {
            let of_groups = programs.iter();
            let of_groups = of_groups.filter(|program| matches!(program.place, Place::Cgroup(_)));
            self.attach(of_groups)?;
        }
        Ok(())
    }

    /// What goes to a control group that is not there is left out.
    fn attach<'a>(&self, programs: impl IntoIterator<Item = &'a Program>) -> Result<()> {
        let group = ControlGroup::open(&self.cgroup.path)?;
        for Program { name, place, fd } in programs {
            let what = || format!("attach the program {name} of [app]");
            let pin = self.dir.join(format!("link-{name}"));
            match place {
                Place::Cgroup(kind) => {
                    if let Some(group) = &group {
                        group.attach(fd.as_fd(), *kind, &pin, &what)?;
                    }
                }
                Place::Tracing => {
                    // These cannot be exchanged: the next one first.
                    // SAFETY: programs of this type have the name of where they go themselves.
                    let fd =
                        unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), fd.as_raw_fd()) };
                    let link = owned(fd).context(what)?;
                    // In one step: a daemon that is killed between two would leave nobody who
                    // looks at senders. Without a dot, which the BPF file system refuses.
                    let next = self.dir.join(format!("link-{name}-next"));
                    let _ = fs::remove_file(&next);
                    object::pin(link.as_fd(), &next)?;
                    fs::rename(&next, &pin).context(what)?;
                }
            }
        }
        Ok(())
    }

    /// The programs by their names, for tests of the verifier's budget.
    pub fn programs(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.all().map(|program| (program.name, program.fd.as_fd()))
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The directories with pins of an instance, of every form that its tables ever had.
fn forms(instance: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(instance).into_iter().flatten().flatten();
    let forms = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("app-"));
    forms.map(|entry| entry.path())
}

fn detach_form(dir: &Path) -> Result<()> {
    for pin in fs::read_dir(dir).into_iter().flatten().flatten() {
        if pin.file_name().to_string_lossy().starts_with("link-")
            && let Ok(link) = object::open_pin(&pin.path())
        {
            object::end_link(&link);
        }
    }
    pins::remove_tree(dir)
}

/// Is identity of this instance attached, in whatever form?
pub fn is_attached(root: &Path, instance: &str) -> bool {
    // The latter alone while its control group is not there.
    let is_attached = |dir: &PathBuf, link| object::open_pin(&dir.join(link)).is_ok();
    forms(&root.join(pins::escape(instance))).any(|dir| {
        ["link-egress", "link-exit"]
            .iter()
            .any(|link| is_attached(&dir, link))
    })
}

/// Takes the programs and tables of an instance away, of every form; nobody is refused
/// anything any more.
///
/// # Errors
/// A pin cannot be removed.
pub fn detach(root: &Path, instance: &str) -> Result<()> {
    forms(&root.join(pins::escape(instance))).try_for_each(|dir| detach_form(&dir))
}

/// Runs an iterator once, over everything, and for what its program does.
pub(super) fn run_iterator(program: BorrowedFd<'_>) -> Result<()> {
    read_iterator(program, None, &mut |_| ())
}

/// What is read of an iterator at once: the kernel writes whole records, so that of one
/// that divides this none is cut in two.
const AT_ONCE: usize = 64 * size_of::<ident_ended>();

/// Runs an iterator once, and hands on what its program writes, as it is read; `task`: over
/// that one only.
pub(super) fn read_iterator(
    program: BorrowedFd<'_>,
    task: Option<u32>,
    each: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let what = || match task {
        Some(task) => format!("look at process {task}"),
        None => "go through the sockets that there are".to_owned(),
    };
    let mut about = sys::bpf_iter_link_info::default();
    about.task.tid = task.unwrap_or(0);
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        iter_info: &raw mut about,
        iter_info_len: size_of::<sys::bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    let options = match task {
        Some(_) => &raw const options,
        None => std::ptr::null(),
    };
    // SAFETY: options may be null; else they, and what they point to, are whole and outlive
    // the call.
    let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_TRACE_ITER, options) };
    let link = owned(fd).context(what)?;
    // SAFETY: a plain descriptor goes in.
    let fd = unsafe { sys::bpf_iter_create(link.as_raw_fd()) };
    let iterator = owned(fd).context(what)?;
    let mut some = [0; AT_ONCE];
    loop {
        let length =
            rustix::io::retry_on_intr(|| rustix::io::read(&iterator, &mut some)).context(what)?;
        // The end is that of all that it goes through.
        if length == 0 {
            return Ok(());
        }
        each(&some[..length]);
    }
}

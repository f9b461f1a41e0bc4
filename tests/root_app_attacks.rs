//! What somebody does who wants to get past the rules, or to have others wait: programs in sparse
//! files of 4 GiB while others are known, upgraded, and moved to another control group; an overlay
//! over an allowed program's file; an image in a file that is somebody's own; names of units that
//! systemd has not made.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use app_host::{OtherGroup, Running, TestHost, sha256};
use common::{skipped, soon};
use tempfile::TempDir;
use weir_testkit::fuse::{self, FuseLog};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];
/// The number of the user who attacks, and those of others: they have no names.
const ATTACKER: u32 = 65_534;
const OTHERS: [u32; 2] = [65_432, 65_433];

/// The attacker's programs, and the files that each has mapped: as many are read for each.
const PROGRAMS: usize = 8;
const FILES: usize = 4;

/// A write to a file waits so long at most. Without the daemon's answer it waits for
/// lease-break-time, 45 s, and then nobody is told.
const WRITTEN_WITHIN: Duration = Duration::from_secs(40);
/// A program that the daemon has not seen is known by then. To read what the attacker has takes
/// more than a minute.
const KNOWN_WITHIN: Duration = Duration::from_secs(45);
/// A control group that was made anew is judged by then. The guide says a second, which is that
/// of a machine that has nothing else to do.
const JUDGED_WITHIN: Duration = Duration::from_secs(20);

/// A file system that nobody runs anything from is let go by then.
const FREE_WITHIN: Duration = Duration::from_secs(180);

/// Maps files executable, then says for each address that it reads whether it can connect there
/// ("talks"); or connects to both all the time, and says once that it has begun ("asks"); or keeps
/// one mapped so that it can write to it, but not open ("holds"); or has the kernel keep a page of
/// it for that ("pins"), or has another file read into a page of it by a call that goes on while it
/// has it neither open nor mapped any more ("reads").
const PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static int connects(const char *address, int kind)
{
    int six = !!strchr(address, ':'), fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | kind, 0), done;
    struct timeval three = {3, 0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8080)};
    struct sockaddr_in6 b = {.sin6_family = AF_INET6, .sin6_port = htons(8080)};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &three, sizeof three);
    inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&b.sin6_addr : (void *)&a.sin_addr);
    done = !connect(fd, six ? (void *)&b : (void *)&a, six ? sizeof b : sizeof a);
    if (kind) usleep(100000);
    close(fd);
    return done;
}
static int slow;
static char *page;
static void *reads(void *none)
{
    puts(read(slow, page, 4096) > 0 ? "read" : "lacks");
    return none;
}
int main(int count, char **args)
{
    char line[100];
    pthread_t reader;
    setlinebuf(stdout);
    if (!strcmp(args[1], "reads")) {
        int fd = open(args[2], O_RDWR);
        slow = open(args[3], O_RDONLY);
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (slow < 0 || page == MAP_FAILED) {
            perror(args[2]);
            return 1;
        }
        /* It is there, so that the page is not looked for behind the lease. */
        page[0] = page[0];
        puts("ready");
        fgets(line, sizeof line, stdin);
        pthread_create(&reader, NULL, reads, NULL);
        fgets(line, sizeof line, stdin);
        munmap(page, 4096);
        close(fd);
        puts("let go");
        pthread_join(reader, NULL);
        return 0;
    }
    if (!strcmp(args[1], "pins")) {
        char params[120] = {0};
        int fd = open(args[2], O_RDWR), ring = syscall(SYS_io_uring_setup, 4, params);
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct iovec buffer = {page, 4096};
        /* IORING_REGISTER_BUFFERS */
        int there = ring >= 0 && page != MAP_FAILED && !syscall(SYS_io_uring_register, ring, 0, &buffer, 1);
        munmap(page, 4096);
        close(fd);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        puts(there ? "ready" : "lacks");
        while (fgets(line, sizeof line, stdin))
            ;
        return 0;
    }
    if (!strcmp(args[1], "holds")) {
        int fd = open(args[2], O_RDWR);
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) {
            perror(args[2]);
            return 1;
        }
        close(fd);
        /* It is not the lower layer's. */
        page[4095] = page[4095];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        puts("ready");
        while (fgets(line, sizeof line, stdin)) {
            page[4095] ^= 1;
            puts("written");
        }
        return 0;
    }
    for (int i = 2; i < count; i++) {
        int fd = open(args[i], O_RDONLY);
        if (fd < 0 || mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) {
            perror(args[i]);
            return 1;
        }
        close(fd);
    }
    if (!strcmp(args[1], "asks")) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int turn = 0;; turn++) {
            connects("127.0.0.1", SOCK_NONBLOCK);
            connects("::1", SOCK_NONBLOCK);
            if (!turn) puts("ready");
        }
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "end")) {
            puts("ended");
            break;
        }
        puts(connects(line, 0) ? "connected" : "refused");
    }
    return 0;
}
"#;

/// A host, and a directory that every user can read, with the program and a file that it may map.
struct Scene {
    host: TestHost,
    program: String,
    library: PathBuf,
    /// Another one of the same code, which nobody has run.
    new: String,
    dir: TempDir,
}

impl Scene {
    /// A daemon with the rules that are made of program, library and the other program; none:
    /// something is missing here.
    fn new(
        start: impl FnOnce(&mut dyn FnMut(&mut TestHost)) -> Option<TestHost>,
        rules: impl FnOnce(&str, &Path, &str) -> String,
    ) -> Option<Self> {
        if skipped(&["cc", "setpriv", "unshare", "mount", "truncate"]) {
            return None;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("program.c"), PROGRAM).unwrap();
        let built = Command::new("cc")
            .args(["-static", "-O1", "-pthread", "-o"])
            .args([path("program"), path("program.c")])
            .output()
            .unwrap();
        if !built.status.success() {
            eprintln!("skipped: no C compiler with a static libc (probe: cc): {built:?}");
            return None;
        }
        fs::write(path("library"), [7; 4096]).unwrap();
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        let (program, new, library) = (text("program"), text("new"), path("library"));
        let copied = Command::new("sh")
            .args(["-c", "cp \"$0\" \"$1\" && echo new >> \"$1\""])
            .args([&program, &new])
            .status();
        assert!(copied.unwrap().success());
        let rules = rules(&program, &library, &new);
        let host = start(&mut |host| host.configure(&rules))?;
        Some(Self {
            host,
            program,
            library,
            new,
            dir,
        })
    }

    /// Begins this as a user, in the control group.
    fn begin(&self, user: u32, words: &[&str]) -> Running {
        let user = user.to_string();
        let as_user = ["setpriv", "--reuid", &user, "--clear-groups"];
        ready(&self.host, &[&as_user, words].concat())
    }

    /// The attacker's programs in files of 4 GiB on a file system of their own, of which none has
    /// anything in memory but the first pages; each has asked to connect by then.
    fn attack(&self) -> Running {
        const SPARSE: &str = "set -e; mount -t tmpfs -o size=64m,mode=755 none \"$1\"; cd \"$1\"
            for p in $(seq $3); do
                cp \"$0\" run$p; truncate -s 4G run$p
                for n in $(seq 2 $4); do truncate -s 4G run$p.$n; done
            done
            chown -R $2 .
            for p in $(seq $3); do
                setpriv --reuid $2 --clear-groups ./run$p asks run$p.* &
            done
            wait";
        let at = self.dir.path().join("sparse");
        fs::create_dir_all(&at).unwrap();
        let (user, programs, files) = (
            ATTACKER.to_string(),
            PROGRAMS.to_string(),
            FILES.to_string(),
        );
        let words = [
            "unshare",
            "-m",
            "sh",
            "-c",
            SPARSE,
            &self.program,
            at.to_str().unwrap(),
            &user,
            &programs,
            &files,
        ];
        let mut running = self.host.begin(&words);
        for _ in 0..PROGRAMS {
            assert_eq!(running.line(), "ready");
        }
        running
    }
}

fn ready(host: &TestHost, words: &[&str]) -> Running {
    let mut running = host.begin(words);
    assert_eq!(running.line(), "ready", "{words:?}");
    running
}

/// Whether a program connects to an address.
fn connects(running: &mut Running, address: &str) -> bool {
    running.say(address);
    match running.line().as_str() {
        "connected" => true,
        "refused" => false,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn may(running: &mut Running, what: &str) {
    for address in ADDRESSES {
        soon(&format!("{what} to connect to {address}"), || {
            connects(running, address).then_some(())
        });
    }
}

/// Each address twice, for so long that it is known by then.
#[track_caller]
fn may_not(running: &mut Running, what: &str) {
    for address in ADDRESSES.iter().chain(&ADDRESSES) {
        assert!(!connects(running, address), "{what} connects to {address}");
    }
}

fn digest(path: &Path) -> String {
    sha256(path.to_str().unwrap())
}

const CLOSED: &str = "default = \"drop\"\nunknown = \"drop\"\n";

/// Who has the library mapped may, and the other program.
fn by_library(_: &str, library: &Path, new: &str) -> String {
    format!(
        "{CLOSED}[app.rules.library]\nverdict = \"allow\"\nobject = \"{}\"\n\
         [app.rules.new]\nverdict = \"allow\"\nexe = \"{}\"\n",
        digest(library),
        sha256(new)
    )
}

/// The daemon finds all of them at once, as one that had no processor for a moment. Meanwhile who
/// is known goes on, whoever upgrades a known file writes to it in time, and the daemon is told
/// before; and a program that is new gets its turn.
#[test]
fn root_large_files_of_one_user_hold_up_no_other() {
    let Some(scene) = Scene::new(|set| TestHost::with("sparse", "", set), by_library) else {
        return;
    };
    let library = scene.library.to_str().unwrap();
    let mut known = scene.begin(OTHERS[0], &[&scene.program, "talks", library]);
    may(&mut known, "what is known");
    let mut new = scene.begin(OTHERS[1], &[&scene.new, "talks"]);

    scene.host.host.signal("STOP");
    let _attack = scene.attack();
    new.say(ADDRESSES[0]);
    scene.host.host.signal("CONT");
    let begun = Instant::now();
    // An installer that writes into the file that is there.
    let writer = {
        let path = scene.library.clone();
        thread::spawn(move || {
            let begun = Instant::now();
            let file = File::options().append(true).open(path).unwrap();
            let waited = begun.elapsed();
            (file, waited)
        })
    };
    let mut is_known = new.line() == "connected";
    while !is_known && begun.elapsed() < KNOWN_WITHIN * 4 {
        is_known = connects(&mut new, ADDRESSES[0]);
    }
    let took = begun.elapsed();
    let (mut file, waited) = writer.join().unwrap();
    println!("known after {took:?}, a writer waited for {waited:?}");
    file.write_all(&[8]).unwrap();
    for address in ADDRESSES {
        assert!(
            !connects(&mut known, address),
            "what was written unseen connects to {address}"
        );
    }
    drop(file);
    assert!(waited < WRITTEN_WITHIN, "a writer waited for {waited:?}");
    assert!(is_known && took < KNOWN_WITHIN, "known after {took:?}");
    may(&mut new, "what was new");
    may_not(&mut known, "what was written");
    soon("the alert", || {
        let alerts = scene.host.host.alerts();
        alerts.contains("of user 65534").then_some(())
    });
}

/// The same, and the control group is removed and made anew meanwhile.
#[test]
fn root_a_group_that_is_made_anew_is_judged_while_large_files_are_read() {
    let Some(scene) = Scene::new(|set| TestHost::with("regroup", "", set), by_library) else {
        return;
    };
    let host = &scene.host;
    let library = scene.library.to_str().unwrap();
    let beside = OtherGroup::beside(host);
    let mut known = scene.begin(OTHERS[0], &[&scene.program, "talks", library]);
    may(&mut known, "what is known");
    drop(known);

    host.host.signal("STOP");
    let _attack = scene.attack();
    let procs = |group: &Path| group.join("cgroup.procs");
    soon("the group to be empty", || {
        let left = fs::read_to_string(procs(&host.cgroup)).unwrap();
        for pid in left.lines() {
            // Who has ended meanwhile is moved no more.
            let _ = fs::write(procs(&beside.0), pid);
        }
        fs::remove_dir(&host.cgroup).ok()
    });
    fs::create_dir(&host.cgroup).unwrap();
    let mut other = scene.begin(OTHERS[1], &[&scene.program, "talks"]);
    host.host.signal("CONT");
    let begun = Instant::now();
    let (mut refused, mut judged) = (0, Duration::ZERO);
    for turn in 0.. {
        match connects(&mut other, ADDRESSES[turn % 2]) {
            true => (refused, judged) = (0, begun.elapsed()),
            false => refused += 1,
        }
        if refused == 4 || begun.elapsed() > JUDGED_WITHIN * 8 {
            break;
        }
    }
    println!("judged after {judged:?}");
    assert!(judged < JUDGED_WITHIN, "judged after {judged:?}");
    let mut known = scene.begin(OTHERS[0], &[&scene.program, "talks", library]);
    may(&mut known, "what is known, in the next group");
}

/// Nobody but the program, by the digest of its file.
fn by_itself(program: &str, _: &Path, _: &str) -> String {
    format!(
        "{CLOSED}[app.rules.program]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(program)
    )
}

/// Of an overlay that a user has mounted nobody knows what is below: he writes to that, and a lease
/// on the overlay's file says nothing. So it is with root's own file below it, of which the overlay
/// shows a copy as soon as it is written.
#[test]
fn root_an_overlay_of_a_user_over_an_allowed_program_is_not_allowed() {
    const OVER: &str = "set -e; mount -t tmpfs none \"$0\"; cd \"$0\"; mkdir upper work merged own
        if [ $2 = own ]; then cp \"$1/program\" own; lower=own; else lower=$1; fi
        mount -t overlay overlay -o lowerdir=$lower,upperdir=upper,workdir=work,userxattr merged ||
            { echo lacks; exit; }
        exec merged/program talks";
    let Some(scene) = Scene::new(|set| TestHost::with("overlaid", "", set), by_itself) else {
        return;
    };
    let user = ATTACKER.to_string();
    let may_unshare = Command::new("setpriv")
        .args(["--reuid", &user, "--clear-groups"])
        .args(["unshare", "-Urm", "true"])
        .output()
        .unwrap();
    if !may_unshare.status.success() {
        eprintln!("skipped: user namespaces of others than root (probe: unshare -Urm)");
        return;
    }
    let mut direct = scene.begin(ATTACKER, &[&scene.program, "talks"]);
    may(&mut direct, "the program itself");
    // As root may mount what it likes on this host, its own overlay counts.
    let at = scene.dir.path().join("at");
    fs::create_dir(&at).unwrap();
    let (at, lower) = (at.to_str().unwrap(), scene.dir.path().to_str().unwrap());
    let mut of_root = scene
        .host
        .begin(&["unshare", "-m", "sh", "-c", OVER, at, lower, "root"]);
    if of_root.line() == "lacks" {
        eprintln!("skipped: overlay with userxattr (probe: mount -t overlay)");
        return;
    }
    may(&mut of_root, "an overlay of root's");
    for lower_is in ["root", "own"] {
        let words = ["unshare", "-Urm", "sh", "-c", OVER, at, lower, lower_is];
        let mut overlaid = scene.begin(ATTACKER, &words);
        may_not(&mut overlaid, lower_is);
    }
    may(&mut direct, "the program itself, after that");
}

/// A script in a mount namespace of its own, where $0 is an overlay over the directory $1.
const CONTAINER: &str = "set -e; mount -t tmpfs none \"$0\"; cd \"$0\"; mkdir upper work merged
    mount -t overlay overlay -o lowerdir=$1,upperdir=upper,workdir=work merged ||
        { echo lacks; exit; }
    cd merged; ";

impl Scene {
    /// Begins this in a container, whose root is root; `None`: there are no overlays here.
    fn contain(&self, script: &str) -> Option<Running> {
        let at = self.dir.path().join("merged");
        fs::create_dir_all(&at).unwrap();
        let (at, lower) = (at.to_str().unwrap(), self.dir.path().to_str().unwrap());
        let script = format!("{CONTAINER}{script}");
        let words = ["unshare", "-m", "sh", "-c", &script, at, lower];
        let mut running = self.host.begin(&words);
        match running.line().as_str() {
            "lacks" => {
                eprintln!("skipped: overlay (probe: mount -t overlay)");
                None
            }
            line => {
                assert_eq!(line, "ready");
                Some(running)
            }
        }
    }
}

/// Root of a container keeps an allowed program's file mapped so that he can write to it, past the
/// lease on the overlay's file: nobody is told of what he writes.
#[test]
fn root_a_program_that_root_of_a_container_can_write_to_is_not_allowed() {
    let Some(scene) = Scene::new(|set| TestHost::with("written", "", set), by_itself) else {
        return;
    };
    let held = "cp new holder; mkfifo say; ./holder holds program < say > held & exec 3> say
        until grep -q ready held; do sleep 0.02; done
        exec ./program talks";
    let Some(mut program) = scene.contain(held) else {
        return;
    };
    may_not(&mut program, "what can be written");
    // Nobody can write to it.
    let Some(mut program) = scene.contain("touch upper; exec ./program talks") else {
        return;
    };
    may(&mut program, "what nobody can write to");
    // Nor any more.
    let free = "cp new holder; mkfifo say; ./holder holds program < say > held & exec 3> say
        until grep -q ready held; do sleep 0.02; done
        exec 3>&-; wait
        exec ./program talks";
    let mut program = scene.contain(free).expect("there are overlays");
    may(&mut program, "what somebody could write to before");
}

/// Any user has the kernel keep a page of his copy of an allowed program, to write into it when he
/// likes: he has it neither open nor mapped, and no lease is broken.
#[test]
fn root_a_program_of_which_somebody_has_a_page_pinned_is_not_allowed() {
    const PINS: &str = "set -e; mount -t tmpfs -o mode=777 none \"$0\"; cd \"$0\"
        cp $1/program own; cp $1/new holder; mkfifo say; chmod 666 say; chown $2 own
        exec setpriv --reuid $2 --clear-groups sh -c '
            ./holder pins own < say > held & exec 3> say
            until grep -q . held; do sleep 0.02; done
            if grep -q lacks held; then echo lacks; exit; fi
            ./own talks; exec 3>&-; wait; echo free; exec ./own talks'";
    let Some(scene) = Scene::new(|set| TestHost::with("pinned", "", set), by_itself) else {
        return;
    };
    let at = scene.dir.path().join("at");
    fs::create_dir(&at).unwrap();
    let (at, dir) = (at.to_str().unwrap(), scene.dir.path().to_str().unwrap());
    let user = ATTACKER.to_string();
    let words = ["unshare", "-m", "sh", "-c", PINS, at, dir, &user];
    let mut running = scene.host.begin(&words);
    if running.line() == "lacks" {
        eprintln!("skipped: registered buffers (probe: io_uring_register)");
        return;
    }
    may_not(&mut running, "what somebody can write to");
    running.say("end");
    assert_eq!(running.line(), "ended");
    assert_eq!(running.line(), "free");
    assert_eq!(running.line(), "ready");
    may(&mut running, "what nobody can write to any more");
}

/// Root of a container with a volume, who is root by number and nothing else: a file there belongs
/// to root, on a disk, and he has a page of it pinned by a call that takes its time.
#[test]
fn root_a_program_of_roots_of_which_a_page_is_pinned_is_not_allowed() {
    if let Some(missing) = fuse::missing() {
        eprintln!("skipped: {missing}");
        return;
    }
    let Some(scene) = Scene::new(|set| TestHost::with("volume", "", set), by_itself) else {
        return;
    };
    let path = |name: &str| scene.dir.path().join(name).to_str().unwrap().to_owned();
    let own = path("own");
    let copied = Command::new("cp").args([&scene.program, &own]).status();
    assert!(copied.unwrap().success());
    let (mut holder, mut program);
    // It goes before them, and lets go of who waits for it.
    let slow = FuseLog::mount().unwrap();
    let page = fs::read(&own).unwrap();
    slow.append(&page[..4096]);
    let file = slow.path();
    holder = ready(
        &scene.host,
        &[&scene.new, "reads", &own, file.to_str().unwrap()],
    );
    slow.delay(Duration::from_secs(600));
    let before = slow.requests();
    holder.say("read");
    soon("a page to be pinned", || {
        (slow.requests() > before).then_some(())
    });
    holder.say("let go");
    assert_eq!(holder.line(), "let go");
    program = ready(&scene.host, &[&own, "talks"]);
    may_not(&mut program, "what root can write to");
    slow.delay(Duration::ZERO);
    assert_eq!(holder.line(), "read");
    holder.ended();
    may(&mut program, "what nobody can write to any more");
}

/// Who has a file of the lower layer mapped keeps it, whatever is written to the overlay's file:
/// it has not become that.
#[test]
fn root_who_has_mapped_a_file_of_the_lower_layer_is_not_what_was_written_above() {
    let Some(scene) = Scene::new(|set| TestHost::with("lower", "", set), by_library) else {
        return;
    };
    fs::write(scene.dir.path().join("other"), [9; 4096]).unwrap();
    // It says so once it has the file mapped, and is looked at when it asks to connect.
    let script = "exec 3<&0; mkfifo said
        ./program talks other <&3 > said & exec 4< said
        read line <&4; cat library > other; echo $line; exec cat <&4";
    let Some(mut program) = scene.contain(script) else {
        return;
    };
    may_not(&mut program, "what has mapped another file");
    let mapped = scene.contain("exec ./program talks library");
    may(
        &mut mapped.expect("there are overlays"),
        "who has mapped the library",
    );
}

/// Root mounts an image that lies in a file of somebody's, as desktops do for him: he writes to it
/// past the file system.
#[test]
fn root_a_program_in_an_image_of_a_users_is_not_allowed() {
    const MOUNT: &str = "set -e; mount -o loop,ro \"$0\" \"$1\" || { echo lacks; exit; }; exec \"$1/program\" talks";
    if skipped(&["mkfs.ext4", "losetup"]) {
        return;
    }
    let Some(scene) = Scene::new(|set| TestHost::with("image", "", set), by_itself) else {
        return;
    };
    let path = |name: &str| scene.dir.path().join(name);
    let (image, at, tree) = (path("image"), path("at"), path("tree"));
    for dir in [&at, &tree] {
        fs::create_dir(dir).unwrap();
    }
    let copied = Command::new("cp").args([&path("program"), &tree]).status();
    assert!(copied.unwrap().success());
    File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-d"])
        .args([&tree, &image])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    let words = ["unshare", "-m", "sh", "-c", MOUNT, image, at];
    let mut of_root = scene.host.begin(&words);
    if of_root.line() == "lacks" {
        eprintln!("skipped: loop devices with ext4 (probe: mount -o loop)");
        return;
    }
    may(&mut of_root, "a program of an image of root's");
    drop(of_root);
    // The daemon's lease goes with the round that finds nobody; then the device is free, and the
    // next image at it has a file of the same numbers and times.
    let until = Instant::now() + FREE_WITHIN;
    while !Command::new("losetup")
        .args(["-j", image])
        .output()
        .unwrap()
        .stdout
        .is_empty()
    {
        assert!(Instant::now() < until, "the image stays in use");
        thread::sleep(Duration::from_millis(100));
    }
    for (owner, mode) in [(ATTACKER, 0o644), (0, 0o666)] {
        chown(image, Some(owner), None).unwrap();
        fs::set_permissions(image, PermissionsExt::from_mode(mode)).unwrap();
        let mut of_user = ready(&scene.host, &words);
        may_not(&mut of_user, &format!("an image of {owner} with {mode:o}"));
    }
}

/// Below a group that is no slice whoever has it makes groups of any name; and systemd puts `_`
/// before the names that the kernel's own files have there.
#[test]
fn root_names_that_systemd_has_not_made_are_no_units() {
    let slice = format!("/weir-test-app-units-{}.slice", std::process::id());
    let Some(scene) = Scene::new(
        |set| TestHost::in_slice_with("units", "", set),
        |program, _, _| {
            let exe = sha256(program);
            let rule = |name: &str, more: &str| {
                format!("[app.rules.{name}]\nverdict = \"allow\"\nexe = \"{exe}\"\n{more}\n")
            };
            format!(
                "{CLOSED}[app.rules.cpu]\nverdict = \"drop\"\nunit = \"cpu.service\"\n{}{}",
                rule("unit", "unit = \"tool.service\""),
                rule("group", &format!("cgroup = \"{slice}/*cpu*\"")),
            )
        },
    ) else {
        return;
    };
    let host = &scene.host;
    let within = |group: &str| {
        let group = host.cgroup.join(group);
        fs::create_dir_all(&group).unwrap();
        let procs = group.join("cgroup.procs");
        let enter = "echo 0 > \"$0\" && exec \"$@\"";
        let words = ["sh", "-c", enter, procs.to_str().unwrap()];
        ready(
            host,
            &[&words, &[scene.program.as_str(), "talks"][..]].concat(),
        )
    };
    for (group, is_met) in [
        ("tool.service", true),
        ("below.slice/tool.service", true),
        ("payload/system.slice/tool.service", false),
        ("docker/0af/tool.service", false),
        ("user@1000.service/app.slice/tool.service", false),
        // Not by the rule that denies: the next one lets it through.
        ("my-cpu.service", true),
        ("_cpu.service", false),
    ] {
        let mut program = within(group);
        match is_met {
            true => may(&mut program, group),
            false => may_not(&mut program, group),
        }
    }
}

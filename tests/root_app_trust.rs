//! What a program shows as its files, and whether that is what it runs: a memfd that its maker
//! still writes to, shared memory whose number is that of no file, two files of an overlay
//! with one number, and a writer whom too many leases hide.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{fs, path::Path, process::Command, time::Instant};

use app_host::{Running, TestHost, sha256};
use common::{SOON, skipped, soon};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

/// Does what its first argument says, then says for each address that it reads whether it can
/// connect there.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(const char *what) { perror(what); exit(1); }

/* A copy of this program in a memfd; all pages of it are mapped writable, and dirty. */
static int copied(char **at, size_t *size)
{
    struct stat about;
    int from = open("/proc/self/exe", O_RDONLY), to = memfd_create("copy", MFD_ALLOW_SEALING);
    if (from < 0 || to < 0 || fstat(from, &about) || ftruncate(to, about.st_size)) end("memfd");
    *size = about.st_size;
    *at = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0);
    if (*at == MAP_FAILED) end("mmap");
    for (size_t got = 0; got < *size;) {
        ssize_t n = read(from, *at + got, *size - got);
        if (n <= 0) end("read");
        got += n;
    }
    return to;
}
static void becomes(int fd)
{
    char *args[] = {"copy", "nothing", NULL}, *none[] = {NULL};
    fexecve(fd, args, none);
    end("fexecve");
}
static int connects(const char *address)
{
    int six = !!strchr(address, ':'), fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0), done;
    struct timeval three = {3, 0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8080)};
    struct sockaddr_in6 b = {.sin6_family = AF_INET6, .sin6_port = htons(8080)};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &three, sizeof three);
    inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&b.sin6_addr : (void *)&a.sin_addr);
    done = !connect(fd, six ? (void *)&b : (void *)&a, six ? sizeof b : sizeof a);
    close(fd);
    return done;
}
int main(int count, char **args)
{
    const char *mode = args[1];
    char *at, line[100];
    size_t size;
    setlinebuf(stdout);
    if (!strcmp(mode, "memfd")) {
        int fd = copied(&at, &size), child = fork();
        if (!child) becomes(fd);
        waitpid(child, NULL, 0);
        return 0;
    } else if (!strcmp(mode, "sealed")) {
        int fd = copied(&at, &size);
        munmap(at, size);
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)) end("seal");
        becomes(fd);
    } else if (!strcmp(mode, "segment")) {
        int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0700);
        if (id < 0 || (at = shmat(id, NULL, SHM_EXEC)) == (void *)-1) end("shmat");
        memset(at, 0xc3, 4096);
        printf("segment %d\n", id);
    } else if (!strcmp(mode, "writes")) {
        int fd = open(args[2], O_RDWR);
        at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd < 0 || at == MAP_FAILED) end(args[2]);
        *(volatile char *)at = *at;
        close(fd);
        count = 2;
    } else if (!strcmp(mode, "fills")) {
        for (int i = 0; i < 1000; i++) {
            char name[400];
            memset(name, 0, sizeof name);
            snprintf(name, sizeof name, "%s-%d", args[2], i);
            int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
            if (fd < 0 || write(fd, name, sizeof name) != sizeof name) end(name);
            close(fd);
            fd = open(name, O_RDONLY);
            if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) end(name);
            close(fd);
        }
        count = 2;
    }
    /* Files, each above the one before. */
    for (int i = 2; i < count; i++) {
        void *wanted = (void *)(0x100000000000L + i * 0x10000000L);
        int fd = open(args[i], O_RDONLY);
        if (fd < 0 || mmap(wanted, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) != wanted) end(args[i]);
        close(fd);
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        puts(connects(line) ? "connected" : "refused");
    }
    return 0;
}
"#;

/// The program by its path, and a daemon with the rules that are made of it; none: something is
/// missing here.
fn host(name: &str, rules: impl FnOnce(&str) -> String) -> Option<(TestHost, String)> {
    let mut made = None;
    let host = TestHost::with(name, "", |host| {
        let source = host.host.write("program.c", PROGRAM);
        let program = host.host.path("program");
        let built = Command::new("cc")
            .args(["-static", "-O1", "-o"])
            .args([&program, &source])
            .output();
        match built {
            Ok(built) if built.status.success() => {
                let program = program.to_str().unwrap().to_owned();
                host.configure(&rules(&program));
                made = Some(program);
            }
            other => eprintln!("skipped: no C compiler with a static libc (probe: cc): {other:?}"),
        }
    })?;
    Some((host, made?))
}

/// Nobody but the program, by its own digest and with no other file.
fn by_itself(program: &str) -> String {
    let whole = Command::new("/usr/bin/python3")
        .args([
            "-c",
            "import hashlib, sys; print(hashlib.sha256(bytes.fromhex(sys.argv[1])).hexdigest())",
            &sha256(program),
        ])
        .output()
        .unwrap();
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.program]\nverdict = \"allow\"\nexe = \"{}\"\naggregate = \"{}\"\n",
        sha256(program),
        String::from_utf8(whole.stdout).unwrap().trim(),
    )
}

fn ready(host: &TestHost, words: &[&str]) -> Running {
    let mut running = host.begin(words);
    soon("the program", || (running.line() == "ready").then_some(()));
    running
}

fn may(host: &TestHost, words: &[&str]) {
    let mut running = ready(host, words);
    for address in ADDRESSES {
        soon("a connection", || {
            running.say(address);
            (running.line() == "connected").then_some(())
        });
    }
}

/// Each time for so long that it is known by then.
fn may_not(host: &TestHost, words: &[&str]) {
    let mut running = ready(host, words);
    for address in ADDRESSES.iter().chain(&ADDRESSES) {
        running.say(address);
        assert_eq!(running.line(), "refused", "{words:?} {address}");
    }
}

/// Whoever made it can still store into what the other one runs, and no time stamp says so.
#[test]
fn root_a_memfd_is_nobody_unless_it_is_sealed() {
    let Some((host, program)) = host("memfd", by_itself) else {
        return;
    };
    may(&host, &[&program, "nothing"]);
    may_not(&host, &[&program, "memfd"]);
    soon("the alert", || {
        let alerts = host.host.alerts();
        (alerts.contains("app:files") && alerts.contains("not sealed")).then_some(())
    });
    may(&host, &[&program, "sealed"]);
}

/// The kernel shows the number of a segment as that of its inode: the first one of a namespace
/// has 0, as what is of no file has.
#[test]
fn root_shared_memory_whose_number_is_zero_is_seen() {
    if skipped(&["unshare"]) {
        return;
    }
    let Some((host, program)) = host("segment", by_itself) else {
        return;
    };
    may(&host, &["unshare", "-i", &program, "nothing"]);
    may_not(&host, &["unshare", "-i", &program, "segment"]);
    may_not(&host, &[&program, "segment"]);
}

/// An overlay over two file systems shows the number that a file has in its layer, and one device
/// for both layers.
#[test]
fn root_of_two_files_that_an_overlay_gives_one_number_both_are_seen() {
    const SCRIPT: &str = "set -e; cd \"$0\"; mount -t tmpfs none lower; mount -t tmpfs none other; \
        cp one lower/one; cp two other/two; \
        mount -t overlay overlay -o lowerdir=lower:other,xino=off merged || { echo lacks; exit; }; \
        exec ./program nothing merged/one merged/two";
    if skipped(&["unshare", "mount"]) {
        return;
    }
    let made = host("layers", |program| {
        let dir = Path::new(program).parent().unwrap();
        for (name, byte) in [("one", 1), ("two", 2)] {
            fs::write(dir.join(name), [byte; 4096]).unwrap();
        }
        for name in ["lower", "other", "merged"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        format!(
            "default = \"drop\"\nunknown = \"drop\"\n[app.rules.two]\nverdict = \"drop\"\nobject = \"{}\"\n\
             [app.rules.program]\nverdict = \"allow\"\nexe = \"{}\"\n",
            sha256(dir.join("two").to_str().unwrap()),
            sha256(program),
        )
    });
    let Some((host, program)) = made else {
        return;
    };
    let path = |name: &str| host.host.path(name).to_str().unwrap().to_owned();
    let (dir, one, two) = (path("."), path("one"), path("two"));
    may(&host, &[&program, "nothing", &one]);
    may_not(&host, &[&program, "nothing", &one, &two]);
    let words = ["unshare", "-m", "sh", "-c", SCRIPT, &dir];
    let mut first = host.begin(&words);
    let said = first.line();
    if said == "lacks" {
        eprintln!("skipped: overlay (probe: mount -t overlay)");
        return;
    }
    assert_eq!(said, "ready");
    drop(first);
    may_not(&host, &words);
}

/// Whoever has a user namespace mounts an overlay over a file of his own, and writes to that one
/// while a lease is held on the overlay's.
#[test]
fn root_a_file_of_an_overlay_of_a_user_namespace_has_no_digest() {
    const SCRIPT: &str = "set -e; cd \"$0\"; mount -t tmpfs none lower; cd lower; \
        mkdir lower upper work merged; cp ../program lower/program; \
        mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work$1 merged || { echo lacks; exit; }; \
        exec merged/program nothing";
    if skipped(&["unshare", "mount"]) {
        return;
    }
    let made = host("userlayers", |program| {
        fs::create_dir(Path::new(program).with_file_name("lower")).unwrap();
        by_itself(program)
    });
    let Some((host, program)) = made else {
        return;
    };
    let dir = host.host.path(".").to_str().unwrap().to_owned();
    may(&host, &[&program, "nothing"]);
    let words =
        |options, more| ["unshare", options, "sh", "-c", SCRIPT, &dir, more].map(str::to_owned);
    let of_root = words("-m", "");
    let of_user = words("-Urm", ",userxattr");
    for (words, is_allowed) in [(of_root, true), (of_user, false)] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut first = host.begin(&words);
        let said = first.line();
        drop(first);
        if said == "lacks" {
            eprintln!("skipped: overlay (probe: mount -t overlay)");
            return;
        }
        match is_allowed {
            true => may(&host, &words),
            false => may_not(&host, &words),
        }
    }
}

/// Leases are given to whoever has files mapped, and there is room for 4,096. Who is open to write
/// to a file is asked all the same.
#[test]
fn root_who_has_many_files_mapped_hides_no_writer() {
    let made = host("leases", |program| {
        let library = Path::new(program).with_file_name("library");
        fs::write(&library, [7; 4096]).unwrap();
        format!(
            "default = \"drop\"\nunknown = \"drop\"\n[app.rules.library]\nverdict = \"allow\"\nobject = \"{}\"\n",
            sha256(library.to_str().unwrap()),
        )
    });
    let Some((host, program)) = made else {
        return;
    };
    let path = |name: &str| host.host.path(name).to_str().unwrap().to_owned();
    let hides = |name: &str| {
        let file = path(name);
        fs::copy(path("library"), &file).unwrap();
        let writer = ready(&host, &[&program, "writes", &file]);
        may_not(&host, &[&program, "nothing", &file]);
        drop(writer);
        may(&host, &[&program, "nothing", &file]);
    };
    may(&host, &[&program, "nothing", &path("library")]);
    hides("with-room");
    let is_full = || {
        host.host
            .ask(&["metrics"])
            .1
            .contains("weir_app_leases 4096\n")
    };
    let mut fillers = Vec::new();
    // Those of programs that have ended are given back at any time, and files that are known by
    // then take none: another program's do.
    let mut fill = || {
        let until = Instant::now() + 3 * SOON;
        while !is_full() {
            assert!(Instant::now() < until, "not all leases are given");
            if fillers.len() < 12 {
                let files = path(&fillers.len().to_string());
                fillers.push(ready(&host, &[&program, "fills", &files]));
            }
            // A busy machine breaks looks at a thousand files off, and goes on at the next one.
            for filler in &mut fillers {
                filler.say(ADDRESSES[0]);
                assert_eq!(filler.line(), "refused");
            }
        }
    };
    fill();
    hides("without-room");
    soon("the alert", || {
        fill();
        host.host.alerts().contains("app:leases").then_some(())
    });
}

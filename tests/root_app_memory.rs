//! Further ways to executable memory that a rule denies, and to a socket that another program
//! has: by system calls of 32 bits, by processes that share their memory, from files that have no
//! name or lie below another file system, from memory that has a file in the kernel's eyes only,
//! and by a descriptor that io_uring hands on.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::process::Command;

use app_host::{TestHost, sha256};
use common::{skipped, soon};
use weir_netlab::Child;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";

/// MODE tcp|udp 4|6 LIBRARY [OTHER]: connects, is answered once, does what the mode is, and says
/// whether it is answered then. Called `taker` it is the other end of `hand-on`.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(const char *what) { perror(what); exit(1); }
static void lacks(int number) { (void)number; puts("lacks"); fflush(stdout); _exit(0); }

static const char *library;
static int opened(void)
{
    int fd = open(library, O_RDONLY);
    if (fd < 0) end(library);
    return fd;
}
static void *mapped(int flags, int fd)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, flags, fd, 0);
    if (at == MAP_FAILED) end("mmap");
    return at;
}
/* What mmap takes in its old form, below 4 GiB. */
static void by_int80(void)
{
    uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    long answer;
    words[0] = 0; words[1] = 4096; words[2] = PROT_READ | PROT_EXEC;
    words[3] = MAP_PRIVATE; words[4] = opened(); words[5] = 0;
    signal(SIGSEGV, lacks);
    asm volatile("int $0x80" : "=a"(answer) : "a"(90L), "b"((long)words) : "memory");
    signal(SIGSEGV, SIG_DFL);
    if ((int)answer == -38) lacks(0);
    if ((int)answer < 0 && (int)answer > -4096) end("int80");
}
static int maps_in_child(void *unused) { (void)unused; mapped(MAP_PRIVATE, opened()); return 0; }
/* A process of its own that shares this one's memory, and has ended by then. */
static void by_child(int flags)
{
    static char stack[65536] __attribute__((aligned(16)));
    int status, pid = clone(maps_in_child, stack + sizeof stack, flags | SIGCHLD, NULL);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) end("clone");
}

struct ring { int fd; char *sq; struct io_uring_params p; struct io_uring_sqe *e; unsigned tail; };
static struct ring ring_of(int *files, int count)
{
    struct ring r = {0};
    r.fd = syscall(SYS_io_uring_setup, 4, &r.p);
    if (r.fd < 0) lacks(0);
    r.sq = mmap(0, r.p.sq_off.array + r.p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
    r.e = mmap(0, r.p.sq_entries * sizeof(*r.e), PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQES);
    if (syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, files, count)) end("register");
    return r;
}
static int done_by(struct ring *r, struct io_uring_sqe what)
{
    char *cq = mmap(0, r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(cq + r->p.cq_off.cqes);
    unsigned head = *(unsigned *)(cq + r->p.cq_off.head), mask = *(unsigned *)(cq + r->p.cq_off.ring_mask);
    r->e[r->tail & 3] = what;
    ((unsigned *)(r->sq + r->p.sq_off.array))[r->tail & 3] = r->tail & 3;
    __atomic_store_n((unsigned *)(r->sq + r->p.sq_off.tail), ++r->tail, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0) end("enter");
    int result = cqes[head & mask].res;
    *(unsigned *)(cq + r->p.cq_off.head) = head + 1;
    return result;
}
/* The other program: its ring gets the socket in its table of files, never as a descriptor. */
static int taker(void)
{
    int none = -1; char byte;
    struct ring r = ring_of(&none, 1);
    if (write(8, &r.fd, sizeof r.fd) != sizeof r.fd || read(8, &byte, 1) != 1) end("taker");
    struct io_uring_sqe send = {.opcode = IORING_OP_SEND, .flags = IOSQE_FIXED_FILE, .fd = 0, .addr = (uintptr_t)"after\n", .len = 6};
    done_by(&r, send);
    /* The socket lives as long as the ring does. */
    sleep(4);
    return 0;
}
static void hand_on(int fd, const char *other)
{
    int pair[2], pid, theirs;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) end("socketpair");
    if (!(pid = fork())) { dup2(pair[1], 8); close(pair[0]); close(fd); execl(other, "taker", NULL); end(other); }
    close(pair[1]);
    struct ring mine = ring_of(&fd, 1);
    if (read(pair[0], &theirs, sizeof theirs) != sizeof theirs) end("read");
    /* Unix sockets do not pass rings on. */
    theirs = syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, pid, 0), theirs, 0);
    if (theirs < 0) end("pidfd_getfd");
    struct io_uring_sqe on = {.opcode = IORING_OP_MSG_RING, .fd = theirs, .addr = IORING_MSG_SEND_FD, .addr3 = 0, .file_index = 1};
    int done = done_by(&mine, on);
    if (done == -22 || done == -95) lacks(0);
    if (done < 0) { fprintf(stderr, "hand-on: %d\n", done); exit(1); }
    if (write(pair[0], "x", 1) != 1) end("write");
}
static int answered(int fd, const char *text, int milliseconds)
{
    char got[100];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (poll(&wait, 1, milliseconds) == 1) {
        ssize_t n = recv(fd, got, sizeof got - 1, 0);
        if (n <= 0) return 0;
        got[n] = 0;
        if (strstr(got, text)) return 1;
    }
    return 0;
}
int main(int count, char **args)
{
    if (!strcmp(args[0], "taker")) return taker();
    const char *mode = args[1];
    int udp = !strcmp(args[2], "udp"), six = !strcmp(args[3], "6"), fd = -1, tries;
    int milliseconds = 1500;
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(7007), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_port = htons(7007), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    library = args[4];
    for (tries = 0; tries < 40; tries++) {
        fd = socket(six ? AF_INET6 : AF_INET, udp ? SOCK_DGRAM : SOCK_STREAM, 0);
        if (!connect(fd, six ? (void *)&other : (void *)&four, six ? sizeof other : sizeof four) &&
            send(fd, "before\n", 7, MSG_NOSIGNAL) == 7 && answered(fd, "before", 1000)) break;
        close(fd); usleep(200000);
    }
    if (tries == 40) { puts("never answered"); return 0; }
    if (!strcmp(mode, "nothing")) milliseconds = 20000;
    else if (!strcmp(mode, "int80")) by_int80();
    else if (!strcmp(mode, "clone")) by_child(CLONE_VM);
    else if (!strcmp(mode, "vfork")) by_child(CLONE_VM | CLONE_VFORK);
    else if (!strcmp(mode, "file")) mapped(MAP_PRIVATE, opened());
    else if (!strcmp(mode, "deleted")) {
        int at = opened();
        unlink(library);
        mapped(MAP_PRIVATE, at);
    } else if (!strcmp(mode, "memfd")) {
        int from = opened(), to = memfd_create("library", 0); char part[65536]; ssize_t n;
        while ((n = read(from, part, sizeof part)) > 0)
            if (write(to, part, n) != n) end("write");
        mapped(MAP_PRIVATE, to);
    } else if (!strcmp(mode, "shared")) mapped(MAP_SHARED | MAP_ANONYMOUS, -1);
    else if (!strcmp(mode, "zero")) mapped(MAP_PRIVATE, open("/dev/zero", O_RDWR));
    else if (!strcmp(mode, "shm")) {
        int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0700);
        void *at = shmat(id, NULL, SHM_EXEC);
        shmctl(id, IPC_RMID, NULL);
        if (id < 0 || at == (void *)-1) end("shmat");
    } else if (!strcmp(mode, "vdso")) {
        /* Memory of its own, where the kernel's code for all programs was. */
        char *at = (char *)getauxval(AT_SYSINFO_EHDR);
        munmap(at, 8192);
        if (mmap(at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) end("vdso");
    } else if (!strcmp(mode, "hand-on")) {
        hand_on(fd, args[5]);
        if (count > 6) milliseconds = 20000;
    } else end(mode);
    if (strcmp(mode, "hand-on")) send(fd, "after\n", 6, MSG_NOSIGNAL);
    puts(answered(fd, "after", milliseconds) ? "answered" : "nothing");
    return 0;
}
"#;

/// The program, and another one that does the same; none: no C compiler with what it takes.
fn programs(host: &TestHost) -> Option<[String; 2]> {
    let source = host.host.write("program.c", PROGRAM);
    let program = host.host.path("program");
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .output();
    match built {
        Ok(built) if built.status.success() => (),
        other => {
            eprintln!("skipped: no C compiler with <linux/io_uring.h> (probe: cc): {other:?}");
            return None;
        }
    }
    let program = program.to_str().unwrap().to_owned();
    let other = host.copy(&program, "other");
    Some([program, other])
}

/// These programs may, unless they have mapped the library, or memory of no file.
fn rules(programs: &[&String]) -> String {
    let digests: Vec<_> = programs
        .iter()
        .map(|path| format!("\"{}\"", sha256(path)))
        .collect();
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.library]\nverdict = \"drop\"\nobject = \"{}\"\n[app.rules.anonymous]\nverdict = \"drop\"\nanonymous = true\n[app.rules.program]\nverdict = \"allow\"\nexe = [{}]\n",
        sha256(LIBRARY),
        digests.join(", ")
    )
}

struct Memory {
    host: TestHost,
    programs: [String; 2],
    _server: Child,
}

impl Memory {
    fn new(name: &str) -> Option<Self> {
        if !std::path::Path::new(LIBRARY).exists() {
            eprintln!("skipped: {LIBRARY} (probe: it is not there)");
            return None;
        }
        let mut made = None;
        let host = TestHost::with(name, "", |host| {
            made = programs(host);
            if let Some([program, _]) = &made {
                host.configure(&rules(&[program]));
            }
        })?;
        let server = host.echo();
        Some(Self {
            host,
            programs: made?,
            _server: server,
        })
    }

    fn said(&self, words: &[&str]) -> String {
        let done = self.host.run(words);
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        text.trim().to_owned()
    }
}

const KINDS: [[&str; 2]; 4] = [["tcp", "4"], ["tcp", "6"], ["udp", "4"], ["udp", "6"]];

#[test]
fn root_code_of_a_denied_library_is_met_whatever_way_it_is_mapped() {
    let Some(memory) = Memory::new("library") else {
        return;
    };
    let [program, _] = &memory.programs;
    for [transport, family] in KINDS {
        let said =
            |mode: &str, library: &str| memory.said(&[program, mode, transport, family, library]);
        assert_eq!(
            said("nothing", LIBRARY),
            "answered",
            "{transport} IPv{family}"
        );
        for mode in ["file", "int80", "clone", "vfork", "memfd"] {
            match said(mode, LIBRARY).as_str() {
                "lacks" => eprintln!("skipped: {mode} (probe: the system call)"),
                other => assert_eq!(other, "nothing", "{mode} {transport} IPv{family}"),
            }
        }
        let copy = memory.host.host.path("deleted.so");
        std::fs::copy(LIBRARY, &copy).unwrap();
        let told = said("deleted", copy.to_str().unwrap());
        assert_eq!(told, "nothing", "deleted {transport} IPv{family}");
        assert!(!copy.exists());
    }
}

/// The library lies in the lower layer of another file system.
#[test]
fn root_a_denied_library_is_met_below_an_overlay() {
    if skipped(&["unshare", "mount"]) {
        return;
    }
    let Some(memory) = Memory::new("overlay") else {
        return;
    };
    let [program, _] = &memory.programs;
    let below = memory.host.host.path("below");
    for directory in ["", "lower", "upper", "work", "merged"] {
        std::fs::create_dir_all(below.join(directory)).unwrap();
    }
    std::fs::copy(LIBRARY, below.join("lower/library.so")).unwrap();
    let script = "cd \"$0\" && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || { echo lacks; exit; }; \
                  exec \"$1\" file \"$2\" \"$3\" \"$0/merged/library.so\"";
    for [transport, family] in KINDS {
        let words = [
            "unshare",
            "-m",
            "sh",
            "-c",
            script,
            below.to_str().unwrap(),
            program,
            transport,
            family,
        ];
        let told = memory.said(&words);
        if told.ends_with("lacks") {
            eprintln!("skipped: overlay (probe: mount -t overlay): {told}");
            return;
        }
        assert_eq!(told, "nothing", "{transport} IPv{family}");
    }
}

/// To the kernel these are mappings of a file: of one that has no name, or of a device. What is in
/// them is as little on any disk as what MAP_PRIVATE | MAP_ANONYMOUS gives.
#[test]
fn root_executable_memory_of_no_file_is_met_whatever_the_kernel_has_for_it() {
    let Some(memory) = Memory::new("nofile") else {
        return;
    };
    let [program, _] = &memory.programs;
    for [transport, family] in KINDS {
        for mode in ["shared", "zero", "shm", "memfd", "vdso"] {
            // Another library than the one that is denied: what is in a memfd is no matter.
            let other = "/usr/lib/x86_64-linux-gnu/libz.so.1";
            let told = memory.said(&[program, mode, transport, family, other]);
            assert_eq!(told, "nothing", "{mode} {transport} IPv{family}");
        }
    }
}

/// The other program has no descriptor of the socket at any time: the ring of the first puts it
/// into the table of its own.
#[test]
fn root_a_socket_that_io_uring_hands_on_is_judged_by_who_sends() {
    let Some(memory) = Memory::new("handon") else {
        return;
    };
    let [program, other] = &memory.programs;
    let said = |transport: &str, family: &str, more: &[&str]| {
        let words = [program, "hand-on", transport, family, LIBRARY, other];
        memory.said(&[&words, more].concat())
    };
    for [transport, family] in KINDS {
        match said(transport, family, &[]).as_str() {
            "lacks" => {
                eprintln!("skipped: IORING_MSG_SEND_FD (probe: IORING_OP_MSG_RING)");
                return;
            }
            told => assert_eq!(told, "nothing", "{transport} IPv{family}"),
        }
    }
    memory.host.configure(&rules(&[program, other]));
    memory.host.host.done(&["reload"]);
    for [transport, family] in KINDS {
        soon("what the other program sends, which may now", || {
            (said(transport, family, &["arrives"]) == "answered").then_some(())
        });
    }
}

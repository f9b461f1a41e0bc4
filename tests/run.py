#!/usr/bin/env python3
"""Every test, several test programs at a time: most of them wait for clocks,
daemons and packets that must not come, and `cargo test` runs one program after
another. What a program prints is kept whole and shown when it fails, of others
what they skipped; at the end stands who failed. Doc tests come last.

A program whose source has a line `//! Runs alone: ...` measures or loads the
machine as a whole: it gets it for itself, after all the others.

With SKIPS_FAIL=1 a program that skips a test for want of a program or of root
fails: where dist/install-deps.sh has run, nothing of that is missing.

Arguments are those of `cargo test`, without a filter. TEST_JOBS says how many
programs run at a time; more of them do while processors have nothing to do.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

# Programs at a time, and how many where all of them wait.
PROCESSORS = os.cpu_count() or 1
JOBS = int(os.environ.get("TEST_JOBS", PROCESSORS + 1))
MOST_JOBS = 2 * JOBS
# Seconds over which the processors must have been idle, and the part of them.
IDLE_SECONDS = 2
IDLE_PART = 0.3
CARGO = shlex.split(os.environ.get("CARGO", "cargo"))
# A program that hangs fails, by name.
LIMIT = 900
SKIPS_FAIL = os.environ.get("SKIPS_FAIL") == "1"
# What skipped tests print of what is missing, as `missing` in crates/netlab does.
LACKING = re.compile(r"skipped: (?:no program (?P<program>\S+)|not root\b|needs root\b)")
# dist/install-deps.sh leaves Postfix out where another mail server is.
MAY_LACK = {"postfix"}


def is_fault(line):
    """Is it a test skipped for want of what is always there where all is installed?"""
    lacking = LACKING.match(line)
    return bool(lacking) and os.path.basename(lacking["program"] or "") not in MAY_LACK


class Program:
    """A built test program, and how it went."""

    def __init__(self, message):
        target = message["target"]
        package = message["manifest_path"]
        self.path = message["executable"]
        self.directory = os.path.dirname(package)
        source = target["src_path"]
        self.name = os.path.relpath(source)
        with open(source, encoding="utf-8") as lines:
            self.alone = any(line.startswith("//! Runs alone:") for line in lines)
        self.process = None

    def start(self, environment):
        self.output = tempfile.TemporaryFile()
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [self.path, "--show-output"],
            cwd=self.directory,
            env=dict(environment, CARGO_MANIFEST_DIR=self.directory),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            # A group of its own, to end what it started with it.
            process_group=0,
        )

    def end(self):
        """Ends it before its time; what it left is swept by the next run."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def report(self, status, used):
        """One line, or all that it said."""
        seconds = time.monotonic() - self.begun
        cpu = used.ru_utime + used.ru_stime
        self.output.seek(0)
        said = self.output.read().decode(errors="replace")
        self.output.close()
        if status != 0:
            print(f"\n==== {self.name} failed ({status}) after {seconds:.1f} s\n{said}", flush=True)
            return False
        skipped = [line for line in said.splitlines() if line.startswith("skipped: ")]
        faults = [line for line in skipped if is_fault(line)] if SKIPS_FAIL else []
        if faults:
            said = "\n".join(dict.fromkeys(faults))
            print(f"\n==== {self.name} failed: tests were skipped (SKIPS_FAIL=1)\n{said}", flush=True)
            return False
        counts = [line for line in said.splitlines() if line.startswith("test result: ok. ")]
        passed = sum(int(line.split()[3]) for line in counts)
        for line in skipped:
            print(f"{self.name}: {line}")
        print(f"{self.name:45} {passed:4} passed {seconds:6.1f} s, {cpu:5.1f} s of CPU", flush=True)
        return True


def build(arguments):
    """All test programs and where their libraries are."""
    cargo = subprocess.Popen(
        [*CARGO, "test", "--no-run", "--message-format=json-render-diagnostics", *arguments],
        stdout=subprocess.PIPE,
    )
    programs, libraries = [], []
    for line in cargo.stdout:
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["executable"]:
            if message["profile"]["test"]:
                programs.append(Program(message))
        elif message["reason"] == "build-script-executed":
            paths = (path.split("=")[-1] for path in message["linked_paths"])
            libraries.extend(path for path in paths if path not in libraries)
    if cargo.wait() != 0:
        sys.exit(cargo.returncode)
    # The system tests first: they wait longest.
    programs.sort(key=lambda program: (not program.name.startswith("tests/"), program.name))
    return programs, libraries


class Idleness:
    """How idle the processors are, waiting for a disk included."""

    def __init__(self):
        self.look()

    def look(self):
        with open("/proc/stat", encoding="ascii") as lines:
            fields = lines.readline().split()
        self.seconds = (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
        self.at = time.monotonic()

    def is_long(self):
        """Asked again and again: true once in IDLE_SECONDS at most, for what is begun then
        takes a while to show."""
        at, seconds = self.at, self.seconds
        if time.monotonic() - at < IDLE_SECONDS:
            return False
        self.look()
        return (self.seconds - seconds) / (self.at - at) > IDLE_PART * PROCESSORS


def run(programs, jobs, most, environment):
    """Runs them, `jobs` at a time, up to `most` while processors are idle; the names of
    those that failed."""
    waiting, running, failed = list(programs), {}, []
    idleness = Idleness()
    try:
        while waiting or running:
            while waiting and (
                len(running) < jobs or (len(running) < most and idleness.is_long())
            ):
                program = waiting.pop(0)
                program.start(environment)
                running[program.process.pid] = program
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                for program in running.values():
                    if time.monotonic() - program.begun > LIMIT:
                        program.end()
                time.sleep(0.05)
                continue
            program = running.pop(pid)
            program.process.returncode = os.waitstatus_to_exitcode(status)
            if not program.report(program.process.returncode, used):
                failed.append(program.name)
    finally:
        for program in running.values():
            program.end()
    return failed


def main():
    arguments = sys.argv[1:]
    # Ends what runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs, libraries = build(arguments)
    deps = os.path.dirname(programs[0].path)
    target = os.path.dirname(deps)
    # As cargo: what was built, not the system's, which some programs replace.
    built = [path for path in libraries if path.startswith(target + os.sep)]
    paths = [*built, deps, target, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(path for path in paths if path))
    crowded = {"RUST_TEST_THREADS": str(PROCESSORS + 1), **environment}
    begun = time.monotonic()
    failed = run([p for p in programs if not p.alone], JOBS, MOST_JOBS, crowded)
    failed += run([p for p in programs if p.alone], 1, 1, environment)
    # Of all or of packages; where programs are named, they are meant.
    if not any(argument.startswith(("--test", "--lib", "--bin")) for argument in arguments):
        docs = subprocess.run([*CARGO, "test", "--doc", "--quiet", *arguments], check=False)
        if docs.returncode != 0:
            failed.append("doc tests")
    print(f"{len(programs)} programs in {time.monotonic() - begun:.0f} s")
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()

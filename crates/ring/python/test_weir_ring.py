"""Tests of the binding: python3 -m unittest, with WEIR_RING_LIBRARY set to a
library that was built (cargo test -p weir-ring --test python does both)."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import weir_ring
from weir_ring import DROP_NEWEST, OVERWRITE_OLDEST, Error, Reader, Set, Writer

with open(os.path.join(os.path.dirname(__file__), "../include/weir_ring.h")) as _file:
    HEADER = _file.read()


class Binding(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="weir-ring-")
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "set", "a")

    def test_records_come_out_as_they_went_in(self):
        with Writer(self.path) as writer, Reader(self.path) as reader:
            self.assertTrue(reader.has_writer)
            self.assertIsNone(reader.read())
            self.assertTrue(writer.write("grüße"))
            self.assertTrue(writer.write(b"\0\xff", time=7))
            self.assertTrue(writer.write(b""))
            self.assertEqual(writer.writev([b"x", "yy", b""]), 3)
            records = list(reader)
            self.assertEqual(
                [record.payload for record in records],
                ["grüße".encode(), b"\0\xff", b"", b"x", b"yy", b""],
            )
            self.assertEqual(records[1].time, 7)
            self.assertEqual(len({record.seq for record in records}), 6)
            self.assertEqual(os.fstat(writer.fileno()).st_ino, os.stat(self.path).st_ino)
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_a_full_ring_drops_and_counts(self):
        with Writer(self.path, size=4096) as writer, Reader(self.path) as reader:
            stored = sum(writer.write(b"x" * 100) for _ in range(100))
            self.assertTrue(0 < stored < 100)
            self.assertEqual(writer.dropped, 100 - stored)
            self.assertEqual(len(list(reader)), stored)
            self.assertTrue(writer.write(b"after"))
            self.assertEqual(reader.read().lost, 100 - stored)
            self.assertEqual(reader.lost, 100 - stored)

    def test_overwriting_loses_the_oldest_and_counts_them(self):
        with Writer(self.path, size=4096, policy=OVERWRITE_OLDEST) as writer:
            with Reader(self.path) as reader:
                for number in range(1000):
                    self.assertTrue(writer.write(str(number)))
                numbers = [int(record.payload) for record in reader]
                self.assertEqual(numbers, list(range(reader.lost, 1000)))
                self.assertGreater(reader.lost, 0)

    def test_each_refusal_is_an_error_with_its_code(self):
        codes = dict(re.findall(r"(WEIR_RING_E\w+) = (-\d+)", HEADER))

        def refused(name, what, *arguments, **options):
            with self.assertRaises(Error) as caught:
                what(*arguments, **options)
            self.assertEqual(caught.exception.code, int(codes["WEIR_RING_" + name]))
            self.assertTrue(str(caught.exception))

        refused("ENOTFOUND", Reader, self.path)
        refused("EINVALID", Writer, self.path, size=5000)
        with Writer(self.path, size=4096, policy=DROP_NEWEST) as writer:
            refused("EWRITER", Writer, self.path)
            refused("ETOOLONG", writer.write, b"x" * (writer.max_record + 1))
        refused("EGEOMETRY", Writer, self.path, size=8192)
        Writer(self.path, size=8192, replace=True).close()
        other = self.path + "-other"
        with open(other, "wb") as file:
            file.write(b"no segment" * 4000)
        refused("ENOTARING", Reader, other)

    def test_a_closed_object_says_so(self):
        writer = Writer(self.path)
        writer.close()
        writer.close()
        with self.assertRaises(ValueError):
            writer.write(b"x")
        ring = Set(os.path.dirname(self.path))
        ring.close()
        for use in (ring.statistics, ring.sleep, lambda: list(ring)):
            with self.assertRaises(ValueError):
                use()

    def test_a_sleeping_reader_is_woken(self):
        with Writer(self.path) as writer, Reader(self.path) as reader:
            self.assertFalse(reader.sleep(0.01))
            timer = threading.Timer(0.05, writer.write, [b"late"])
            timer.start()
            self.assertEqual(next(reader.follow(timeout=30)).payload, b"late")
            timer.join()
            self.assertEqual(list(reader.follow(timeout=0.01)), [])

    def test_a_set_reads_other_processes_and_finds_new_segments(self):
        directory = os.path.dirname(self.path)
        program = "import sys, weir_ring\nwith weir_ring.Writer(sys.argv[1]) as writer:\n" \
            "    for number in range(10000):\n        assert writer.write(str(number))\n"
        with Set(directory) as ring:
            writers = [
                subprocess.Popen([sys.executable, "-c", program, f"{self.path}-{number}"])
                for number in range(3)
            ]
            seen = {}
            for segment, record in ring.follow(timeout=30):
                seen.setdefault(segment, []).append(int(record.payload))
                if sum(map(len, seen.values())) == 30000:
                    break
            self.assertEqual([writer.wait() for writer in writers], [0, 0, 0])
            self.assertEqual(list(seen.values()), [list(range(10000))] * 3)
            self.assertEqual(ring.statistics(), (3, 0, 0, 0))

    def test_a_killed_writer_leaves_its_records(self):
        program = "import os, signal, sys, weir_ring\nwriter = weir_ring.Writer(sys.argv[1])\n" \
            "writer.write(b'last words')\nos.kill(os.getpid(), signal.SIGKILL)\n"
        ended = subprocess.run([sys.executable, "-c", program, self.path])
        self.assertEqual(ended.returncode, -signal.SIGKILL)
        with Reader(self.path) as reader:
            self.assertFalse(reader.has_writer)
            self.assertEqual(reader.read().payload, b"last words")

    def test_functions_and_numbers_are_those_of_the_header(self):
        for name in weir_ring._FUNCTIONS:
            self.assertIn(f"weir_ring_{name}(", HEADER)
        numbers = dict(re.findall(r"WEIR_RING_(\w+) = (\d+)", HEADER))
        names = ["DROP_NEWEST", "OVERWRITE_OLDEST", "OLDEST", "NEWEST", "RESUME"]
        for name in names + ["TRUSTED", "USER", "ANYONE"]:
            self.assertEqual(getattr(weir_ring, name), int(numbers[name]), name)
        # As the compiler lays them out, on every 64-bit Linux.
        sizes = [weir_ring._WriterOptions, weir_ring._ReaderOptions, weir_ring._Record]
        self.assertEqual([ctypes.sizeof(each) for each in sizes], [40, 32, 40])


if __name__ == "__main__":
    unittest.main()

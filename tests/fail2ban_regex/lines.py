"""Prints a log for each filter on standard input (one JSON [directory, name, options] a
line): lines that are sampled from the filter's own expressions, so that most of them fit
one, and lines with something wrong in them. One JSON list of lines is printed for each."""

import json
import logging
import random
import re
import sys
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

import sre_constants as c
import sre_parse

from fail2ban.client.filterreader import FilterReader
from fail2ban.server.datedetector import DateDetector
from fail2ban.server.failregex import Regex

WORDS = ["root", "alice", "bob-1", "x", "www data", "o'hara", "f\u00fcr", "a.b@example.org"]
DATES = ["Nov 25 10:%02d:%02d", "2026-11-25T10:%02d:%02d+01:00", "2026-11-25 10:%02d:%02d,123",
         "25/Nov/2026:10:%02d:%02d +0100", "Wed Nov 25 10:%02d:%02d 2026"]


class Sampler:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def address(self):
        n = self.random.randrange(1, 250)
        return self.random.choice(["192.0.2.%d" % n, "198.51.100.%d" % n, "203.0.113.7"])

    def text(self, pattern, content=None):
        self.groups = {}
        self.content = content
        pattern = re.sub(r"\(\?[aiLmsux]+\)", "", pattern)
        self.tree = sre_parse.parse(pattern)
        self.names = {number: name for name, number in self.tree.state.groupdict.items()}
        return self.sequence(self.tree)

    def sequence(self, nodes):
        return "".join(self.node(*node) for node in nodes)

    def members(self, members):
        allowed = []
        negated = members and members[0][0] is c.NEGATE
        for kind, value in members:
            if kind is c.LITERAL:
                allowed.append(chr(value))
            elif kind is c.RANGE:
                allowed += [chr(n) for n in range(value[0], min(value[1], value[0] + 60) + 1)]
            elif kind is c.CATEGORY:
                allowed += self.category(value)
        if negated:
            allowed = [x for x in "abcxyz0189-_ ." if x not in allowed] or ["\u00e9"]
        return self.random.choice(allowed or ["?"])

    def category(self, value):
        return {
            c.CATEGORY_DIGIT: list("0123456789"),
            c.CATEGORY_SPACE: [" "],
            c.CATEGORY_WORD: list("abcdeXYZ019_"),
            c.CATEGORY_NOT_SPACE: list("abc09-."),
            c.CATEGORY_NOT_DIGIT: list("abc -"),
            c.CATEGORY_NOT_WORD: list(" -:"),
        }[value]

    def node(self, kind, value):
        if kind is c.LITERAL:
            return chr(value)
        if kind is c.NOT_LITERAL:
            return self.random.choice([x for x in "abc 09-" if ord(x) != value])
        if kind is c.ANY:
            return self.random.choice("abcdefg 0189:.-=/")
        if kind is c.IN:
            return self.members(value)
        if kind is c.BRANCH:
            return self.sequence(self.random.choice(value[1]))
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT) or str(kind) == "POSSESSIVE_REPEAT":
            low, high, nodes = value
            count = self.random.randint(low, min(high, low + 6))
            return "".join(self.sequence(nodes) for _ in range(count))
        if kind is c.SUBPATTERN:
            number, nodes = value[0], value[-1]
            name = self.names.get(number, "")
            if name == "content" and self.content is not None:
                text = self.content
            elif name == "ip4":
                text = self.address()
            elif name == "ip6":
                text = "2001:db8::%x" % self.random.randrange(1, 9999)
            elif name == "dns":
                text = self.random.choice(["host.example.org", self.address()])
            elif name == "user" and self.random.random() < 0.5:
                text = self.random.choice(WORDS)
            else:
                text = self.sequence(nodes)
            self.groups[number] = text
            return text
        if str(kind) == "ATOMIC_GROUP":
            return self.sequence(value)
        if kind is c.GROUPREF:
            return self.groups.get(value, "")
        if kind is c.GROUPREF_EXISTS:
            number, yes, no = value
            chosen = yes if number in self.groups else no
            return self.sequence(chosen) if chosen else ""
        return ""  # places and lookarounds


def body(sampler, failregex, prefregex):
    text = sampler.text(Regex._resolveHostTag(failregex, useDns="yes"))
    if prefregex:
        text = sampler.text(Regex._resolveHostTag(prefregex, useDns="yes"), text)
    return text.replace("\r", " ")


def dated(sampler, pattern, number):
    usual = sampler.random.choice(DATES) % (number % 60, number * 7 % 60)
    if not pattern:
        return usual
    detector = DateDetector()
    for one in pattern.split("\n"):
        detector.appendTemplate(one.strip())
    templates = [t for t in detector.templates if "(?<=" not in t.template.regex]
    if not templates or len(templates) > 3:
        return usual
    return sampler.text(sampler.random.choice(templates).template.regex)


for line in sys.stdin:
    directory, name, options = json.loads(line)
    sampler = Sampler(name + json.dumps(options))
    reader = FilterReader(name, "jail", options, basedir=directory)
    reader.read()
    reader.applyAutoOptions("auto")
    reader.getOptions(None)
    found = {"failregex": [], "prefregex": "", "datepattern": ""}
    for command in reader.convert():
        if command[2] == "addfailregex":
            value = command[3]
            found["failregex"] += value if isinstance(value, list) else [value]
        elif command[2] in found:
            found[command[2]] = command[3]
    lines = []
    for number, regex in enumerate(found["failregex"] * 3):
        text = body(sampler, regex, found["prefregex"])
        date = dated(sampler, found["datepattern"], number)
        if "[]" in text:
            text = text.replace("[]", "[%s]" % date, 1)
        else:
            text = date + ("" if text.startswith(" ") else " ") + text
        parts = text.split("\n")
        lines += parts
        kind = sampler.random.randrange(6)
        if kind == 0:  # something is missing
            lines.append(parts[-1][: len(parts[-1]) // 2])
        elif kind == 1:  # something is too much
            lines.append(parts[-1] + " from 192.0.2.254 and more")
        elif kind == 2:
            lines.append("no date: " + parts[0][-40:])
        elif kind == 3:
            lines.append("Nov 25 11:00:00 host other[1]: " + sampler.random.choice(WORDS))
    print(json.dumps([l for l in lines if "\x00" not in l and "\x85" not in l]))

//! The examples of man pages: commands that people type, by verb. Each is one by the definition
//! of the verbs, and no verb is without one.

/// The verb, of which "" is weir itself; a command; what it is for.
pub const EXAMPLES: &[(&str, &str, &str)] = &[
    (
        "",
        "weir status",
        "PROTECTED or not, and why; then hooks, jails, packets by reason, alerts.",
    ),
    (
        "",
        "weir why 203.0.113.7",
        "Why an address is dropped, with the lines that were counted.",
    ),
    (
        "",
        "weir ban 203.0.113.7 --for 1d --reason \"talked to them\"",
        "Drop an address for a day.",
    ),
    (
        "",
        "weir check && weir reload",
        "Put a change of the configuration into force.",
    ),
    (
        "daemon",
        "weir daemon",
        "Run in the foreground, as the unit weir.service does.",
    ),
    (
        "daemon",
        "weir --config ./weir.toml daemon",
        "Another configuration, such as one with backend = \"dry-run\".",
    ),
    (
        "check",
        "weir check",
        "What the configuration will do, or file and line of every mistake.",
    ),
    (
        "check",
        "weir check ./weir.toml --json",
        "Another file, for programs.",
    ),
    (
        "reload",
        "weir check && weir reload",
        "Put a change into force, all of it or nothing.",
    ),
    (
        "status",
        "weir status",
        "PROTECTED or not, and why; then all that is in force.",
    ),
    ("status", "weir status sshd", "One jail."),
    (
        "metrics",
        "weir metrics",
        "Text for Prometheus, as a node exporter collects it from a file.",
    ),
    ("bans", "weir bans", "All bans in force."),
    (
        "bans",
        "weir bans --jail sshd --json",
        "Those of one jail, for programs.",
    ),
    (
        "ban",
        "weir ban 203.0.113.7 --for 1d --port 22/tcp --reason \"talked to them\"",
        "One port, for a day.",
    ),
    ("ban", "weir ban 2001:db8::/32", "A prefix, for good."),
    (
        "unban",
        "weir unban 203.0.113.7",
        "Lift the bans of an address.",
    ),
    (
        "unban",
        "weir unban --all --jail sshd",
        "Lift all that a jail has banned.",
    ),
    (
        "why",
        "weir why 203.0.113.7",
        "Which ban, list or country it is, with the lines that were counted.",
    ),
    (
        "why",
        "weir why 203.0.113.7 --port 443/tcp",
        "The same about one port.",
    ),
    (
        "allow add",
        "weir allow add 198.51.100.0/24 --note \"the office\"",
        "Never drop these addresses, whatever bans say.",
    ),
    (
        "allow del",
        "weir allow del 198.51.100.0/24",
        "Take it back.",
    ),
    (
        "allow list",
        "weir allow list",
        "What is allowed by command and by the configuration.",
    ),
    ("list refresh", "weir list refresh", "Fetch all lists now."),
    (
        "list status",
        "weir list status",
        "Entries and age of each list, and what is wrong with it.",
    ),
    (
        "pool add",
        "weir pool add shop --vip 198.51.100.81 --port 80/tcp --real 198.51.100.11,weight=2 198.51.100.12 --check http=/healthz",
        "Balance a virtual address over two servers.",
    ),
    (
        "pool del",
        "weir pool del shop",
        "Remove a pool that a command has added.",
    ),
    (
        "pool list",
        "weir pool list",
        "All pools, and how many reals of each live.",
    ),
    (
        "pool show",
        "weir pool show shop",
        "Reals, health and flows of one pool.",
    ),
    (
        "pool drain",
        "weir pool drain shop",
        "Give no new flows to any of its reals.",
    ),
    (
        "pool disable",
        "weir pool disable shop",
        "Take it out of force.",
    ),
    (
        "pool enable",
        "weir pool enable shop",
        "Have it serve again.",
    ),
    (
        "real add",
        "weir real add shop 198.51.100.13 weight=2",
        "One server more.",
    ),
    (
        "real del",
        "weir real del shop 198.51.100.13",
        "Remove a server that a command has added.",
    ),
    (
        "real drain",
        "weir real drain shop 198.51.100.12",
        "Give it no new flows; those that it has go on.",
    ),
    (
        "real disable",
        "weir real disable shop 198.51.100.12",
        "Give it nothing any more.",
    ),
    (
        "real enable",
        "weir real enable shop 198.51.100.12",
        "Have it serve again.",
    ),
    (
        "real weight",
        "weir real weight shop 198.51.100.12 3",
        "Give it three times the flows of a server of weight 1.",
    ),
    (
        "real-side",
        "weir real-side 198.51.100.81 2001:db8::81",
        "On a server of a pool: have it take the virtual addresses.",
    ),
    (
        "real-side",
        "weir real-side --undo",
        "Take all of that back.",
    ),
    (
        "app list",
        "weir app list",
        "The rules, and what each has decided.",
    ),
    (
        "app list",
        "weir app list --programs",
        "The programs that are known, and the rules about each.",
    ),
    (
        "app hash",
        "weir app hash /usr/bin/curl",
        "As exe and object of a rule name it.",
    ),
    (
        "app hash",
        "weir app hash --aggregate pid:4711",
        "As aggregate of a rule names the whole of a process.",
    ),
    (
        "app why",
        "weir app why 4711",
        "Who a process is, and which rules are about it.",
    ),
    (
        "app why",
        "weir app why :443",
        "Who holds the sockets at a port, and what the rules say of each.",
    ),
    (
        "app learn start",
        "weir app learn start --for 1d",
        "Record for a day which programs talk to whom.",
    ),
    (
        "app learn stop",
        "weir app learn stop",
        "End it before its time; what was recorded stays.",
    ),
    (
        "app learn status",
        "weir app learn status",
        "Whether it is recorded, and how much.",
    ),
    (
        "app learn forget",
        "weir app learn forget",
        "Delete what was recorded.",
    ),
    (
        "app review",
        "weir app review",
        "What was recorded, and what the rules in force say of it.",
    ),
    (
        "app review",
        "weir app review --accept",
        "Mark all of it as reviewed, for weir app enforce.",
    ),
    (
        "app enforce",
        "weir app enforce --dry-run",
        "The rules that would be made of what was reviewed.",
    ),
    (
        "app enforce",
        "weir app enforce",
        "Put them into force, and deny the rest.",
    ),
    (
        "app allow",
        "weir app allow /usr/bin/curl --to 192.0.2.0/24 --port 443/tcp",
        "One program, to one network at one port.",
    ),
    (
        "app allow",
        "weir app allow /usr/bin/python3 --script /usr/local/bin/backup.py --user backup",
        "An interpreter with its script, as one user.",
    ),
    (
        "app deny",
        "weir app deny --user nobody --out",
        "Whatever this user runs begins no connection.",
    ),
    (
        "app deny",
        "weir app deny /usr/bin/wget --dry-run",
        "What would change.",
    ),
    (
        "app remove",
        "weir app remove allow-curl",
        "Take back what weir app allow has added.",
    ),
    (
        "app accept",
        "weir app accept /usr/local/bin/agent",
        "Have the rules by this path be about the file that is there now.",
    ),
    (
        "app prompt",
        "weir app prompt",
        "Answer questions about programs of which no rule says anything.",
    ),
    (
        "app top",
        "weir app top --count 5",
        "The five rules that decide most.",
    ),
    (
        "token key new",
        "weir token key new",
        "Make the first key, in /etc/weir/token-keys.",
    ),
    (
        "token key new",
        "weir token key new --sign-from 2030-01-01T08:00:00Z",
        "The next one, with the time to copy it to all hosts.",
    ),
    (
        "token key list",
        "weir token key list",
        "Which key signs; fingerprints are alike on all hosts.",
    ),
    (
        "token key retire",
        "weir token key retire 1",
        "End key 1 once another one signs on all hosts.",
    ),
    (
        "token verify",
        "weir token verify --port 8080 syns.pcap",
        "Which connections of a capture proved whose they are.",
    ),
    (
        "token why",
        "weir token why 192.0.2.7",
        "Packets of this address that proved nothing.",
    ),
    (
        "options list",
        "weir options list --layer tcp",
        "The options of TCP that have names.",
    ),
    (
        "options inject",
        "weir options inject tcp:exp-254 --interface eth0 --to 192.0.2.0/24 --port 443 --for 30s",
        "Put an option on packets for half a minute.",
    ),
    (
        "options probe",
        "weir options probe paris=ssh:root@192.0.2.1 tokyo=ssh:root@198.51.100.1 --resume result.jsonl",
        "What becomes of options between two hosts.",
    ),
    (
        "options agent",
        "weir options agent",
        "At a site: weir options probe runs this over ssh.",
    ),
    (
        "events",
        "weir events --follow",
        "Findings, bans and drops as they happen, a line of JSON each.",
    ),
    (
        "geo",
        "weir geo 203.0.113.7 2001:db8::1",
        "Country and network, without a daemon.",
    ),
    (
        "import fail2ban",
        "weir import fail2ban --dry-run",
        "A line for each jail, and what is not honoured.",
    ),
    (
        "import fail2ban",
        "weir import fail2ban --bans",
        "Take over the bans in the database of Fail2ban.",
    ),
    (
        "import ipt_geofence",
        "weir import ipt_geofence /etc/ipt_geofence/config.json",
        "Print it as configuration of weir.",
    ),
    (
        "import pen",
        "weir import pen 'pen -r 198.51.100.80:80 198.51.100.11 198.51.100.12'",
        "A command line as configuration of weir.",
    ),
    (
        "import daf",
        "weir import daf /etc/daf/rules.sh",
        "The rules of DAF as rules about programs.",
    ),
    (
        "import opensnitch",
        "weir import opensnitch",
        "The rules in /etc/opensnitchd/rules as rules about programs.",
    ),
    (
        "export fail2ban",
        "weir export fail2ban",
        "Write bans into the database of Fail2ban, for a way back.",
    ),
    (
        "filter list",
        "weir filter list",
        "The filters that there are.",
    ),
    (
        "filter show",
        "weir filter show sshd",
        "One as a file of filter.d has it.",
    ),
    (
        "filter test",
        "weir filter test sshd </var/log/auth.log",
        "Which lines are failures, of whom.",
    ),
    (
        "filter test",
        "weir filter test shop --missed </var/log/shop.log",
        "Of the others, what the best pattern wanted.",
    ),
    (
        "ring pipe",
        "weir ring pipe --input /run/shop.fifo /run/weir-ring/shop",
        "Write the lines of a pipe into a ring.",
    ),
    (
        "ring syslog",
        "weir ring syslog --listen unix:/run/shop/log.sock /run/weir-ring/shop",
        "Write what a program sends to syslog into a ring.",
    ),
    (
        "ring tail",
        "weir ring tail /run/weir-ring/shop",
        "Print what is written.",
    ),
    (
        "ring status",
        "weir ring status /run/weir-ring/shop",
        "Who writes, how fast, and what was lost.",
    ),
    ("sink test", "weir sink test tower", "Send a test event."),
    (
        "calibrate",
        "weir calibrate --quick",
        "Measure for a few seconds which hook costs least.",
    ),
    (
        "detach",
        "weir detach",
        "With the daemon stopped: take all that weir has put there out of the kernel.",
    ),
];

/// The commands of a verb, each with what it is for.
pub fn of_verb(verb: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = EXAMPLES.iter().filter(move |(of, ..)| *of == verb);
    all.map(|(_, command, meaning)| (*command, *meaning))
}

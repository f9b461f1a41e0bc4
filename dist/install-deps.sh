#!/bin/sh
# install-deps.sh build|demo|bench|fuzz|test|recording...: installs the Debian packages that
# the purposes named need and this machine lacks. Each purpose has a list of
# its own, so that a host that only builds weir gets no servers. Services that
# come with packages are neither started nor enabled, and what keeps them from
# starting is undone however this ends. Prints nothing when all is there.
set -eu

build="gcc make pkg-config clang libelf-dev zlib1g-dev libsystemd-dev ca-certificates"
# A real sshd with its log and the servers of a pool, in a network of its own.
demo="iproute2 openssh-server openssh-client rsyslog procps nginx-light curl python3"
# What records it for the README.
recording="asciinema python3"
# What the benchmarks compare with, beside real servers.
bench="iproute2 iptables nftables ipset pen haproxy apache2-utils ethtool nginx-light libnginx-mod-stream
opensnitch"
# libFuzzer is C++.
fuzz="g++"
# Real clients and servers, and what checks sources, scripts and man pages.
test="$fuzz clang-14 clang-19 libbpf-dev libzmq5 clang-format shellcheck mandoc $demo $bench dropbear-bin
systemd-journal-remote faketime bind9 python3 python3-venv nmap masscan curl keepalived fail2ban vsftpd tshark
dovecot-imapd postfix rpm tcpdump podman runc conmon lua5.4"

fail() {
	printf 'make deps: %s\n' "$@" >&2
	exit 1
}

# Maintainer scripts ask this file whether they may start a service: no. The
# machine's own one is set aside meanwhile. A marker tells ours from it, so
# that the run after a SIGKILL or a power cut tidies up.
policy=/usr/sbin/policy-rc.d
saved=$policy.before-weir
marker="# made by dist/install-deps.sh of weir"

allow_services() {
	if [ -f $policy ] && grep -q "^$marker" $policy; then
		rm -f $policy
	fi
	if [ -e $saved ]; then
		mv -f $saved $policy
	fi
}

deny_services() {
	trap allow_services EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	allow_services
	if [ -e $policy ]; then
		mv $policy $saved
	fi
	printf '#!/bin/sh\n%s\nexit 101\n' "$marker" >$policy
	chmod 755 $policy
}

packages=
for purpose in "${@:-}"; do
	case $purpose in
	build) packages="$packages $build" ;;
	demo) packages="$packages $demo" ;;
	recording) packages="$packages $recording" ;;
	bench) packages="$packages $bench" ;;
	fuzz) packages="$packages $fuzz" ;;
	test) packages="$packages $test" ;;
	*) fail "what for? install-deps.sh build|demo|bench|fuzz|test|recording..., not '$purpose'" ;;
	esac
done

# First of all: without it the packages are of no use.
wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "$0")/../Cargo.toml")
advice="Install it with rustup (https://rustup.rs), or: rustup update stable"
command -v cargo >/dev/null ||
	fail "cargo is missing: Rust $wanted or newer is needed, found none." "$advice"
found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || found=
[ -n "$found" ] ||
	fail "cargo does not run (cargo --version fails): Rust $wanted or newer is needed." "$advice"
[ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
	fail "cargo is too old: Rust $wanted or newer is needed, found $found ($(command -v cargo))." "$advice"

sendmail=/usr/sbin/sendmail
missing=
for package in $packages; do
	case " $missing " in *" $package "*) continue ;; esac
	# shellcheck disable=SC2016 # dpkg-query expands it, not the shell
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
	# It would take the place of another mail server. Its test is skipped without it.
	if [ "$package" = postfix ] && [ -e "$sendmail" ]; then continue; fi
	missing="$missing $package"
done

if [ -n "$missing" ]; then
	command -v apt-get >/dev/null ||
		fail "no apt-get here. weir is built on Debian 12; elsewhere install what corresponds to:" " $missing"
	[ "$(id -u)" = 0 ] ||
		fail "these packages are missing; install them as root:" "  apt-get install --no-install-recommends$missing"
	echo "installing:$missing"
	deny_services
	# Without the option, apt-get update succeeds when nothing can be reached.
	apt-get update -qq -o APT::Update::Error-Mode=any -o DPkg::Lock::Timeout=60 >/dev/null ||
		fail "apt-get update failed (above: why). Is this machine online, and /etc/apt/sources.list right?" \
			"needed:$missing"
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		-o DPkg::Lock::Timeout=60 $missing >/dev/null ||
		fail "apt-get install failed (above: why). Needed:$missing"
	# Not at the next boot either, where they were not before.
	if command -v systemctl >/dev/null; then
		for package in $missing; do
			case $package in
			openssh-server) systemctl disable ssh.service ssh.socket ;;
			rsyslog) systemctl disable rsyslog.service ;;
			systemd-journal-remote) systemctl disable systemd-journal-remote.socket ;;
			nginx-light) systemctl disable nginx.service ;;
			haproxy) systemctl disable haproxy.service ;;
			opensnitch) systemctl disable opensnitch.service ;;
			bind9) systemctl disable named.service ;;
			keepalived) systemctl disable keepalived.service ;;
			fail2ban) systemctl disable fail2ban.service ;;
			vsftpd) systemctl disable vsftpd.service ;;
			dovecot-imapd) systemctl disable dovecot.service dovecot.socket ;;
			postfix) systemctl disable postfix.service ;;
			esac
		done >/dev/null 2>&1 || true
	fi
fi

#!/bin/sh
# Installs the Debian packages that building, testing and the demo need and
# this machine lacks. Services that come with them are neither started nor
# enabled. Prints nothing when all is there.
set -eu

packages="gcc make pkg-config clang clang-14 clang-19 clang-format llvm libelf-dev zlib1g-dev
libsystemd-dev iproute2 openssh-server openssh-client rsyslog systemd-journal-remote faketime procps"

missing=
for package in $packages; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
		missing="$missing $package"
done

if [ -n "$missing" ]; then
	if [ "$(id -u)" != 0 ]; then
		echo "these packages are missing; install them as root:$missing" >&2
		exit 1
	fi
	echo "installing:$missing"
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
		trap 'rm -f $policy' EXIT INT TERM
	fi
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
	# Not at the next boot either, where they were not before.
	if command -v systemctl >/dev/null; then
		for package in $missing; do
			case $package in
			openssh-server) systemctl disable ssh.service ssh.socket ;;
			rsyslog) systemctl disable rsyslog.service ;;
			systemd-journal-remote) systemctl disable systemd-journal-remote.socket ;;
			esac
		done >/dev/null 2>&1 || true
	fi
fi

if ! command -v cargo >/dev/null; then
	echo "cargo is missing: install Rust 1.88 or newer (https://rustup.rs)" >&2
	exit 1
fi

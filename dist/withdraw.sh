#!/bin/sh
# Takes weir out of the kernel, the first half of `make uninstall`: stops and
# disables the unit, detaches, then stops and disables the units of rings, and that of a
# real, with what `weir real-side` has done.
# Removes no file; that is the Makefile's. Fails, and says what to do, while
# anything of weir is still in force.
#
# usage: withdraw.sh WEIR     the installed program
set -eu
weir=$1

if [ "$(id -u)" != 0 ]; then
	echo "uninstall: needs root (or DESTDIR=... for a staged tree)" >&2
	exit 1
fi

# By the unit's state rather than its file: a unit that was deleted by hand
# may run still.
if [ -d /run/systemd/system ]; then
	systemctl stop weir.service 2>/dev/null || ! systemctl --quiet is-active weir.service || {
		echo "uninstall: systemctl cannot stop weir.service; nothing was removed" >&2
		exit 1
	}
	systemctl --quiet disable weir.service 2>/dev/null || true
fi

if [ -x "$weir" ]; then
	# 1: nothing of the configuration's instance, but of others; see below.
	"$weir" detach || [ $? -eq 1 ] || {
		echo "uninstall: nothing was removed. If a daemon holds the instance: pgrep -a weir" >&2
		exit 1
	}
elif [ -d /sys/fs/bpf/weir ]; then
	echo "uninstall: $weir is gone, but tables and programs are pinned in /sys/fs/bpf/weir:" >&2
	echo "  make install, then make uninstall" >&2
	exit 1
fi

# Instances with another --config. Whoever made them knows whether they may go.
others=
for instance in /sys/fs/bpf/weir/*; do
	[ ! -d "$instance" ] || others="$others ${instance##*/}"
done
if [ -n "$others" ]; then
	echo "uninstall: other instances are in the kernel; nothing was removed. For each of them:$others" >&2
	echo "  end its daemon, $weir detach --instance NAME, then make uninstall again" >&2
	exit 1
fi

# Last: until here weir may be kept after all. An instance for each ring; systemctl matches
# those that it has loaded, and an enabled one need not be.
if [ -d /run/systemd/system ]; then
	rings='weir-ring-syslog@*.service'
	systemctl stop "$rings" 2>/dev/null || ! systemctl --quiet is-active "$rings" || {
		echo "uninstall: systemctl cannot stop $rings; no file was removed" >&2
		exit 1
	}
	for link in /etc/systemd/system/*.wants/weir-ring-syslog@*.service; do
		[ ! -L "$link" ] || systemctl --quiet disable "${link##*/}" 2>/dev/null || true
	done
fi

# A real's addresses and program, by its unit or by hand. Without the program nobody could take
# them back.
if [ -d /run/systemd/system ]; then
	systemctl stop weir-real-side.service 2>/dev/null || ! systemctl --quiet is-active weir-real-side.service || {
		echo "uninstall: systemctl cannot stop weir-real-side.service; no file was removed" >&2
		exit 1
	}
	systemctl --quiet disable weir-real-side.service 2>/dev/null || true
fi
if [ -e /run/weir-real-side/record.json ]; then
	"$weir" real-side --undo || {
		echo "uninstall: $weir real-side --undo failed; no file was removed" >&2
		exit 1
	}
fi
rm -f /run/weir-real-side/record.lock
rmdir /run/weir-real-side 2>/dev/null || true

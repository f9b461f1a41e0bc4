#!/bin/sh
# Boots one of fetch.sh's kernels and runs a command in it as root, in this
# machine's own root file system: shared read-only through virtiofs, a tmpfs
# overlaid, so that whatever is installed here is there and nothing that is done
# there stays. Prints what the command prints and ends with its exit status: 124
# when the time is up, 125 when the guest did not get so far.
#
#   boot.sh KERNEL-DIRECTORY SECONDS COMMAND [ARGUMENT...]
#
# The processor is emulated: /dev/kvm may be there and not work. ACCEL=kvm where
# it does.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kernel=$(cd "$1" && pwd)
seconds=$2
shift 2

work=$(mktemp -d)
daemon=
# shellcheck disable=SC2317 # the trap reaches it
tidy() {
	test -z "$daemon" || kill "$daemon" 2>/dev/null || true
	rm -rf "$work"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

/usr/lib/qemu/virtiofsd --socket-path="$work/root.sock" -o source=/ -o sandbox=chroot \
	-o cache=always -o no_posix_lock >"$work/virtiofsd" 2>&1 &
daemon=$!
tries=0
until test -S "$work/root.sock"; do
	tries=$((tries + 1))
	test "$tries" -lt 200 || {
		cat "$work/virtiofsd" >&2
		exit 125
	}
	sleep 0.05
done

# A second archive, unpacked over the kernel's own: the guest's first program,
# and what it is to do. A kernel's command line is no place for arguments.
mkdir "$work/initial"
cp "$here/init.sh" "$work/initial/init"
chmod 755 "$work/initial/init"
printf '%s\n%s\n' "$here/guest.sh" "$kernel" >"$work/initial/where"
printf '%s\n' "$@" >"$work/initial/command"
(cd "$work/initial" && find . | cpio --quiet -o -H newc) | cat "$kernel/initrd" - >"$work/initrd"

# Serial lines: the kernel's console, the exit status, what the command prints.
# One processor, an old one: Linux 6.12 crashed on two, emulated by qemu 7.2, and
# in what emulates AVX.
status=0
timeout --foreground -k 5 "$seconds" qemu-system-x86_64 -nodefaults -no-reboot -display none \
	-machine q35,memory-backend=memory -accel "${ACCEL:-tcg}" -cpu Nehalem -smp 1 \
	-m 2G -object memory-backend-memfd,id=memory,size=2G,share=on \
	-kernel "$kernel/vmlinuz" -initrd "$work/initrd" \
	-append "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init mitigations=off" \
	-chardev "socket,id=root,path=$work/root.sock" -device vhost-user-fs-pci,chardev=root,tag=root \
	-serial "file:$work/console" -serial "file:$work/status" -serial "file:/dev/fd/3" \
	3>&1 </dev/null >"$work/qemu" 2>&1 || status=$?
if said=$(tr -d '\r' <"$work/status" | grep -m 1 '^[0-9][0-9]*$'); then
	exit "$said"
fi
tail -n 20 "$work/qemu" "$work/console" >&2
test "$status" = 124 || status=125
exit "$status"

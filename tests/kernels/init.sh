#!/bin/busybox sh
# shellcheck shell=dash
# The guest's first program, in its initramfs: the host's root file system
# through virtiofs, a tmpfs over it, and on to guest.sh there.
bb() {
	/bin/busybox "$@"
}

# The host sees on the console why.
must() {
	bb "$@" || bb poweroff -f
}

bb mkdir -p /proc /sys /dev /lower /over /root
must mount -t proc proc /proc
must mount -t sysfs sys /sys
must mount -t devtmpfs dev /dev
while read -r module; do
	must insmod "/modules/$module"
done </modules/order
{
	read -r guest
	read -r kernel
} </where
must mount -t virtiofs -o ro root /lower
must mount -t tmpfs over /over
must mkdir /over/upper /over/work
must mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work root /root
must mkdir -p /root/lib/modules
must mount --bind "/lower$kernel/modules" /root/lib/modules
must mount -t tmpfs run /root/run
must cp /command /root/run/command
for moved in proc sys dev; do
	must mount --move "/$moved" "/root/$moved"
done
exec /bin/busybox switch_root /root /bin/sh "$guest"

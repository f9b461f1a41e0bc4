#!/bin/sh
# Gets the kernels of Debian's releases into a directory, and what is needed to
# boot them there: packages are downloaded and unpacked, none is installed. From
# the mirrors that this machine's apt uses, with a configuration of its own.
# What is there already is left alone.
#
#   fetch.sh DIRECTORY RELEASE...     DIRECTORY/RELEASE: vmlinuz initrd modules/
set -eu

fail() {
	printf 'kernels: %s\n' "$@" >&2
	exit 1
}

into=$1
shift
mkdir -p "$into"
into=$(cd "$into" && pwd)
test "$(dpkg --print-architecture 2>/dev/null)" = amd64 || fail "only on Debian, amd64"

mirror_of() {
	# shellcheck disable=SC2016 # apt-get expands it, not the shell
	apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Label: $1" | sort -u | head -n 1
}
main=$(mirror_of Debian) security=$(mirror_of Debian-Security)
test -n "$main" || fail "no Debian mirror in this machine's apt sources"

# apt in a world of its own: one release at a time, nothing of /etc/apt.
in_world() {
	world=$into/apt/$release
	program=$1
	shift
	"$program" -qq -o "Dir::Etc::sourcelist=$world/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::lists=$world/lists" \
		-o "Dir::Cache=$world/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
}

download() {
	(cd "$into/apt/$release" && in_world apt-get download "$1" >/dev/null)
	mkdir "$into/apt/$release/$2"
	dpkg-deb -x "$into/apt/$release/$1"_*.deb "$into/apt/$release/$2"
}

for release in "$@"; do
	test ! -e "$into/$release/initrd" || continue
	echo "fetching the kernel of $release"
	rm -rf "${into:?}/$release" "$into/apt/$release"
	mkdir -p "$into/apt/$release/lists/partial" "$into/apt/$release/cache/archives/partial"
	key="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
	{
		echo "deb $key $main $release main"
		test -z "$security" || echo "deb $key $security $release-security main"
	} >"$into/apt/$release/sources.list"
	in_world apt-get update -o APT::Update::Error-Mode=any || fail "$release is not to be had"
	image=$(in_world apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
	test -n "$image" || fail "$release has no kernel for virtual machines"
	download "$image" image
	download busybox-static busybox
	image=$into/apt/$release/image made=$into/$release.new
	rm -rf "$made"
	mkdir -p "$made/world/lib"
	mv "$(find "$image" -type d -path "*lib/modules" -prune)" "$made/modules"
	cp "$image"/boot/vmlinuz-* "$made/vmlinuz"
	version=$(ls "$made/modules")
	ln -s ../../modules "$made/world/lib/modules"
	depmod -b "$made/world" "$version"

	# What it takes to reach this machine's root file system, in the order of
	# their needs; unpacked, for busybox knows no modules that are not.
	mkdir -p "$made/initial/bin" "$made/initial/modules"
	find "$into/apt/$release/busybox" -path "*/bin/busybox" -exec install -m 755 {} "$made/initial/bin" \;
	modprobe -d "$made/world" -S "$version" -a --show-depends virtio_pci virtiofs overlay |
		sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' |
		while read -r module; do
			name=$(basename "${module%.xz}")
			case $module in
			*.xz) xz -dc "$module" >"$made/initial/modules/$name" ;;
			*) cp "$module" "$made/initial/modules/$name" ;;
			esac
			echo "$name" >>"$made/initial/modules/order"
		done
	(cd "$made/initial" && find . | cpio --quiet -o -H newc) >"$made/initrd"
	rm -rf "$made/initial" "$into/apt/$release"
	mv "$made" "$into/$release"
done

#!/bin/sh
# weir on the kernels of Debian's releases: builds the tests that `suite` names,
# boots each kernel in qemu (fetch.sh, boot.sh), and runs them there. Prints a
# line for each; ends with 1 when something failed. As root; what it installs is
# named first, what it downloads stays in the target directory.
#
#   run.sh TARGET-DIRECTORY [RELEASE...]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/kernels"
into=$(cd "$1/kernels" && pwd)
shift
test $# -gt 0 || set -- bullseye bookworm trixie
# For one kernel; the processor is emulated, and slow.
seconds=${SECONDS_A_KERNEL:-7200}

missing=
for package in qemu-system-x86 cpio kmod xz-utils debian-archive-keyring; do
	# shellcheck disable=SC2016 # dpkg-query expands it, not the shell
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
		missing="$missing $package"
done
if test -n "$missing"; then
	echo "installing:$missing"
	# shellcheck disable=SC2086 # a list of words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
"$here/fetch.sh" "$into" "$@"

# "PACKAGE TEST PATH" of each test program. Packages apart: they have tests of
# the same name.
cd "$here/../.."
for package in weir-bpf weir; do
	tests=$(awk -v package=$package '$2 == package { print "--test", $3 }' "$here/suite" | sort -u)
	# shellcheck disable=SC2086 # a list of words
	${CARGO:-cargo} test --no-run --locked -j2 -p $package --features fault-points $tests 2>"$into/built" || {
		cat "$into/built" >&2
		exit 1
	}
	sed -n "s|.*Executable tests/\(.*\)\.rs (\(.*\))$|$package \1 \2|p" "$into/built"
done >"$into/programs"

status=0
for release in "$@"; do
	awk -v root="$PWD/" 'NR == FNR { path[$1 " " $2] = $3 ~ /^\// ? $3 : root $3; next }
		{ sub(/ *#.*/, "") }
		!NF { next }
		{ program = path[$2 " " $3]; time = $1; name = $2 "/" $3; $1 = $2 = $3 = ""
		  backend = ""; if ($4 ~ /^@/) { backend = $4; $4 = "" }
		  since = "-"; if ($4 ~ /^>=/) { since = substr($4, 3); $4 = "" }
		  print time, name backend, program, since, $0 }' "$into/programs" "$here/suite" >"$into/list"
	echo "== $release: $(ls "$into/$release/modules")"
	"$here/boot.sh" "$into/$release" "$seconds" "$here/suite.sh" "$into/list" | tee "$into/$release.out" || true
	# The pipe has hidden how it ended.
	grep -q '^SUITE [0-9]* 0 ' "$into/$release.out" || status=1
done
exit $status

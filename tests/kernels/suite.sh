#!/bin/sh
# In the guest: runs each line of a list, "SECONDS NAME PROGRAM SINCE
# ARGUMENT...", and prints a line for each with the seconds that it took, the end
# of the output of what fails, and at last "SUITE passed failed skipped". Ends
# with 1 when something failed. On a kernel before SINCE a line is left out, and
# what is skipped on one from SINCE on has failed ("-": run on any, and it may be).
#
#   suite.sh LIST
set -u

list=$1
passed=0 failed=0 skipped=0
said=/run/said
# As cargo does: some read files of the tree.
cd "$(dirname "$0")/../.." || exit 1
uname -r

# From this release of the kernel on?
is_since() {
	printf '%s\n' "$1" "$(uname -r)" | sort -V -C
}

while read -r seconds name program since arguments; do
	case $seconds in '' | '#'*) continue ;; esac
	test "$since" = - || is_since "$since" || continue
	backend=${name#*@}
	test "$backend" != "$name" || backend=
	begin=$(date +%s)
	# shellcheck disable=SC2086 # a list of words
	timeout -k 5 "$seconds" env WEIR_TEST_EMULATED=1 ${backend:+"WEIR_BACKEND=$backend"} "$program" $arguments \
		--nocapture --test-threads=1 </dev/null >$said 2>&1
	status=$?
	row="$(printf '%4d s  ' $(($(date +%s) - begin)))$name${arguments:+ $arguments}"
	why=$(sed -n 's/^skipped: //p' $said | sort -u | head -n 3 | paste -s -d ';')
	if [ $status != 0 ]; then
		failed=$((failed + 1))
		test $status != 124 || echo "(its $seconds seconds are over)" >>$said
		echo "FAILED  $row"
		grep -v '^[0-9]*: ([0-9a-f][0-9a-f]) ' $said | tail -n 60 | cut -c 1-400 | sed 's/^/    /'
	elif [ -n "$why" ] && [ "$since" != - ]; then
		failed=$((failed + 1))
		echo "FAILED  $row (this kernel can, and it was skipped: $why)"
	elif [ -n "$why" ]; then
		skipped=$((skipped + 1))
		echo "skipped $row ($why)"
	else
		passed=$((passed + 1))
		echo "ok      $row"
	fi
done <"$list"
echo "SUITE $passed $failed $skipped"
test $failed = 0

#!/bin/sh
# In the guest: runs each line of a list, "SECONDS NAME PROGRAM SINCE
# ARGUMENT...", and
# prints a line for each of its tests, the end of the output of what fails, and
# at last "SUITE passed failed skipped". Ends with 1 when something failed; what is
# skipped on a kernel from SINCE on has failed ("-": it may be).
#
#   suite.sh LIST
set -u

list=$1
passed=0 failed=0 skipped=0
said=/run/said
uname -r

# From this release of the kernel on?
is_since() {
	test "$1" != - && printf '%s\n' "$1" "$(uname -r)" | sort -V -C
}

while read -r seconds name program since arguments; do
	case $seconds in '' | '#'*) continue ;; esac
	backend=${name#*@}
	test "$backend" != "$name" || backend=
	# shellcheck disable=SC2086 # a list of words
	timeout -k 5 "$seconds" env ${backend:+"WEIR_BACKEND=$backend"} "$program" $arguments \
		--nocapture --test-threads=1 </dev/null >$said 2>&1
	status=$?
	why=$(sed -n 's/^skipped: //p' $said | sort -u | head -n 3 | paste -s -d ';')
	if [ $status != 0 ]; then
		failed=$((failed + 1))
		test $status != 124 || echo "(its $seconds seconds are over)" >>$said
		echo "FAILED  $name"
		grep -v '^[0-9]*: ([0-9a-f][0-9a-f]) ' $said | tail -n 60 | cut -c 1-400 | sed 's/^/    /'
	elif [ -n "$why" ] && is_since "$since"; then
		failed=$((failed + 1))
		echo "FAILED  $name (this kernel can, and it was skipped: $why)"
	elif [ -n "$why" ]; then
		skipped=$((skipped + 1))
		echo "skipped $name ($why)"
	else
		passed=$((passed + 1))
		echo "ok      $name"
	fi
done <"$list"
echo "SUITE $passed $failed $skipped"
test $failed = 0

#!/bin/sh
# Run one step of make, and print one line with its name and its time:
#     sh tools/step.sh [-v] NAME COMMAND [ARGUMENT ...]
# The output of the command appears if it fails; with -v, as it comes.
shown=
if [ "$1" = -v ]; then
	shown=yes
	shift
fi
name=$1
shift
start=$(date +%s)
if [ "$shown" ]; then
	printf '%s ...\n' "$name"
	"$@"
	status=$?
else
	printf '%s ... ' "$name"
	log=$(mktemp) || exit 1
	trap 'rm -f "$log"' EXIT
	trap 'exit 130' INT TERM
	"$@" > "$log" 2>&1
	status=$?
fi
time="$(($(date +%s) - start)) s"
[ $status = 0 ] || time="failed after $time"
if [ "$shown" ]; then
	printf '%s: %s\n' "$name" "$time"
else
	printf '%s\n' "$time"
	[ $status = 0 ] || cat "$log" >&2
fi
exit $status

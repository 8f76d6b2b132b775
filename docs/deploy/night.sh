#!/bin/sh
# A night in a container: Kubernetes takes every exit code but 0 for a failure, so kept (10) becomes 0.
# The shell is process 1, which hands SIGTERM on; the night then writes its line and ends with 143.
set -u
night=
stopped=
trap 'stopped=yes; [ -z "$night" ] || kill -TERM "$night" 2>/dev/null' TERM INT # before the night, which it may meet at once
gigabatch nightly "$@" &
night=$!
[ -z "$stopped" ] || kill -TERM "$night" 2>/dev/null
wait "$night"
code=$?
while kill -0 "$night" 2>/dev/null; do # the signal ended the wait, not the night
    wait "$night"
    code=$?
done
[ "$code" -eq 10 ] && exit 0
exit "$code"

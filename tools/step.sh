#!/bin/sh
# Runs one step of the set-up: says what it does, and then how long it took. Its output is shown if it fails.
#   tools/step.sh "WHAT" COMMAND...
set -u
what=$1
shift
printf 'installing %s ... ' "$what"
began=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if "$@" >"$log" 2>&1; then
    echo "$(($(date +%s) - began)) s"
else
    status=$?
    echo "failed"
    cat "$log"
    if grep -qiE 'name resolution|network is unreachable|connection refused|could not transfer|no matching distribution|ENOTFOUND|Temporary failure' "$log"; then
        echo "The package registry did not answer: a network is needed for the set-up. Nothing is half installed; run it again." >&2
    fi
    exit "$status"
fi

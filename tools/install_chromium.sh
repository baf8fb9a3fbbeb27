#!/bin/sh
# Finds a Chromium (or Chrome) for the tests that look at pages, installs Debian's where there is none,
# and writes its path to .tools/chromium/path. Idempotent: a browser that is there already is taken.
# CHROMIUM=/path/to/browser names one.
set -eu

ROOT="$(cd "$(dirname "$0")/.." && pwd)"
TARGET="$ROOT/.tools/chromium"

find_browser() {
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

install_browser() {
    if ! command -v apt-get >/dev/null 2>&1; then
        return 1
    fi
    SUDO=""
    if [ "$(id -u)" != 0 ]; then
        SUDO="sudo -n"
        $SUDO true 2>/dev/null || return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    $SUDO apt-get update -qq
    $SUDO apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
}

if ! BROWSER="$(find_browser)"; then
    install_browser >&2 || true
    if ! BROWSER="$(find_browser)"; then
        echo "no Chromium was found and none could be installed: install one (Debian: apt-get install chromium)," >&2
        echo "or name one: CHROMIUM=/path/to/chromium make setup" >&2
        exit 1
    fi
fi

mkdir -p "$TARGET"
printf '%s\n' "$BROWSER" >"$TARGET/path"
echo "browser: $BROWSER"

#!/usr/bin/env bash
# Prints the newest Python of at least 3.11. With --check-java also makes sure of a JDK of at least 17.
set -euo pipefail

find_python() {
  local name
  for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  echo "Python 3.11 or newer (with venv) is needed: install it, for example 'apt-get install python3.11 python3.11-venv'," >&2
  echo "or name one: make PYTHON=/path/to/python3.12 ..." >&2
  return 1
}

check_java() {
  local javac=${JAVA_HOME:+$JAVA_HOME/bin/}javac version
  version=$("$javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p' || true)
  if [ -z "$version" ] || [ "$version" -lt 17 ]; then
    echo "A JDK of at least 17 is needed (found: ${version:-none}): install it, for example" >&2
    echo "'apt-get install openjdk-17-jdk-headless', or set JAVA_HOME to one." >&2
    return 1
  fi
}

if [ "${1:-}" = --check-java ]; then
  find_python >/dev/null
  check_java
else
  find_python
fi

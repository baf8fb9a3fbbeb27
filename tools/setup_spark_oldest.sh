#!/bin/sh
# The oldest Spark that is supported, in an environment of its own: .tools/spark-4.1. Made once.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=4.1.3
home="$root/.tools/spark-4.1"

if [ -f "$home/.installed-$version" ]; then
    exit 0
fi
"$root/.venv/bin/python" -m venv "$home"
"$home/bin/python" -m pip install --quiet "pyspark==$version" "pyarrow>=17" "pandas>=2.2,<3"
"$home/bin/python" -m pip install --quiet --editable "$root"
"$home/bin/python" "$root/tools/precompile_pyspark.py"
touch "$home/.installed-$version"

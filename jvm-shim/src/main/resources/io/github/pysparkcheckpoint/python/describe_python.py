"""Describe this Python to the JVM that started it: its version, and which of the libraries in argv it has.

PythonEnvironment.java runs it with ``python -c`` and reads lines of ``name=value``. The Python may be any
that Spark was told to use, also one that is too old or lacks the package: nothing but the standard library
is imported before it was found.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

PACKAGE = "pyspark_checkpoint"
NATIVE = {"orjson": "orjson", "cryptography": "cryptography.hazmat.bindings._rust"}
"""Libraries that may be installed for another Python or another kind of machine, and what fails then."""
MAX_REASON = 200


def is_missing(name: str) -> bool:
    """Whether a module cannot be found; it is not imported."""
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True


print(f"python={sys.version_info[0]}.{sys.version_info[1]}")
missing = [name for name in sys.argv[1:] if is_missing(name)]
print("missing=" + " ".join(missing))
for library in sys.argv[1:]:
    if library in NATIVE and library not in missing:
        try:
            import_module(NATIVE[library])
        except BaseException as error:  # noqa: BLE001 - a native library may raise anything, also at exit
            print("broken=" + library)
            reason = " ".join(str(error).split()).encode("ascii", "replace").decode()
            print("why=" + reason[:MAX_REASON])
if not is_missing(PACKAGE):
    print("package=" + getattr(import_module(PACKAGE), "__version__", "unknown"))

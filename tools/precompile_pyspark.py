"""Put compiled modules into the zip from which Spark's Python workers import pyspark.

Spark ships that zip with sources only, and Python keeps no cache for a zip, so every worker process
compiles pyspark anew: a second of CPU at each start, where reading compiled modules takes a third of one.
The zip is replaced by a whole new one; running it again changes nothing.
"""

from __future__ import annotations

import importlib.util
import marshal
import struct
import tempfile
import time
import warnings
import zipfile
from pathlib import Path


def main() -> None:
    """Precompile the zip of the pyspark that this Python has."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("pyspark is not installed in this environment")
    source = Path(spec.origin).parent / "python" / "lib" / "pyspark.zip"
    with zipfile.ZipFile(source) as archive:
        if any(name.endswith(".pyc") for name in archive.namelist()):
            return
        with (
            tempfile.NamedTemporaryFile(dir=source.parent, delete=False) as target,
            zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as compiled,
        ):
            for member in archive.infolist():
                _copy(archive, member, compiled)
    Path(target.name).chmod(0o644)
    Path(target.name).replace(source)


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, compiled: zipfile.ZipFile) -> None:
    data = archive.read(member)
    compiled.writestr(member, data)
    if member.filename.endswith(".py") and "/tests/" not in member.filename:
        with warnings.catch_warnings(action="ignore"):
            code = compile(data, member.filename, "exec", dont_inherit=True)
        modified = int(time.mktime((*member.date_time, 0, 0, -1)))
        header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, modified, len(data))
        name = zipfile.ZipInfo(f"{member.filename}c", member.date_time)
        compiled.writestr(name, header + marshal.dumps(code))


if __name__ == "__main__":
    main()

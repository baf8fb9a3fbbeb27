"""``python -m pyspark_checkpoint`` is the command ``ckpt``."""

from __future__ import annotations

import sys

from pyspark_checkpoint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

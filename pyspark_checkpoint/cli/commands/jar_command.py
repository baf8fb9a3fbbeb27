"""``ckpt jar``: where the jar is."""

from __future__ import annotations

import argparse

from pyspark_checkpoint import __version__
from pyspark_checkpoint.cli.arguments import switch
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.jar import build_jar, find_jar

ABOUT = """Print the path of the jar that belongs to this version: the data source with update mode,
the driver plugin and the checkpoint file manager. The wheel carries it; an installed checkout builds
it with --build, in seconds, against the Spark that is installed."""
EXAMPLES = """
spark-submit --jars "$(ckpt jar)" job.py
ckpt jar --build                                   after pip install of a checkout; needs a JDK
"""
ARGUMENTS = (switch("--build", "compile it first; needs a JDK, 17 or newer"),)


def run(args: argparse.Namespace, console: Console) -> None:
    """Print it."""
    path = str(build_jar(__version__) if args.build else find_jar(__version__))
    console.result({"path": path}, path)

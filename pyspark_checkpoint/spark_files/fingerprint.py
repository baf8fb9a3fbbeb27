"""A number that is the same for the same query, and another when the query changed. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import orjson

_PATHLIKE = re.compile(r"\[[^\]]*\]|\([^)]*\)|[a-z0-9]+:/+\S+|/\S+|@[0-9a-f]+\b")


def pipeline_hash(
    operators: Iterable[str],
    state_schemas: Mapping[str, str],
    sources: Iterable[str],
    sink: str,
    output_mode: str,
) -> int:
    """Return 63 bits over what makes a query itself.

    Operator names, state schemas (by file name below the operator, as digests), the names of the sources
    in their order, the kind of the sink, and the output mode count; partition counts, paths, ids and
    versions do not, so that moving, rescaling or upgrading a query leaves its hash alone.
    """
    parts = {
        "operators": sorted(operators),
        "schemas": dict(sorted(state_schemas.items())),
        "sources": [without_paths(source) for source in sources],
        "sink": without_paths(sink),
        "mode": output_mode.lower(),
    }
    digest = hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def without_paths(description: str) -> str:
    """A source's or sink's description without what stands for a place, on disk or in memory."""
    return _PATHLIKE.sub("", description).strip()

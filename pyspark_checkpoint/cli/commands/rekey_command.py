"""``ckpt rekey``: another master key, without writing the data again."""

from __future__ import annotations

import argparse

from pyspark_checkpoint.cli import text
from pyspark_checkpoint.cli.arguments import DRY_RUN, HISTORY, address_of
from pyspark_checkpoint.cli.console import Console
from pyspark_checkpoint.crypto.keyring import KEY_FILE_OPTION, find_key_ring
from pyspark_checkpoint.errors import SettingsError, Unsupported
from pyspark_checkpoint.history.control import read_control
from pyspark_checkpoint.history.rekey import rekey
from pyspark_checkpoint.history.store_cipher import is_encrypted
from pyspark_checkpoint.registry.queries import plain_options, resolve_root
from pyspark_checkpoint.store.open import open_object_store

ABOUT = """Wrap every data key of an encrypted history with the active key of the ring. No
artifact and no manifest is written again. The ring must still hold the old keys; take them out when
no run uses them any more. An interrupted rekey is finished by repeating it."""
EXAMPLES = """
ckpt rekey s3://bucket/tables/wc --key-file new-ring.json --dry-run
ckpt rekey s3://bucket/tables/wc --key-file new-ring.json
"""
ARGUMENTS = (*HISTORY, DRY_RUN)


def run(args: argparse.Namespace, console: Console) -> None:
    """Rewrap the keys, or say which would be."""
    address = address_of(args)
    ring = find_key_ring(address.options.get(KEY_FILE_OPTION))
    if ring is None:
        raise SettingsError("no key ring was given", hint="give --key-file, or set CKPT_KEY_FILE")
    store = open_object_store(
        resolve_root(address.url, address.query, address.options), plain_options(address.options)
    )
    store_id = read_control(store).control.store_id
    if not is_encrypted(store):
        raise Unsupported(f"{store.url} is not encrypted", hint="there is no key to wrap")
    plan = rekey(store, store_id, ring, dry_run=args.dry_run)
    record = {
        "active_key": plan.active_id,
        "rewrapped": list(plan.rewrap),
        "current": list(plan.current),
        "dry_run": args.dry_run,
    }
    verb = "would wrap" if args.dry_run else "wrapped"
    count = text.plural(len(plan.rewrap), "data key")
    console.result(record, f"{verb} {count} with {plan.active_id}; {len(plan.current)} had it already")

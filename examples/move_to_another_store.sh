#!/usr/bin/env bash
# A query moves from one store to another with its history: copy while it runs, stop it, and then this.
#
#   examples/move_to_another_store.sh FROM TO LOCATION
#
# For example s3://old/tables/wc gs://new/tables/wc /local/disk/wc. Needs no Spark. Start the query with the
# new table and location afterwards; a driver that was left running at the old place keeps to the old place.
set -euo pipefail
from=$1 to=$2 location=$3

ckpt copy "$from" "$to"                       # what is new since the last copy; verified on the way
ckpt verify "$to"                             # every record and every byte
ckpt restore "$to" --to "$location"           # the newest checkpoint of the copy
ckpt preflight "$location"                    # will a query start from it
ckpt list "$to" --last 3

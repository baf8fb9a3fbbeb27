"""Names of the first designs that no Spark path needs; ``docs/seed-map.md`` lists them.

``seeds`` has every type under its first name. ``state_backend`` chooses a store by one value that can be
read from a mapping; ``artifact_checkpointer`` saves and loads artifacts and manifests one by one. All of
them stand on ``history`` and add no rule of their own: new code uses ``CheckpointStore``.
"""

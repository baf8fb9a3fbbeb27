"""What the stored bytes mean: names, manifests, records, packs. Pure: no store, no clock, no Spark.

1. ``keys`` builds and parses every stored name.
2. ``envelope`` seals JSON: compact, sorted, with its own digest at the end, and a MAC where the store is
   encrypted. The digest is checked over the bytes before anything is parsed.
3. ``fields`` checks a stored value: type, range, length. What a store says may be anybody's.
4. ``manifest`` is a checkpoint as a value, ``manifest_parts`` its table, state, sinks and planned batch,
   typed to the last field; ``manifest_codec`` is their bytes, ``summary`` the few that listings need.
5. ``artifact`` says where bytes are and what proves them, ``pack`` joins many into one object, ``settled``
   lists those that nothing rewrites any more, ``ranges`` reads several with few requests.
6. ``records`` are the small objects beside manifests: control, pointer, seal, sink status.

``docs/format.md`` is the reference; ``tests/golden`` holds the bytes. A changed byte is a new version.
"""

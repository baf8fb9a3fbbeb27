"""The core that sink and listener share: the files of a batch, their upload, the manifest.

1. The files of a batch come from ``spark_files.inventory``; ``upload_plan`` leaves out what the store has.
2. ``upload`` puts the rest into the store (``large_files``, ``server_copy`` for what is large), and
   ``staged_files`` remembers it for a capture that begins anew.
3. ``manifest_builder`` makes the one manifest of a batch from frozen parts; ``sink_description`` says in it
   where the rows go.
4. ``commit_log`` finds and keeps ``commits/N``, which is written after a sink has committed.
5. ``location_status`` tells whether a location may go on with its history.
"""

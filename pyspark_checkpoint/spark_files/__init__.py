"""What is in a checkpoint location of Spark: names, logs, state versions. No Spark is needed.

1. ``names`` builds and parses every file name, ``location`` opens a location on disk, a cloud or Hadoop,
   ``listing`` sorts what is there.
2. ``logs`` decodes Spark's small files, ``log_reader`` reads them once, ``requirements`` their settings;
   ``positions`` says where sources stand, by name, and is the one comparison of two positions.
3. ``versions`` finds the chain of files that gives a state store one version.
4. ``inventory`` says which files belong to a batch: state by chains, small files, and ``source_logs`` cut
   exactly. ``state_record`` and ``restore_points`` do so for a batch that Spark may run again.
5. ``divergence`` compares a location with a checkpoint, ``consistency`` the parts of one manifest,
   ``fingerprint`` two versions of a query.
"""

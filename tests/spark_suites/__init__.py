"""Spark's published streaming suites, run under our file manager and with our plugin.

1. ``jars`` fetches Spark's test jars, unpacks their resources and compiles three small classes of ours:
   Spark's contract for file managers on a directory and on S3A, and a reporter of what happens.
2. ``suites`` lists what runs, and in which of two settings: the file manager alone, or the plugin.
3. ``runner`` runs the suites of one setting in one JVM, one after the other, as Spark's own build does. A
   JVM that dies or stalls costs the suite that was running; the others go on in a new one.
4. ``checks`` looks at what the plugin has stored: ``ckpt verify`` must hold for every query.
5. ``results`` compares with ``excepted``, the tests that cannot pass here, each with its reason.

The command is ``python -m tests.spark_suites``.
"""

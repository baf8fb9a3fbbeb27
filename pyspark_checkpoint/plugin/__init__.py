"""The Python side of the driver plugin: everything by configuration, without a line of code.

The plugin (in the jar) starts two programs with the driver's Python, and writes Spark's confs to their
standard input as one line of JSON (``process_input``; ``plugin_settings`` is the table of all settings).
``auto_restore`` runs before the application's code, without Spark: of the queries that ran under this
application's name, it restores the locations that are gone. ``process`` lives beside the driver: it takes
the events of all queries from the plugin's door and runs a ``CheckpointListener`` for each, and it ends
when the pipe ends, which only the driver holds. ``configure`` adds the jar, the plugin and its settings to
a session's builder.
"""

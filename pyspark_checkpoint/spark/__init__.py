"""The adapter to PySpark: everything private of PySpark and py4j, and jobs on executors.

``jvm`` is the one module that imports py4j: what Python's streaming API does not say of a query, Hadoop's
file systems, the driver's end of the plugin. ``hadoop_store`` shows one as an object store.
``jobs`` uploads large state from the executors. ``local_session`` is a session for a command.
``worker_tuning`` makes cheap what a Python worker does around every task; ``worker_daemon`` does so for all
workers of an application.
"""

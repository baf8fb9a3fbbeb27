"""What sink and listener share: the files of a batch, their upload, the manifest, the commit log.

``upload_plan`` decides which files must be read: what an earlier checkpoint has is referenced. ``upload``
reads them, checks that they are those that were planned, and stages them in packs, in pieces or by a copy
on the server. ``manifest_builder`` puts the manifest together from Spark's logs and what is known of the
query. ``commit_log`` finds Spark's ``commits/N`` of a checkpoint, and keeps it by a seal: the sink commits
before Spark does, so that a checkpoint of rows and state is made without it. ``location_status`` says
whether a location fits its history. Nothing here imports pyspark; tasks and driver use the same code.
"""

"""``format("ckpt-sink")``: a table whose rows, operator state and source offsets are one atomic create.

A batch of a streaming query:

1. Plan, on the driver (``datasource``, ``batch_commit.plan_batch``): read the head, check that the query
   fits the table (``batch_plan``), claim the table for a new run, decide whether Spark's own state is
   committed too (``state_driver``). Whatever cannot work is refused here, before any row is read.
2. Write, in each task (``writers``, ``task``): encode the rows, compact the partition's chain of artifacts
   when it is due (``chain``), collect the state files of the task's share (``state_task``); one PUT.
3. Commit, on the driver (``batch_commit.commit_batch``): join the tasks' messages (``batch_manifest``),
   collect what no task could see and check the location (``state_commit``, ``location_check``), create one
   manifest. Before that create nothing is in the table, after it everything is.

Readers (``table_reader``, ``change_reader``) see whole epochs only. Between batches a process remembers
what is in ``worker_cache``, and can lose it at any time: the store has the truth.
"""

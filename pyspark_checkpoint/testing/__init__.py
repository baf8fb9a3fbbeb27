"""Fakes for tests of what is built on this package; none of them needs Spark, a server or a clock.

``faulty_store.FaultyStore`` holds a store and fails on purpose, at exactly the call that a test names: a
process that dies before or after a write, an answer that is lost, a store that is busy. To see that a
program survives a crash at every step, run it once, count ``calls``, and run it once more for each.
``manual_clock.ManualClock`` moves only when somebody sleeps, and makes the same ids in every run.
``made_location.MadeLocation`` writes the checkpoint location of a stateful query that never ran, batch by
batch, as Spark lays it out: to capture it, restore it, damage it.
"""

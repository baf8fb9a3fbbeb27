"""Where a query's rows go: one file for each output that can be asked how far it is, and rolled back.

A restored query runs batches again that its output may have. So a restore asks the output first: at the
checkpoint's batch it goes on; behind it, or diverged, it is refused; further, it is refused too, or rolled
back where that was asked for. The order is always: write the location, take the history over, which fences
whoever still writes, ask once more, roll the output back, and only then remove the location's mark.
"""

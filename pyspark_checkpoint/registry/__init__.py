"""The queries below one URL.

Every query has a history of its own at ``{url}/{query id}``. ``names/`` points from a query's name to the
newest query of that name, ``apps/`` lists what each application has run. ``queries`` writes and resolves
these records, and checks which places that they name may be opened with the user's credentials.
``copy_queries`` copies one history, or all of them, so that the copy is used as the original is.
"""

"""Real drivers in processes of their own, that a test can talk to, kill and compare.

``app`` is the driver's program, ``queries`` what it can run, ``driver`` the test's end of the wire,
``crash`` kills drivers until their queries are done, ``outcome`` reads what a query left behind.
"""

"""One module a command: ``ABOUT``, ``EXAMPLES``, ``ARGUMENTS`` and ``run``."""

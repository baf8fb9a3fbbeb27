"""One module a command: ``ABOUT``, ``EXAMPLES``, ``add_arguments`` and ``run``."""

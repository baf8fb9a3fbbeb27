"""The command ``ckpt``: one file a command, a thin layer over what the package does anyway.

1. ``main`` imports the module of the command that was typed, and no other, and lets it say what it takes.
2. ``arguments`` reads URL, options and key file into an ``Address``; secrets in it are never printed.
3. ``histories`` opens the history that is meant, or that of each query below the URL, one after the other.
4. The command in ``commands/`` plans, with ``--dry-run`` says what it would do, or else does it.
5. ``console`` prints: results on standard output for people or, with ``--json``, for programs; errors with
   their code and hint on standard error. No control character of a foreign text reaches a terminal.
6. ``exits`` says by the status what happened. ``text`` and ``report_page`` are pure.
"""

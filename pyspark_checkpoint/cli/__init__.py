"""The command ``ckpt``: one file a command, a thin layer over what the package does anyway."""

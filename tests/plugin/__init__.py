"""The driver plugin, by configuration alone: real submits with ``--packages``, kills and clusters."""

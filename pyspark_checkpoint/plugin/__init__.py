"""The driver plugin: its settings, its Python processes, automatic restore."""

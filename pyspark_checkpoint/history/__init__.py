"""One linear history of verified checkpoints in an object store: where store and format meet."""

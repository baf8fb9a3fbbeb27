"""The core that sink and listener share: the files of a batch, their upload, the manifest."""

"""Fakes that users need in their own tests too."""

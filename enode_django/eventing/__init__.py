"""Stored event streams on their way to whoever follows them."""

"""Meters, in two editions: ``first``, and ``third``, whose event was changed twice and renamed, as was the aggregate.

The commands and the read model are the same for both.
"""

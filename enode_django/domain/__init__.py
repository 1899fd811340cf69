"""Aggregates, commands, domain events and refusals: what application code is written with. Knows no Django, no I/O."""

"""Aggregates, commands, domain events and refusals: the base of application code. It uses no Django and does no I/O."""

"""Django's signals for what happens in workers. Receivers are called in the worker, and in ``inline()``.

A receiver's error is logged by Django and harms nothing. A receiver that takes long holds up the thread that calls it.
A worker that dies may leave a signal out, and one that repeats a command sends its signal again: what must happen for
an event is a subscriber's.
"""

from __future__ import annotations

from django.dispatch import Signal

__all__ = ["aggregate_parked", "command_finished"]

command_finished = Signal()
"""Sent when the outcome of a command is durable, by the class of the command, with ``command``, ``result`` (a
`CommandResult`) and ``metadata``."""

aggregate_parked = Signal()
"""Sent when a subscriber has parked an aggregate, by the class of the subscriber, with ``subscriber`` (its name),
``aggregate_root_id`` and ``error`` (what its handler has raised)."""

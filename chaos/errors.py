from __future__ import annotations


class ChaosError(Exception):
    """The run itself could not do what it wanted; the message says what it waited for or missed."""

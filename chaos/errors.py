from __future__ import annotations


class ChaosError(Exception):
    """The run itself failed. The message says what it waited for or missed."""

"""Types of the arguments of management commands."""

from __future__ import annotations

from argparse import ArgumentTypeError


def from_0(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def above_0(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)

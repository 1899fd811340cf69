"""Find the class and the message of an error in its stored text, which has the traceback."""

from __future__ import annotations

import re

_TRACED = re.compile(r"Traceback\b|  File ")
_GROUP = "+ Exception Group Traceback"
_MODULE = re.compile(r"[\w.<>]+\.(?=\w+(?:: |:?$))")


def message_of(error: str) -> str:
    """Return the class and the whole message of the last exception of a traceback; without a traceback the text.

    >>> message_of('Traceback (most recent call last):\\n  File "a.py"\\n    f()\\na.DataError: too big\\nDETAIL:  9')
    'a.DataError: too big\\nDETAIL:  9'
    >>> message_of("no amount")
    'no amount'
    """
    lines = error.strip().splitlines()
    if lines and lines[0].startswith(_GROUP):
        lines = ["Traceback", *(line[4:] for line in lines[1:])]
    traced = [number for number, line in enumerate(lines) if _TRACED.match(line)]
    after = lines[traced[-1] + 1 :] if traced else lines
    while traced and after and after[0].startswith(" "):
        after = after[1:]
    return "\n".join(after) or error.strip()


def in_one_line(error: str) -> str:
    """Return the class of an error, without its module, and the first line of its message.

    >>> in_one_line('Traceback (most recent call last):\\n  File "a.py", line 1\\na.DataError: too big\\nDETAIL:  9')
    'DataError: too big'
    """
    first, *_ = [*message_of(error).splitlines(), ""]
    return first[found.end() :] if (found := _MODULE.match(first)) else first

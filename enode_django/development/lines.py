"""Format the log of `enodedev`: steps in columns, and the output of parts with their names."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence

from django.utils.termcolors import colorize

from enode_django.development.steps import Step
from enode_django.exceptions import printable

FLOW_COLOURS = ("cyan", "magenta", "blue", "yellow", "green")
FAILED = ("failed", "parked", "5")
"""The beginnings of outcomes that a developer should look at."""
REFUSED = ("refused", "waits", "repeated", "4")

Paint = Callable[..., str]


def plainly(text: str, **_: object) -> str:
    return text


class Lines:
    """Formats lines, with colours for a terminal if ``coloured``."""

    def __init__(self, *, coloured: bool) -> None:
        self._paint: Paint = colorize if coloured else plainly

    def of_part(self, name: str, text: str, now: float) -> str:
        return f"{clock(now)}  {self._paint(f'{name:<10}', opts=('bold',))}  {text}"

    def of_group(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield the lines of one request, and an empty line. The colour of the flow id sets groups apart."""
        for step in steps:
            yield self._of_step(step)
        yield ""

    def _of_step(self, step: Step) -> str:
        flow = self._paint(f"{short(step.flow_id):<8}", fg=_colour_of(step.flow_id))
        took = "" if step.seconds is None else f"{step.seconds * 1000:.1f} ms"
        return f"{clock(step.time)}  {step.part:<10}  {flow}  {about(step)} {took:>10}  {self._outcome(step.outcome)}"

    def _outcome(self, outcome: str) -> str:
        text = printable(outcome)
        if outcome.startswith(FAILED):
            return self._paint(text, fg="red", opts=("bold",))
        return self._paint(text, fg="yellow" if outcome.startswith(REFUSED) else "green")


def clock(seconds: float) -> str:
    """Return a time since 1970 as local time with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{int(seconds % 1 * 1000):03}"


def short(id: str) -> str:
    """Return the last characters of an id: generated ids begin with the time.

    >>> short("0198b2a4f0c77cde8000a1b2c3d4e5f6"), short("order-1")
    ('c3d4e5f6', 'order-1')
    """
    return printable(id)[-8:]


def about(step: Step) -> str:
    """Return the subject, aggregate and version of a step. A request has no aggregate, so its path gets more room."""
    if not step.aggregate_root_id:
        return fitted(step.subject, 62)
    version = "" if step.version is None else f"v{step.version}"
    return f"{fitted(step.subject, 34)} {fitted(aggregate(step.aggregate_root_id), 20)} {version:<6}"


def aggregate(id: str) -> str:
    """
    >>> aggregate("ada"), aggregate("0198b2a4f0c77cde8000a1b2c3d4e5f6")
    ('ada', '…8000a1b2c3d4e5f6')
    """
    text = printable(id)
    return text if len(text) <= 20 else f"…{text[-16:]}"


def fitted(text: str, width: int) -> str:
    """
    >>> fitted("ada", 5), fitted("balances", 5)
    ('ada  ', 'bala…')
    """
    text = printable(text)
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}…"


def _colour_of(flow_id: str) -> str:
    return FLOW_COLOURS[zlib.crc32(flow_id.encode(errors="replace")) % len(FLOW_COLOURS)]

"""The aggregates that failed in a shadow: they are parked in it, and with it if it is put in use."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.databases import execute
from enode_django.eventing.checkpoints import PARKED
from enode_django.jobs.error_texts import in_one_line
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.shadow import Shadow

MOST_TOLD = 100
"""The most aggregates whose whole errors are read."""
_LONGEST = 200
_FAILED = f"""
    SELECT aggregate_root_id, version, error_type,
           CASE WHEN row_number() OVER (ORDER BY id) <= {MOST_TOLD} THEN error ELSE '' END
    FROM {{}}.{PARKED} WHERE subscriber = %s AND attempts > 0 ORDER BY id
"""


class FailedAggregate(NamedTuple):
    """An aggregate, where it failed, and the first line of the error. The last two are empty if they are not known."""

    aggregate_root_id: str
    place: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        """The aggregate and what is known of its failure, in one line.

        >>> FailedAggregate("4711", "version 3", "ValueError: no amount").text
        '4711 failed at version 3: ValueError: no amount'
        >>> FailedAggregate("4711").text
        '4711 failed'
        """
        why = f" at {self.place}: {self.error}" if self.place else ""
        return f"{self.aggregate_root_id} failed{why}"


def failed_in(shadow: Shadow) -> list[FailedAggregate]:
    """Return the aggregates that are parked in the shadow, the first one first. Blocks."""
    found = execute(shadow.alias, _FAILED.format(quoted(shadow.schema)), (shadow.subscriber,)).fetchall()
    return [
        FailedAggregate(id, f"version {version}", (in_one_line(error) or error_type)[:_LONGEST])
        for id, version, error_type, error in found
    ]

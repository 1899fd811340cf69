"""Ask all servers at the same time, so that a server that does not answer hides no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS

from enode_django.conf import conf
from enode_django.monitoring.databases import ask_database, ask_shard, project_databases
from enode_django.monitoring.flights import ask_all
from enode_django.monitoring.lags import ask_lags
from enode_django.monitoring.parts import Finding, Part, Status, bad
from enode_django.monitoring.processors import ask_mailboxes, ask_processors
from enode_django.monitoring.queue import ask_backlog, ask_queue
from enode_django.monitoring.work import ask_jobs, ask_letters, ask_outbox, ask_parked, ask_queue_letters
from enode_django.runtime import outbox_databases

PARTS = (
    "database",
    "shards",
    "queue",
    "processors",
    "mailboxes",
    "backlog",
    "lag",
    "outbox",
    "letters",
    "parked",
    "jobs",
)
"""The names of the parts of a status, in their order."""
TIMEOUT = 5.0


class _Question(NamedTuple):
    """A question for the status; its answer goes into ``part``. Questions in one ``lane`` are asked one after the
    other."""

    part: str
    lane: str
    ask: Callable[[], Finding]


def gather(only: Collection[str] = PARTS, *, timeout: float = TIMEOUT) -> Status:
    """Return the state of these parts, in the order of `PARTS`. Blocks up to ``timeout`` seconds. Raises ValueError for
    an unknown name. An error while asking becomes a problem of its part.

    For example::

        status = gather(["database"], timeout=2.0)
        for part in status.parts:
            print(part.name, part.health.word, [problem.reason for problem in part.problems])
    """
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        raise ValueError(f"the status has no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    questions = [question for question in _questions() if question.part in only]
    lanes: dict[str, list[tuple[str, Callable[[], Finding]]]] = {}
    for part, lane, ask in questions:
        lanes.setdefault(lane, []).append((part, ask))
    answers = ask_all(lanes, timeout)
    return Status(parts=[_part(name, questions, answers, timeout) for name in PARTS if name in only])


def _questions() -> list[_Question]:
    shards = conf().EVENT_STORE.tables_in
    return [
        *(_Question("database", f"database {alias}", partial(ask_database, alias)) for alias in _databases()),
        *(_Question("shards", f"shard {alias}", partial(ask_shard, alias)) for alias in shards),
        *(_Question("letters", f"shard {alias}", partial(ask_letters, alias)) for alias in shards),
        *(_Question("outbox", f"database {alias}", partial(ask_outbox, alias)) for alias in outbox_databases()),
        _Question("queue", "queue", ask_queue),
        _Question("backlog", "queue", ask_backlog),
        _Question("letters", "queue", ask_queue_letters),
        _Question("lag", "lag", ask_lags),
        *(
            _Question(part, f"database {DEFAULT_DB_ALIAS}", ask)
            for part, ask in (
                ("processors", ask_processors),
                ("mailboxes", ask_mailboxes),
                ("parked", ask_parked),
                ("jobs", ask_jobs),
            )
        ),
    ]


def _databases() -> list[str]:
    return sorted({*project_databases(), *conf().EVENT_STORE.DATABASES})


def _part(
    name: str,
    questions: Sequence[_Question],
    answers: Mapping[str, Mapping[str, tuple[Finding, float]]],
    timeout: float,
) -> Part:
    found = [
        answers[question.lane].get(name) or _no_answer(question.lane, timeout)
        for question in questions
        if question.part == name
    ]
    return Part(
        name=name,
        rows=[row for finding, _ in found for row in finding.rows],
        problems=[problem for finding, _ in found for problem in finding.problems],
        seconds=max((seconds for _, seconds in found), default=0.0),
    )


def _no_answer(lane: str, timeout: float) -> tuple[Finding, float]:
    return Finding((), (bad(f"{lane} gave no answer within {timeout:g} s"),)), timeout

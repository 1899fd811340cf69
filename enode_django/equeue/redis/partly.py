"""Answers and errors of calls to several queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from enode_django.exceptions import EnodeError, PartlyUnavailable, QueueFull, TransportUnavailable


class ByQueue(NamedTuple):
    """The answers by queue (a list, since a queue may need several calls), and the errors of the other queues."""

    answers: dict[int, list[Any]]
    failures: dict[int, EnodeError]

    @classmethod
    def sorted_out(cls, queues: Iterable[int], results: Iterable[Any]) -> ByQueue:
        """Sort ``results``, one for each of ``queues``, into answers and exceptions. One exception fails its queue."""
        answers: dict[int, list[Any]] = {}
        failures: dict[int, EnodeError] = {}
        for queue, result in zip(queues, results, strict=True):
            if isinstance(result, EnodeError):
                failures.setdefault(queue, result)
            else:
                answers.setdefault(queue, []).append(result)
        for queue in failures:
            answers.pop(queue, None)
        return cls(answers, failures)


def raise_failure(failures: Mapping[int, EnodeError], answers: Mapping[int, Any]) -> None:
    """Raise the worst failure if there is one, a `TransportUnavailable` as `PartlyUnavailable` if there are answers."""
    if not failures:
        return
    worst = min(failures.values(), key=_mildness)
    if answers and isinstance(worst, TransportUnavailable):
        raise PartlyUnavailable(str(worst), answers=answers) from worst
    raise worst


def _mildness(error: EnodeError) -> int:
    """Rank errors, worst first. `QueueFull` is the mildest: "nothing was stored" must be true of all queues."""
    if not isinstance(error, TransportUnavailable):
        return 0
    return 2 if isinstance(error, QueueFull) else 1

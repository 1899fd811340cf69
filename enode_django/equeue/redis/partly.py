"""Calls about several queues of which only some could be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from enode_django.exceptions import EnodeError, PartlyUnavailable, QueueFull, TransportUnavailable


class ByQueue(NamedTuple):
    """The answers of queues (a queue that takes several calls has a list of them), and why others have none."""

    answers: dict[int, list[Any]]
    failures: dict[int, EnodeError]

    @classmethod
    def sorted_out(cls, queues: Iterable[int], results: Iterable[Any]) -> ByQueue:
        """``results``, exceptions among them, each for a queue. One of them fails its queue."""
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
    """Raise the worst of the failures, if there are any: as `PartlyUnavailable` if it passes and there are answers."""
    if not failures:
        return
    worst = min(failures.values(), key=_mildness)
    if answers and isinstance(worst, TransportUnavailable):
        raise PartlyUnavailable(str(worst), answers=answers) from worst
    raise worst


def _mildness(error: EnodeError) -> int:
    """Rank errors. One that does not pass is worst; "nothing was stored" may be said only if it is so everywhere."""
    if not isinstance(error, TransportUnavailable):
        return 0
    return 2 if isinstance(error, QueueFull) else 1

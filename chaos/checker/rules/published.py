from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from chaos.checker.facts import CommandKey, Facts, Published, StoredRow


def published(facts: Facts) -> Iterator[str]:
    """Each stored row is in the event topic with the same contents, and the first publications of an aggregate's
    versions are in order, in one queue. Messages deleted by retention are exempt. If the topic got more queues, an
    aggregate may move to another one; of a command in both, it is unknown which publication was the first."""
    if facts.published is None:
        return
    first: dict[CommandKey, Published] = {}
    streams = _Streams(facts.trimmed, may_move=facts.event_topic in facts.widened)
    moved = _in_several_queues(facts.published) if facts.event_topic in facts.widened else set()
    for message in facts.published:
        known = first.setdefault(message.key, message)
        if known.digest != message.digest:
            yield f"{_place(message)}: command {message.command_id} was published in another way before"
        if known is message and message.version is not None and message.key not in moved:
            yield from streams.next(message, message.version)
    for row in facts.stored:
        found = first.pop(row.key, None)
        if found is None:
            if not streams.may_be_deleted(row):
                yield f"command {row.command_id} of {row.aggregate_root_id} (version {row.version}) was not published"
        elif found.digest != row.digest:
            yield f"{_place(found)}: command {row.command_id} was published otherwise than it is stored"
    for message in first.values():
        yield f"{_place(message)}: command {message.command_id} was published, and is not stored"


def _in_several_queues(published: Iterable[Published]) -> set[CommandKey]:
    queues: dict[CommandKey, int] = {}
    return {one.key for one in published if queues.setdefault(one.key, one.queue) != one.queue}


class _Streams:
    """The published versions of each aggregate in each of its queues: the first version found, and the highest one."""

    def __init__(self, trimmed: frozenset[int], *, may_move: bool) -> None:
        self._trimmed = trimmed
        self._may_move = may_move
        self._found: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)

    def next(self, message: Published, version: int) -> Iterator[str]:
        id, queue = message.aggregate_root_id, message.queue
        found = self._found[id]
        if found and queue not in found and not self._may_move:
            yield f"{_place(message)}: {id} was published in queue {next(iter(found))} before"
        oldest, newest = found.get(queue, (version, 0))
        was_deleted_before = version < oldest and queue in self._trimmed
        if version < newest and not was_deleted_before:
            yield f"{_place(message)}: version {version} of {id} was published after {newest}"
        found[queue] = (oldest, max(version, newest))

    def may_be_deleted(self, row: StoredRow) -> bool:
        found = self._found.get(row.aggregate_root_id)
        if found is None:
            return bool(self._trimmed)
        return any(
            queue in self._trimmed and (row.version is None or row.version < oldest)
            for queue, (oldest, _) in found.items()
        )


def _place(message: Published) -> str:
    return f"events queue {message.queue} offset {message.offset}"

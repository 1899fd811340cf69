from __future__ import annotations

from collections.abc import Iterator

from chaos.checker.facts import CommandKey, Facts, Published, StoredRow


def published(facts: Facts) -> Iterator[str]:
    """Each stored row is in the event topic with the same contents, and the first publications of an aggregate's
    versions are in order. Messages deleted by retention are exempt."""
    if facts.published is None:
        return
    first: dict[CommandKey, Published] = {}
    streams = _Streams(facts.trimmed)
    for message in facts.published:
        known = first.setdefault(message.key, message)
        if known.digest != message.digest:
            yield f"{_place(message)}: command {message.command_id} was published in another way before"
        if known is message and message.version is not None:
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


class _Streams:
    """The published versions of each aggregate: its queue, the first version found, and the highest one."""

    def __init__(self, trimmed: frozenset[int]) -> None:
        self._trimmed = trimmed
        self._found: dict[str, tuple[int, int, int]] = {}

    def next(self, message: Published, version: int) -> Iterator[str]:
        id = message.aggregate_root_id
        queue, oldest, newest = self._found.get(id, (message.queue, version, 0))
        if queue != message.queue:
            yield f"{_place(message)}: {id} was published in queue {queue} before"
        was_deleted_before = version < oldest and queue in self._trimmed
        if version < newest and not was_deleted_before:
            yield f"{_place(message)}: version {version} of {id} was published after {newest}"
        self._found[id] = (message.queue, oldest, max(version, newest))

    def may_be_deleted(self, row: StoredRow) -> bool:
        found = self._found.get(row.aggregate_root_id)
        if found is None:
            return bool(self._trimmed)
        queue, oldest, _ = found
        return queue in self._trimmed and (row.version is None or row.version < oldest)


def _place(message: Published) -> str:
    return f"events queue {message.queue} offset {message.offset}"

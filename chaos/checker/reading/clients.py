"""The logs of clients, observing subscribers and the watcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, TypeVar

from chaos.checker.decoding import text_of
from chaos.checker.facts import Answer, Handled, Sample, Send
from chaos.checker.reading.lines import read_lines
from chaos.checker.reading.problems import Problems

T = TypeVar("T")
Wrong = (LookupError, TypeError, ValueError, AttributeError)


@dataclass
class ClientLogs:
    """The logs of all clients. ``acknowledged`` are the ids of commands that the queue has stored."""

    sends: list[Send] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)


def read_clients(directory: Path, problems: Problems) -> ClientLogs:
    """Read the clients' logs. A command that is sent again counts once."""
    logs, known = ClientLogs(), set[str]()
    for path in sorted(directory.glob("*.jsonl")):
        for place, values in read_lines(path, problems):
            try:
                _read(logs, known, values)
            except Wrong as error:
                problems.add(place, f"{error!r} in {values!r}")
    return logs


def _read(logs: ClientLogs, known: set[str], values: dict[str, Any]) -> None:
    match values["what"]:
        case "send":
            send = _send(values["command"])
            if send.command_id not in known:
                known.add(send.command_id)
                logs.sends.append(send)
        case "sent":
            logs.acknowledged.update(map(intern, values["ids"]))
        case "answer":
            logs.answers.append(_answer(values))


def _send(command: dict[str, Any]) -> Send:
    fields = {name: str(value) for name, value in command.get("fields", {}).items()}
    return Send(intern(command["id"]), intern(command["aggregate_root_id"]), intern(command["type"]), fields)


def _answer(values: dict[str, Any]) -> Answer:
    return Answer(
        intern(values["id"]),
        intern(values["aggregate_root_id"]),
        intern(values["status"].upper()),
        values.get("version"),
        text_of(values.get("value")),
        intern(values.get("error_type") or ""),
        values.get("error_message") or "",
    )


def read_handled(directory: Path, problems: Problems) -> list[Handled]:
    """Return the handled events in the order of each file, and the files in the order of their names."""
    paths = sorted(directory.glob("*.jsonl"))
    return [one for path in paths for one in _each(path, _handled, problems)]


def _handled(values: dict[str, Any]) -> Handled:
    id = intern(values["aggregate_root_id"])
    return Handled(float(values["at"]), intern(values["subscriber"]), id, int(values["version"]), values["event_id"])


def read_samples(path: Path, problems: Problems) -> list[Sample]:
    """Return the watcher's samples; empty if it has written no file."""
    return list(_each(path, _sample, problems)) if path.exists() else []


def _sample(values: dict[str, Any]) -> Sample:
    return Sample(
        float(values["at"]),
        (intern(values["group"]), intern(values["topic"]), int(values["queue"])),
        int(values["committed"]),
        intern(values.get("owner") or ""),
        int(values.get("epoch") or 0),
    )


def _each(path: Path, make: Callable[[dict[str, Any]], T], problems: Problems) -> Iterator[T]:
    for place, values in read_lines(path, problems):
        try:
            made = make(values)
        except Wrong as error:
            problems.add(place, f"{error!r} in {values!r}")
        else:
            yield made

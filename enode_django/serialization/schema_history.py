"""Check by recorded schemas that this code can read events and refusals stored by older code."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from enode_django.serialization.schemas import FieldTexts, has_default, stores_the_same, type_of, unreadable


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurrentSchema:
    """The current schema of a class of events or refusals. ``upcast_from`` are the versions that have upcasters."""

    name: str
    app: str
    schema_version: int
    fields: FieldTexts
    aliases: tuple[str, ...] = ()
    upcast_from: Collection[int] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, *self.aliases)))  # the present name may be among the aliases


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedSchema:
    """The record of one name in the file: the fields of each version ever recorded."""

    name: str
    app: str
    versions: Mapping[int, FieldTexts]
    aliases: tuple[str, ...] = ()

    @property
    def newest(self) -> int:
        return max(self.versions)

    def as_json(self) -> dict[str, Any]:
        return {
            "app": self.app,
            "schema_version": self.newest,
            "aliases": list(self.aliases),
            "versions": {str(version): dict(fields) for version, fields in sorted(self.versions.items())},
        }

    @classmethod
    def from_json(cls, name: str, value: Any) -> RecordedSchema:
        """Return the record from a result of `as_json`. Raises `ValueError`, `TypeError`, `KeyError` or
        `AttributeError` for any other value."""
        recorded = value["versions"].items()
        versions = {int(version): {str(k): str(v) for k, v in texts.items()} for version, texts in recorded}
        if not versions:
            raise ValueError(f"{name!r} has no versions")
        return cls(name=name, app=str(value["app"]), versions=versions, aliases=tuple(map(str, value["aliases"])))


class Problem(NamedTuple):
    """A difference between code and record. If ``is_news``, it only needs to be recorded."""

    name: str
    text: str
    is_news: bool = False


Recorded = Mapping[str, RecordedSchema]


def compare(recorded: Recorded, current: Iterable[CurrentSchema], apps: Collection[str] | None = None) -> list[Problem]:
    """Return the problems of the classes of these apps (None: all apps), sorted by name."""
    classes = list(current)
    known = {name for one in classes for name in one.names}
    problems = [
        Problem(name, "is gone: what is stored under this name cannot be read; bring the class back, or give this "
                "name as an alias to the one that replaces it")
        for name, one in recorded.items()
        if name not in known and (apps is None or one.app in apps)
    ]  # fmt: skip
    for one in classes:
        if apps is None or one.app in apps:
            problems += (Problem(one.name, *problem) for problem in _judge(one, recorded))
    return sorted(problems)


def record(recorded: Recorded, current: Iterable[CurrentSchema], apps: Collection[str] | None = None) -> Recorded:
    """Return the record with the classes of these apps added, each under its newest name with all its versions."""
    result = dict(recorded)
    for one in current:
        if apps is not None and one.app not in apps:
            continue
        versions: dict[int, FieldTexts] = {}
        for name in reversed(one.names):
            earlier = result.pop(name, None)
            versions |= earlier.versions if earlier else {}
        versions[one.schema_version] = one.fields
        result[one.name] = RecordedSchema(name=one.name, app=one.app, versions=versions, aliases=one.aliases)
    return dict(sorted(result.items()))


_Judged = Iterator[tuple[str, bool]]


def _judge(one: CurrentSchema, recorded: Recorded) -> _Judged:
    histories = [recorded[name] for name in one.names if name in recorded]
    if not histories:
        yield "is not recorded yet", True
    for history in histories:
        yield from _judge_names(one, history)
        if history.newest > one.schema_version:
            yield (
                f"has schema_version {one.schema_version}, and {history.newest} is recorded; versions never go back",
                False,
            )
        else:
            yield from _judge_current(one, history)
            yield from _judge_older(one, history)


def _judge_names(one: CurrentSchema, history: RecordedSchema) -> _Judged:
    for name in history.aliases:
        if name not in one.names:
            yield f"has lost its alias {name!r}: what is stored under it cannot be read", False
    if history.name != one.name:
        yield f"is recorded as {history.name!r} still", True
    elif set(one.aliases) - set(history.aliases):
        yield f"has aliases that are not recorded yet: {_listed(set(one.aliases) - set(history.aliases))}", True


def _judge_current(one: CurrentSchema, history: RecordedSchema) -> _Judged:
    fields = history.versions.get(one.schema_version)
    if fields is None:
        yield f"has version {one.schema_version}, which is not recorded yet", True
        return
    changes = _changes(fields, one.fields)
    if changes:
        yield (
            f"has changed without a new version ({'; '.join(changes)}); set schema_version = {one.schema_version + 1}",
            False,
        )


def _changes(old: FieldTexts, new: FieldTexts) -> list[str]:
    """Return the changes of the stored fields as texts. Adding or removing a default is not a change."""
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(f"{name} is gone")
        elif name not in old:
            changes.append(f"{name} is new")
        elif not stores_the_same(new[name], old[name]):
            changes.append(f"{name} was {type_of(old[name])} and is {type_of(new[name])}")
    return changes


def _judge_older(one: CurrentSchema, history: RecordedSchema) -> _Judged:
    """Check each recorded version against its next upcaster, or against the class if there is none. Versions after the
    upcaster are checked on their own."""
    versions = {version: fields for version, fields in history.versions.items() if version < one.schema_version}
    for version, fields in sorted(versions.items()):
        step = min((step for step in one.upcast_from if step >= version), default=None)
        if step is None:
            for name, why in unreadable(one.fields, fields).items():
                yield f"{name} {why}: version {version} cannot be read; {_advice(one, version)}", False
        else:
            for name, why in unreadable(_without_defaults(versions.get(step, {})), fields).items():
                yield (
                    f"{name} {why} in version {step}, and the upcaster from there would get the fields of version "
                    f"{version}; {_advice(one, version)}, too",
                    False,
                )
        for name in _returning(versions | {one.schema_version: one.fields}, version, step or one.schema_version):
            yield (
                f"{name} of version {version} went and came back, and would be taken for the new one; "
                f"{_advice(one, version)}, one that leaves it out",
                False,
            )
    yield from _judge_renames(one, {**versions, one.schema_version: one.fields})


def _returning(versions: Mapping[int, FieldTexts], since: int, until: int) -> list[str]:
    """Return the fields of the version ``since`` that are missing in a later version up to ``until``, and exist again
    in one from ``until`` on. An upcaster from ``until`` keeps fields that this version does not have."""
    gone = [version for version in versions if since < version <= until]
    back = {name: version for version, fields in sorted(versions.items()) if version >= until for name in fields}
    return sorted(
        name
        for name in versions[since]
        if any(name not in versions[version] and version < back.get(name, 0) for version in gone)
    )


def _without_defaults(fields: FieldTexts) -> FieldTexts:
    """Return the fields as an upcaster sees them: defaults are applied later, when the message is made."""
    return {name: type_of(text) for name, text in fields.items()}


def _judge_renames(one: CurrentSchema, versions: Mapping[int, FieldTexts]) -> _Judged:
    """Report probable renames: if a field is replaced by another one of its type with a default, its values would be
    lost silently."""
    for (version, old), (newer, new) in pairwise(sorted(versions.items())):
        if any(version <= step < newer for step in one.upcast_from):
            continue
        gone = {type_of(old[name]): name for name in old.keys() - new.keys()}
        for name in sorted(new.keys() - old.keys()):
            before = gone.get(type_of(new[name]))
            if before is not None and has_default(one.fields.get(name, "")):
                yield (
                    f"{before} of version {version} looks as if it were renamed to {name}, whose default would be read "
                    f"instead; {_advice(one, version)}, one that returns the fields as they are if it was not",
                    False,
                )


def _advice(one: CurrentSchema, version: int) -> str:
    return f"write an upcaster with @upcasts({one.name.rpartition('.')[2]}, from_version={version})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))

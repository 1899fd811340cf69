"""``manage.py enode eventschemas``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from enode_django.domain.declarations import aliases_of
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.management.output import PrintableCommand
from enode_django.serialization.registry import types
from enode_django.serialization.schema_history import CurrentSchema, Problem, Recorded, RecordedSchema, compare, record
from enode_django.serialization.schemas import describe
from enode_django.serialization.upcasting import upcasters

FILE = "event_schemas.json"
KINDS: Mapping[str, type[DomainEvent] | type[DomainException]] = {"events": DomainEvent, "refusals": DomainException}
Schemas = Mapping[str, Recorded]
"""Schemas by kind (a key of `KINDS`) and name."""


class Command(PrintableCommand):
    help = "Shows the schemas of events and refusals, and finds changes that make stored ones unreadable."

    def add_arguments(self, parser: CommandParser) -> None:
        file = parser.add_mutually_exclusive_group()
        described = f"the file (by default {FILE} in the project's directory)"
        file.add_argument("--check", nargs="?", const="", metavar="FILE", help=f"compare the classes with {described}")
        file.add_argument("--write", nargs="?", const="", metavar="FILE", help=f"add new schemas to {described}")
        parser.add_argument("--app", action="append", metavar="LABEL", help="only this app; may be given several times")

    def handle(self, *, check: str | None, write: str | None, app: Sequence[str] | None, **options: Any) -> None:
        chosen = _chosen(app)
        labels = {config.label for config in apps.get_app_configs() if _is_own(config)}.union(chosen or ())
        current = {kind: list(_current(base, labels)) for kind, base in KINDS.items()}
        if check is None and write is None:
            self.stdout.write(_dumped({kind: record({}, current[kind], chosen) for kind in KINDS}), ending="")
            return
        path = _path(write if check is None else check)
        recorded = _read(path, may_be_missing=check is None)
        problems = [problem for kind in KINDS for problem in compare(recorded[kind], current[kind], chosen)]
        if check is not None:
            _refuse(problems, path)
            self.stdout.write(f"the schemas match {path.name}")
            return
        _refuse([problem for problem in problems if not problem.is_news], path)
        _write(path, {kind: record(recorded[kind], current[kind], chosen) for kind in KINDS})
        self.stdout.write(f"{len(problems)} changes written to {path}")


def _chosen(given: Sequence[str] | None) -> Collection[str] | None:
    try:
        return {apps.get_app_config(label).label for label in given} if given else None
    except LookupError as error:
        raise CommandError(str(error)) from error


def _is_own(config: AppConfig) -> bool:
    """Return False for an installed app, which records the versions of its own schemas."""
    return not {"site-packages", "dist-packages"} & set(Path(config.path).parts)


def _current(base: type[DomainEvent] | type[DomainException], labels: Collection[str]) -> Iterator[CurrentSchema]:
    newest = {name: cls for cls, name in types.names().items() if issubclass(cls, base)}  # a reloaded module's class
    for name, cls in sorted(newest.items()):
        config = apps.get_containing_app_config(cls.__module__)
        if config is not None and config.label in labels and not _is_of_tests(cls, config):
            yield CurrentSchema(
                name=name,
                app=config.label,
                schema_version=cls.schema_version,
                fields=describe(cls),
                aliases=aliases_of(cls),
                upcast_from=upcasters.of(cls).keys(),
            )


def _is_of_tests(cls: type, config: AppConfig) -> bool:
    """Return True for classes of tests, whose events no worker stores, and for the base classes of this package."""
    inside = cls.__module__.removeprefix(config.name).split(".")
    return config.name == "enode_django" or any(part == "tests" or part.startswith("test_") for part in inside)


def _path(given: str | None) -> Path:
    return Path(given) if given else Path(getattr(settings, "BASE_DIR", "")) / FILE


def _read(path: Path, *, may_be_missing: bool) -> Schemas:
    try:
        value = json.loads(path.read_text("utf-8"))
        return {
            kind: {name: RecordedSchema.from_json(name, one) for name, one in value[kind].items()} for kind in KINDS
        }
    except FileNotFoundError as error:
        if may_be_missing:
            return {kind: {} for kind in KINDS}
        raise CommandError(
            f"there is no {path}; make it with manage.py enode eventschemas --write, and commit it"
        ) from error
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(f"{path} is not a file of event schemas: {type(error).__name__}: {error}") from error


def _write(path: Path, schemas: Schemas) -> None:
    try:
        path.write_text(_dumped(schemas), "utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error}") from error


def _dumped(schemas: Schemas) -> str:
    value = {kind: {name: one.as_json() for name, one in found.items()} for kind, found in schemas.items()}
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _refuse(problems: Sequence[Problem], path: Path) -> None:
    """Raise `CommandError` if there are problems. It ends the command with status 1."""
    if not problems:
        return
    lines = [f"{problem.name} {problem.text}" for problem in problems]
    if any(problem.is_news for problem in problems):
        lines.append(
            f"What is not recorded: run manage.py enode eventschemas --write, and commit {path.name} with the change."
        )
    if not all(problem.is_news for problem in problems):
        lines.append(f"What was never deployed may be taken out of {path.name} by hand.")
    raise CommandError("\n".join(lines))

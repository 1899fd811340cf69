"""Pages that send a new command in answer to a parked event or a dead letter: choose its type, fill in its fields,
confirm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

from django.contrib import messages
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse

from enode_django.admin.links import aggregate_url, command_url, version_url
from enode_django.admin.operating import Operation, operate
from enode_django.admin.readable import put_aside
from enode_django.admin.showing import rendered
from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.client import try_command
from enode_django.domain.declarations import schema_of
from enode_django.domain.fields import field_type
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import Command
from enode_django.domain.metadata import metadata
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import CommandTimeout, DefinitionError, EnodeError
from enode_django.forms import CommandForm, CommandFormMetaclass
from enode_django.models import ParkedEvent
from enode_django.runtime import make_store
from enode_django.serialization.codec import StoredStream, decode_command, decode_metadata, read_stored
from enode_django.serialization.registry import types
from enode_django.web.form_fields import AGGREGATE


class Cause(NamedTuple):
    """The command, event or refusal that a new command answers. ``fields`` has the fields of the command or refusal, or
    of the events of a parked stream; of events with the same field, the last one's. ``stays`` names what is still to be
    settled afterwards."""

    id: str
    correlation_id: str
    aggregate_root_id: str
    command_type: str
    fields: Mapping[str, Any]
    stays: str = ""


class NewCommand(Operation):
    """Mixin for the form of a class of commands."""

    title, button = "Send a new command", "Send the command"
    cause: Cause
    timeout = 5.0
    """Seconds that `perform` waits for the result."""

    def consequences(self) -> Iterator[str]:
        command = self._command_made()
        yield f"{types.name_of(type(command))} is sent to {command.aggregate_root_id}, with you as its user."
        for name in schema_of(type(command)).names:
            yield f"{name}: {getattr(command, name)}"
        if self.cause.stays:
            yield f"{self.cause.stays} that it answers stays. Settle it when the command has taken effect."

    def perform(self) -> str:
        command = self._command_made()
        sent = f"sent {types.name_of(type(command))} to {command.aggregate_root_id} as command {command.id}"
        self.found_at = (aggregate_url(command.aggregate_root_id), "See the aggregate")
        try:
            with self._answering():
                result = try_command(command, timeout=self.timeout)
        except CommandTimeout:
            self.level = messages.WARNING
            return f"{sent}; there was no answer within {self.timeout:g} s: it takes effect when a worker handles it"
        return f"{sent}; {self._outcome_of(result)}"

    def _answering(self) -> AbstractContextManager[object]:
        if not self.cause.stays:
            return nullcontext()  # it is like another command, and does not follow from it
        return metadata(causation_id=self.cause.id, correlation_id=self.cause.correlation_id)

    def _outcome_of(self, result: CommandResult) -> str:
        self.quoted = f": {result.error_message}" if result.error_message else ""
        match result.status:
            case CommandStatus.REFUSED:
                self.level = messages.WARNING
                self.found_at = (command_url(result.aggregate_root_id, result.command_id), "See the refusal")
                return f"it was refused: {result.error_type}"
            case CommandStatus.FAILED:
                self.level = messages.ERROR
                return f"it failed: {result.error_type}"
            case CommandStatus.NOTHING_CHANGED:
                return "it changed nothing"
            case CommandStatus.SUCCESS:
                assert result.version is not None
                self.found_at = (version_url(result.aggregate_root_id, result.version), "See its events")
                return f"it was stored as version {result.version}"

    def _command_made(self) -> Command:
        assert isinstance(self, CommandForm)
        return self.command()


def new_command(
    admin: Any, request: HttpRequest, target: Model, cause: Cause, *, back: str, crumbs: Sequence[tuple[str, str]]
) -> HttpResponse:
    """Show the pages of a new command. The caller checks that the user may send it, and may read the fields of the
    cause. ``target`` gets the entry in the admin's log. Raises `Http404` for a type that the user may not choose."""
    name = request.GET.get("type", "")
    names = command_names(with_internal=bool(getattr(request.user, "is_superuser", False)))
    if not name:
        return _type_page(admin, request, cause, crumbs, names)
    if name not in names:
        raise Http404(f"there is no command {name!r}")
    form = _form_of(name, cause)
    initial = {**_first_values(form, cause.fields), AGGREGATE: cause.aggregate_root_id}
    return operate(
        admin,
        request,
        lambda data: form(data, initial=initial),
        log=lambda _, done: admin.done(request, target, "send command", done),
        log_failure=lambda _, error: admin.failed(request, target, "send command", error),
        back=lambda _: back,
        crumbs=crumbs,
    )


def command_names(*, with_internal: bool) -> list[str]:
    """Return the sorted names, not aliases, of the commands that this process has a handler for. Those of internal ones
    are among them if ``with_internal``."""
    classes = {name: types.class_of(Command, name) for name in types.names_of(Command)}
    return sorted(
        name
        for name, cls in classes.items()
        if types.name_of(cls) == name and (cls.exposed or with_internal) and _is_handled(cls)
    )


def _is_handled(cls: type[Command]) -> bool:
    try:
        command_handlers.find(cls)
    except EnodeError:
        return False
    return True


def cause_of(parked: ParkedEvent) -> Cause:
    key = parked.command_id, parked.aggregate_root_id
    record = make_store().find([key]).get(key)
    place = f"refused/{parked.command_id}" if parked.version is None else f"{parked.version}/0"
    cause = Cause(
        f"{parked.aggregate_root_id}/{place}", parked.command_id, parked.aggregate_root_id, "", {}, "The parked event"
    )
    if record is None:
        return cause
    correlation = _correlation_of(record.metadata) or record.command_id
    return cause._replace(correlation_id=correlation, command_type=record.command_type, fields=_fields_of(record))


def cause_in(body: bytes) -> Cause | None:
    """Return the cause in a message with a command, or in a dead letter or retry of one; None for other messages."""
    held = put_aside(body)
    try:
        wire = decode_command(held)
    except EnodeError:
        return None
    correlation = _correlation_of(wire.metadata) or wire.id
    stays = "The dead letter or retry" if held != body else ""
    return Cause(wire.id, correlation, wire.aggregate_root_id, wire.type_name, wire.fields, stays)


def _correlation_of(encoded: bytes) -> str | None:
    try:
        return decode_metadata(encoded).correlation_id
    except EnodeError:
        return None


def _fields_of(record: StreamRecord) -> Mapping[str, Any]:
    try:
        stored = read_stored(record.events)
    except EnodeError:
        return {}
    if isinstance(stored, StoredStream):
        return {name: value for event in stored.events for name, value in event.fields.items()}
    return stored.fields


def _form_of(name: str, cause: Cause) -> Any:
    cls: Any = types.class_of(Command, name)
    meta = type("Meta", (), {"command": cls, "fields": (AGGREGATE, *schema_of(cls).names), "internal": True})
    try:
        attributes = {"Meta": meta, "cause": cause, "title": f"{NewCommand.title}: {name}"}
        return CommandFormMetaclass(f"New{cls.__name__}", (NewCommand, CommandForm), attributes)
    except DefinitionError as error:
        raise Http404(str(error)) from error


def _first_values(form: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return initial values: those of ``fields`` with the name of a form field that can be decoded as its type."""
    values = {}
    for name, declared in form.declarations.items():
        if name in fields:
            with suppress(EnodeError, TypeError, ValueError, LookupError):
                values[name] = field_type(declared.declared).decode(fields[name])
    return values


def _type_page(admin: Any, request: HttpRequest, cause: Cause, crumbs: Any, names: Sequence[str]) -> HttpResponse:
    context = {
        "names": names,
        "suggested": cause.command_type,
        "kept": [(name, value) for name, value in request.GET.items() if name != "type"],
        "crumbs": crumbs,
    }
    return rendered(admin, request, "command_type", NewCommand.title, context)

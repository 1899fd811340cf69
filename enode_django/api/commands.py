"""``POST commands/`` and ``GET commands/{id}/``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from rest_framework.response import Response

from enode_django.api.base import ApiView, may_view_payload
from enode_django.api.exposure import MaySendSomething, offered
from enode_django.api.outcomes import body_of, etag, outcome, problem_of, timed_out, version_in
from enode_django.api.parsing import StrictJsonParser
from enode_django.api.problems import Problem, invalid, invalid_parameter
from enode_django.api.received import command_id_of, is_pending, is_sent_by, receive
from enode_django.bus.results import CommandResult, WaitFor, stored_result
from enode_django.client import execute_command, send_command
from enode_django.conf import conf
from enode_django.domain.messages import Command
from enode_django.domain.metadata import metadata
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.limits import holds
from enode_django.exceptions import CommandFailed, CommandTimeout, shown
from enode_django.history.tables import record_of
from enode_django.ids import id_of_key
from enode_django.models import EventStream
from enode_django.serialization.json_scalars import Errors, add_error
from enode_django.serialization.json_values import command_from_json

if TYPE_CHECKING:
    from rest_framework.request import Request

WAITS: dict[str, WaitFor | None] = {"none": None, "executed": WaitFor.EXECUTED, "handled": WaitFor.HANDLED}


class Body(NamedTuple):
    type: str
    aggregate_root_id: Any
    fields: Any


class Wish(NamedTuple):
    """The wait and the expected aggregate version that the client asked for."""

    wait_for: WaitFor | None
    timeout: float | None
    expected_version: int | None


class CommandsView(ApiView):
    """Sends a command. The response comes when the queue has it, when it was executed, or when all subscribers have
    handled it, as the parameter ``wait`` says.

    Each command has its own permissions, and the body names the command. Anonymous clients are refused before the body
    is read, unless they may send some command: else each could keep a thread waiting for a slow body.
    """

    permission_classes: Any = [MaySendSomething]
    parser_classes: Any = [StrictJsonParser]
    throttle_scope = "enode-commands"

    def post(self, request: Request) -> Response:
        body = read_body(request.data)
        cls = self._permitted(body.type)
        wish = read_wish(request)
        user = user_of(request)
        id = command_id_of(request.headers.get("Idempotency-Key"), user)
        command = command_from_json(cls, body.aggregate_root_id, body.fields, id=id, path=("fields",))
        self.check_object_permissions(request, command)
        if id is not None:
            receive(command, [*body, wish.expected_version], user)
        with metadata(user_id=user or None):
            return self._send(command, wish)

    def _permitted(self, type_name: str) -> type[Command]:
        """Return the class of the command if the user may send it. An anonymous client does not learn which commands
        exist."""
        found = offered(type_name)
        if found is None:
            if not self.request.user or not self.request.user.is_authenticated:
                self.permission_denied(self.request)
            raise Problem(404, f"no command is named {shown(type_name)}", kind="enode:unknown-type")
        self.permission_classes = found.permissions
        self.check_permissions(self.request)
        return found.cls

    def _send(self, command: Command, wish: Wish) -> Response:
        location = f"{self.request.path}{quote(command.id, safe='')}/"
        if wish.wait_for is None:
            send_command(command, expected_version=wish.expected_version)
            sent = {"id": command.id, "aggregate_root_id": command.aggregate_root_id, "status": "sent"}
            return Response(sent, 202, headers={"Location": location})
        try:
            result = execute_command(
                command, wait_for=wish.wait_for, timeout=wish.timeout, expected_version=wish.expected_version
            )
        except CommandTimeout as error:
            raise timed_out(error, command.id, location) from error
        except (DomainException, CommandFailed) as error:
            raise problem_of(error) from error
        return Response(outcome(result), headers={"Location": location, **etag(result.version)})


class CommandView(ApiView):
    """Shows the outcome of a command to its sender, and to users who may view event streams. Its sender may give the
    ``Idempotency-Key`` instead of the id."""

    def get(self, request: Request, id: str) -> Response:
        for known_as in (id, *([id_of_key(user_of(request), id)] if holds(id) else [])):
            response = self._outcome(request, known_as)
            if response is not None:
                return response
        raise Problem(404, "no outcome of such a command is stored, at least not yet", kind="enode:unknown-command")

    def _outcome(self, request: Request, id: str) -> Response | None:
        user = user_of(request)
        may_view_streams = request.user.has_perm("enode_django.view_eventstream")
        for row in _rows(id, request.query_params.get("aggregate_root_id")):
            is_own = is_sent_by(user, row)
            if is_own or may_view_streams:
                return Response(_stored(row, is_own or may_view_payload(request)), headers=etag(row.version))
        if holds(id) and is_pending(id, user):
            return Response({"id": id, "status": "pending"})
        return None


def _rows(id: str, aggregate_root_id: str | None) -> Any:
    """Yield the rows of a command id, one for each aggregate that it was used for, up to 10 from each shard."""
    if not holds(id) or not holds(aggregate_root_id or ""):
        return
    wanted = {"command_id": id}
    if aggregate_root_id is not None:
        wanted["aggregate_root_id"] = aggregate_root_id
    for alias in conf().EVENT_STORE.DATABASES:
        yield from EventStream.objects.using(alias).filter(**wanted).order_by("aggregate_root_id")[:10]


def _stored(row: EventStream, with_payload: bool) -> dict[str, Any]:
    """Return the response body for a stored outcome. Raises a `Problem` of status 409 if the row cannot be read."""
    try:
        return _stored_body(stored_result(record_of(row)), with_payload)
    except Exception as error:  # a row from other code may hold anything
        detail = f"the command is stored, but its outcome cannot be read here ({type(error).__name__})"
        raise Problem(409, detail, kind="enode:unreadable") from error


def _stored_body(result: CommandResult, with_payload: bool) -> dict[str, Any]:
    error = result.error
    if error is not None:
        ids = {"id": result.command_id, "aggregate_root_id": result.aggregate_root_id}
        body = {**ids, "status": result.status.value}
        return {**body, "problem": body_of(error)} if with_payload else body
    body = outcome(result)
    del body["parked"]  # not known here
    return body if with_payload else {name: body[name] for name in body if name not in ("value", "event_types")}


def user_of(request: Request) -> str:
    """Return the user's key as text, as in metadata; empty if not authenticated."""
    return str(request.user.pk) if request.user and request.user.is_authenticated else ""


# -- reading requests -------------------------------------------------------------------------------------------------


def read_body(given: Any) -> Body:
    """Check the members of a parsed body. Raises `Problem`."""
    errors: Errors = {}
    if type(given) is not dict:
        raise invalid({(): "expected an object"})
    for name in given.keys() - {*Body._fields}:
        add_error(errors, (name,), f"there is no such member; known are {', '.join(Body._fields)}")
    for name in ("type", "aggregate_root_id"):
        if name not in given:
            add_error(errors, (name,), "this member is required")
        elif type(given[name]) is not str:
            add_error(errors, (name,), f"expected a string, got {shown(given[name])}")
    if errors:
        raise invalid(errors)
    return Body(given["type"], given["aggregate_root_id"], given.get("fields", {}))


def read_wish(request: Request) -> Wish:
    """Read ``wait``, ``timeout`` and ``If-Match``. Raises `Problem`."""
    wait = request.query_params.get("wait", "none")
    if wait not in WAITS:
        raise invalid_parameter("wait", f"{shown(wait)} is none of {', '.join(WAITS)}")
    timeout = _read_timeout(request.query_params.get("timeout"))
    return Wish(WAITS[wait], timeout, read_if_match(request.headers.get("If-Match")))


def _read_timeout(text: str | None) -> float | None:
    if text is None:
        return None
    most = conf().API.MAX_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= most:  # nor NaN
        raise invalid_parameter("timeout", f"{shown(text)} is not a number of seconds above 0 and up to {most:g}")
    return seconds


def read_if_match(header: str | None) -> int | None:
    """Return the expected version: 7 for ``"7"``, 0 (the aggregate must not exist) for ``"0"``, None for ``*`` or no
    header. Raises `Problem`."""
    if header is None or header.strip() == "*":
        return None
    version = version_in(header.strip())
    if version is None:
        raise invalid_parameter("If-Match", f'{shown(header)} is not a version; send one ETag, such as "7"')
    return version

"""Serializers of commands for views of Django REST Framework. Needs the extra ``api``."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, cast
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from enode_django.bus.results import CommandResult, WaitFor
from enode_django.client import execute_command
from enode_django.domain.bounds import Bound
from enode_django.domain.declarations import schema_of
from enode_django.domain.messages import Command
from enode_django.domain.prefixes import check_creates, target_of
from enode_django.domain.refusals import DomainException
from enode_django.domain.scalars import is_enum, is_literal
from enode_django.exceptions import (
    CommandFailed,
    CommandTimeout,
    DefinitionError,
    StoreUnavailable,
    TransportUnavailable,
    missing_extra,
)
from enode_django.ids import id_of_key, new_id
from enode_django.serialization.json_scalars import ID, Errors, JsonType, bounded_type
from enode_django.serialization.json_text import json_value
from enode_django.serialization.json_values import json_type
from enode_django.web.failures import BROKEN, CHANGED, NOT_FOUND, Failure, place_of, status_of, text_of, texts_of
from enode_django.web.form_fields import AGGREGATE, Declaration, chosen

try:
    from rest_framework import serializers
    from rest_framework.exceptions import APIException, NotFound
    from rest_framework.fields import empty
    from rest_framework.request import Request
    from rest_framework.utils import html

    from enode_django.api.outcomes import version_in
    from enode_django.api.parsing import StrictJsonParser
    from enode_django.api.received import command_id_of, receive
except ImportError as error:
    raise missing_extra("api", error) from error

__all__ = [
    "CommandResultSerializer",
    "CommandSerializer",
    "StrictJsonParser",
    "command_id_of",
    "etag_of",
    "expected_version_of",
    "receive",
]

Field = serializers.Field[Any, Any, Any, Any]
Describe = Callable[[Field], Field]
RETRY_AFTER = 5


class CommandRefused(serializers.ValidationError):
    """The command was refused by a domain exception (409), or has a value that cannot be stored (400). The detail is
    that of a validation error: texts by the name of a field, or under ``non_field_errors``."""

    def __init__(self, detail: Any, code: str, status: int) -> None:
        super().__init__(detail, code)
        self.status_code = status


class PreconditionFailed(APIException):
    status_code = CHANGED
    default_detail = _("It was changed meanwhile. Get it as it is now, and decide anew.")
    default_code = "precondition_failed"


class PreconditionRequired(APIException):
    status_code = 428
    default_detail = _('Send the header If-Match with the ETag that you have seen, such as "3".')
    default_code = "precondition_required"


class CommandLate(APIException):
    """The wait timed out, and the command goes on. Sent again with the same id, it takes effect once."""

    status_code = 504
    default_detail = _("This was not answered in time. It may still be done.")
    default_code = "late"


class QueueUnreachable(APIException):
    status_code = 503
    default_detail = _("Commands cannot be taken at the moment. Send it again soon.")
    default_code = "unreachable"
    wait = RETRY_AFTER


def etag_of(version: int | None) -> str:
    """Return the ETag of an aggregate at this version.

    Raises `ValueError` for None, the version of a `CommandResult` that was refused or failed.

    For example::

        assert etag_of(3) == '"3"'
    """
    if version is None:
        raise ValueError(
            "a command that was refused or failed has no version, and so no ETag; call raise_for_status() of its result"
        )
    return f'"{version}"'


def expected_version_of(request: Request, *, required: bool = False) -> int | None:
    """Return the version in ``If-Match``; None without that header, and for ``*``.

    Raises `PreconditionFailed` for any other text than an ETag of `etag_of`, and `PreconditionRequired` if the header
    is ``required`` and missing.

    For example::

        class CloseView(APIView):
            def delete(self, request: Request, account: str) -> Response:
                seen = expected_version_of(request, required=True)
                result = execute_command(CloseAccount(account), expected_version=seen)
                return Response(status=204, headers={"ETag": etag_of(result.version)})
    """
    header = request.headers.get("If-Match", "").strip()
    if not header and required:
        raise PreconditionRequired
    if header in ("", "*"):
        return None
    version = version_in(header)
    if version is None:
        raise PreconditionFailed
    return version


def error_of(failure: Failure, fields: Collection[str] = ()) -> APIException:
    """Return the error that a view raises for a command that took no effect. The text of a domain exception is put at
    the first of ``fields`` that the exception has a field of the same name for, with a value that is not None."""
    status, text, code = status_of(failure), text_of(failure), failure.result.error_type
    if status in _ERRORS:
        return _ERRORS[status](text, code)
    return CommandRefused({place_of(failure, fields) or "non_field_errors": [text]}, code, status)


_ERRORS: Mapping[int, Callable[..., APIException]] = {
    CHANGED: PreconditionFailed,
    NOT_FOUND: NotFound,
    BROKEN: APIException,
}


# -- fields -----------------------------------------------------------------------------------------------------------


class _ReadsJson(Field):
    """A mixin for fields of REST Framework that read and describe their values by
    `enode_django.serialization.json_values`. The REST Framework class gives the browsable API its widget."""

    json: JsonType
    is_text: bool

    def get_value(self, dictionary: Any) -> Any:
        value = serializers.Field.get_value(self, dictionary)
        if not html.is_html_input(dictionary) or self.is_text or not isinstance(value, str):
            return value
        if not value.strip():
            return None if self.allow_null else value if self.required else empty
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # it is refused later for its type

    def run_validation(self, data: Any = empty) -> Any:
        if data == "" and getattr(self, "allow_blank", False):  # a CharField would accept it unread
            return serializers.Field.run_validation(self, data)
        return super().run_validation(data)

    def to_internal_value(self, data: Any) -> Any:
        errors: Errors = {}
        found = self.json.read(data, (), errors)
        if errors:
            raise serializers.ValidationError(texts_of(errors))
        return found


_SHOWN_AS: Mapping[Any, Callable[..., Field]] = {
    bool: serializers.BooleanField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    str: serializers.CharField,
    Decimal: serializers.DecimalField,
    datetime: serializers.DateTimeField,
    date: serializers.DateField,
    UUID: serializers.UUIDField,
}
_NEEDED: Mapping[Any, Mapping[str, Any]] = {
    str: {"allow_blank": True},
    Decimal: {"max_digits": None, "decimal_places": None},
}


@cache
def _field_class(annotation: Any) -> Any:
    has_choices = is_enum(annotation) or is_literal(annotation)
    shown_as: Any = serializers.ChoiceField if has_choices else _SHOWN_AS.get(annotation, serializers.JSONField)
    return type(f"{shown_as.__name__}OfCommand", (_ReadsJson, shown_as), {})


def _field(declared: Declaration, options: Mapping[str, Any]) -> Field:
    kind, may_be_none = declared.annotation, declared.may_be_none
    given: dict[str, Any] = {**_NEEDED.get(kind, {}), "required": not declared.has_default, "allow_null": may_be_none}
    if is_enum(kind):
        given["choices"] = [(json_value(member.value), member.name) for member in kind]
    if is_literal(kind):
        given["choices"] = [json_value(value) for value in typing.get_args(kind)]
    field = _field_class(kind)(**{**given, **options})
    field.is_text = json_type(kind).is_text
    field.json = json_type(declared.declared)
    return _describe(kind, declared.bounds)(field)


@cache
def _describe(annotation: Any, bounds: tuple[Bound, ...]) -> Describe:
    """Return a function that adds the schema of the values to a field, if drf-spectacular is installed."""
    try:
        from drf_spectacular.utils import extend_schema_field

        from enode_django.api.openapi import is_newer, nullable
    except ImportError:
        return lambda field: field
    schema = bounded_type(json_type(annotation), bounds).schema
    return cast(Describe, extend_schema_field(dict(schema) if is_newer() else nullable(schema)))


class _Status(serializers.ChoiceField):
    def to_representation(self, value: Any) -> Any:
        return value.value


class _Value(serializers.JSONField):
    def to_representation(self, value: Any) -> Any:
        return json_value(value)


class CommandResultSerializer(serializers.Serializer[CommandResult]):
    """The result of a command. ``version`` is that of its aggregate afterwards; ``value`` is the handler's result.

    For example::

        result = execute_command(OpenAccount("ada", owner="Ada"))
        shown = CommandResultSerializer(result).data
        assert (shown["status"], shown["version"]) == ("success", 1)
    """

    status = _Status(["success", "nothing_changed"])
    command_id = serializers.CharField()
    aggregate_root_id = serializers.CharField()
    version = serializers.IntegerField(allow_null=True)
    value = _Value(allow_null=True)


class CommandSerializer(serializers.Serializer[CommandResult]):
    """Serializes a class of commands. Its ``Meta`` names the ``command`` and may have ``fields`` (by default all),
    ``exclude`` and ``extra_kwargs``, like that of a model serializer.

    `save` executes the command and sets ``instance`` to the `CommandResult`, which ``data`` shows.

    For example::

        class DepositSerializer(CommandSerializer):
            class Meta:
                command = Deposit

        execute_command(OpenAccount("ada", owner="Ada"))
        serializer = DepositSerializer(data={"amount": "5"})
        serializer.is_valid(raise_exception=True)
        assert serializer.save(aggregate_root_id="ada").value == 5
    """

    def get_fields(self) -> dict[str, Field]:
        meta = getattr(self, "Meta", None)
        options = getattr(meta, "extra_kwargs", {})
        found = {name: _field(one, options.get(name, {})) for name, one in chosen(type(self), meta).items()}
        if AGGREGATE in found:
            setattr(found[AGGREGATE], "json", ID)  # noqa: B010
        return {**found, **super().get_fields()}

    def command(self, **values: Any) -> Command:
        """Return the command of valid data. ``values`` are fields that were not sent; they may include
        ``aggregate_root_id`` and ``id``. Each of these is new if it is neither given nor sent. A sent ``id`` is used as
        an idempotency key of the request's user, never directly. Raises a ValidationError, also for required fields
        that a partial serializer was not sent."""
        cls: type[Command] = getattr(self, "Meta").command  # noqa: B009
        declared = {AGGREGATE, "id", *schema_of(cls).names}
        sent = {name: value for name, value in self.validated_data.items() if name in declared}
        if "id" in sent:
            sent["id"] = id_of_key(self._user(), str(sent["id"]))
        given = {AGGREGATE: new_id(), **sent, **values}
        if missing := declared & {name for name, field in self.fields.items() if field.required} - {*sent, *values}:
            raise serializers.ValidationError({name: [_("This field is required.")] for name in sorted(missing)})
        if AGGREGATE not in {**sent, **values}:
            check_creates(cls)
        try:
            return cls(**{**given, AGGREGATE: target_of(cls, given[AGGREGATE])})
        except ValueError as error:  # an InvalidField, an InvalidId, or one of the class's own __post_init__
            raise serializers.ValidationError(str(error)) from error

    def _user(self) -> str:
        """Return the primary key of the user of the request as text; empty for an anonymous user."""
        user = getattr(self.context.get("request"), "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else ""

    def save(
        self,
        *,
        expected_version: int | None = None,
        wait_for: WaitFor = WaitFor.EXECUTED,
        timeout: float | None = None,
        **values: Any,
    ) -> CommandResult:
        """Execute the `command`, like `enode_django.execute_command`.

        Raises `CommandRefused`, `PreconditionFailed`, NotFound or another APIException if it took no effect,
        `CommandLate`, and `QueueUnreachable`.
        """
        command = self.command(**values)
        try:
            result = execute_command(command, wait_for=wait_for, timeout=timeout, expected_version=expected_version)
        except (DomainException, CommandFailed) as failure:
            raise error_of(failure, self.fields) from failure
        except CommandTimeout as late:
            raise CommandLate from late
        except (TransportUnavailable, StoreUnavailable) as error:
            raise QueueUnreachable from error
        self.instance = result
        return result

    def create(self, validated_data: Any) -> CommandResult:
        """Refuse ``many=True``, whose ``save`` calls this for each item."""
        raise DefinitionError(
            f"{type(self).__qualname__}(many=True) is not saved: a command may be refused after others took effect; "
            "make a serializer for each item, and give their command() to send_commands"
        )

    def to_representation(self, instance: CommandResult) -> dict[str, Any]:
        return CommandResultSerializer().to_representation(instance)

"""Forms made from command classes: a form that is sent twice takes effect once; a refusal becomes a form error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache
from typing import Any
from uuid import UUID, uuid5

from django import forms
from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.forms.forms import DeclarativeFieldsMetaclass
from django.utils.translation import gettext_lazy as _

from enode_django.bus.results import CommandResult, WaitFor
from enode_django.client import execute_command
from enode_django.domain.messages import Command
from enode_django.domain.prefixes import check_creates, target_of
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import CommandFailed, DefinitionError, InvalidId
from enode_django.ids import MAX_ID_LENGTH, check_given_id, new_id
from enode_django.serialization.registry import types
from enode_django.web.failures import Failure, place_of, text_of
from enode_django.web.form_fields import AGGREGATE, Declaration, chosen

__all__ = ["CommandForm", "command_form"]

TOKEN, EXPECTED = "command_id", "expected_version"
_OUT_OF_DATE = _("This page is out of date. Load it again, check it, and send it.")


class CommandFormMetaclass(DeclarativeFieldsMetaclass):
    """Adds the fields of ``Meta.command`` to those of the class body, which replace fields of the same name."""

    def __new__(mcs, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> type:
        form: Any = super().__new__(mcs, name, bases, attrs)
        meta = getattr(form, "Meta", None)
        if meta is not None:
            form.declarations = _chosen(form, meta)
            made = {key: _made(key, declared, meta) for key, declared in form.declarations.items()}
            form.base_fields = {**made, **form.declared_fields, **_hidden()}
        return form  # type: ignore[no-any-return]


def _chosen(form: type, meta: Any) -> dict[str, Declaration]:
    found = chosen(form, meta)
    if taken := {TOKEN, EXPECTED}.intersection(found):
        raise DefinitionError(f"{form.__qualname__} hides a field {min(taken)!r} of its own; exclude the command's")
    return found


def _made(name: str, declared: Declaration, meta: Any) -> forms.Field:
    options: dict[str, Any] = {"max_length": MAX_ID_LENGTH, "validators": [_check_id]} if name == AGGREGATE else {}
    for option, given in (("label", "labels"), ("help_text", "help_texts"), ("widget", "widgets")):
        values = getattr(meta, given, None) or {}
        if name in values:
            options[option] = values[name]
    return declared.form_field(**options)


def _check_id(value: str) -> None:
    try:
        check_given_id(value)
    except InvalidId as error:
        raise ValidationError(str(error), code="invalid") from error


class _Hidden(forms.Field):
    """Says nothing about whether a form was filled in: each page has another token, and others may have changed the
    aggregate. So an empty form of a formset counts as unchanged."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class _Token(_Hidden, forms.CharField): ...


class _Expected(_Hidden, forms.IntegerField): ...


def _hidden() -> dict[str, forms.Field]:
    return {
        TOKEN: _Token(required=False, widget=forms.HiddenInput),
        EXPECTED: _Expected(min_value=0, max_value=2**63 - 1, widget=forms.HiddenInput),
    }


class CommandForm(forms.Form, metaclass=CommandFormMetaclass):
    """A form for a class of commands. Its ``Meta`` names the ``command`` and may have ``fields`` (by default all),
    ``exclude``, ``labels``, ``help_texts`` and ``widgets``, like that of a model form. Fields of the class body replace
    those of the command or are added to them.

    The command's id follows from a hidden, signed token and the entered data. So a form that is sent twice takes effect
    once, and a form that was changed in between makes another command. ``aggregate_root_id`` is the id of the command's
    aggregate; if it is None, the id is a field if ``Meta.fields`` names it, and a new id otherwise. A form with an
    ``expected_version`` carries it in a hidden field, and its command is refused if the aggregate has another version
    when it is handled. ``values`` are fields of the command that users do not enter.

    For example::

        class OpenAccountForm(CommandForm):
            class Meta:
                command = OpenAccount
                labels = {"owner": "Who is it for?"}

        form = OpenAccountForm({"owner": "Ada"})
        assert form.is_valid() and form.execute().version == 1
    """

    declarations: Mapping[str, Declaration]

    def __init__(
        self,
        *args: Any,
        aggregate_root_id: str | None = None,
        expected_version: int | None = None,
        values: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if getattr(self, "Meta", None) is None:
            raise DefinitionError(f"{type(self).__qualname__} has no command; write it into its class Meta")
        self.result: CommandResult | None = None
        self._aggregate_root_id = aggregate_root_id
        self._seen_version = expected_version
        self._values = dict(values or {})
        self._command: Command | None = None
        self._signer = Signer(salt=f"enode_django.forms.{types.first_name_of(self._class)}")
        self.fields[TOKEN].initial = self._new_token
        self.fields[EXPECTED].initial = expected_version
        for name in (*self._values, *((AGGREGATE,) if aggregate_root_id is not None else ())):
            self.fields.pop(name, None)
        if expected_version is None:
            del self.fields[EXPECTED]

    @property
    def _class(self) -> type[Command]:
        command: type[Command] = getattr(self, "Meta").command  # noqa: B009
        return command

    def _new_token(self) -> str:
        return self._signer.sign(new_id())

    # -- the entered data -----------------------------------------------------------------------------------------

    def clean_command_id(self) -> UUID:
        token = self.cleaned_data[TOKEN]
        try:
            return UUID(self._signer.unsign(token) if token else new_id())
        except BadSignature:
            raise ValidationError(_OUT_OF_DATE, code="out_of_date") from None

    def full_clean(self) -> None:
        super().full_clean()
        if self.is_bound and not (self.empty_permitted and not self.has_changed()):
            self._make_command()

    def _make_command(self) -> None:
        if self.errors:
            if self.errors.keys() & {TOKEN, EXPECTED}:
                self._renew()  # users cannot correct hidden fields
            return
        id = str(uuid5(self.cleaned_data[TOKEN], self._content()))
        given = self._aggregate_root_id
        if given is None and AGGREGATE not in self.cleaned_data:
            check_creates(self._class)
        target = target_of(self._class, self.cleaned_data.get(AGGREGATE, id) if given is None else given)
        try:
            self._command = self._class(aggregate_root_id=target, id=id, **self._entered(), **self._values)
        except ValueError as error:  # an InvalidField, an InvalidId, or one of the class's own __post_init__
            place = AGGREGATE if isinstance(error, InvalidId) and AGGREGATE in self.fields else None
            self.add_error(place, ValidationError(str(error), code="invalid"))

    def _content(self) -> str:
        return json.dumps(
            [(name, self[name].data) for name in self.fields if name not in (TOKEN, EXPECTED)], default=str
        )

    def _entered(self) -> dict[str, Any]:
        names = [name for name in self.declarations if name in self.cleaned_data and name != AGGREGATE]
        return {name: self.cleaned_data[name] for name in names if not self._is_left_out(name)}

    def _is_left_out(self, name: str) -> bool:
        """Return True if the command's default applies."""
        declared = self.declarations[name]
        if not declared.has_default:
            return False
        if self[name].field.widget.value_omitted_from_data(self.data, self.files, self.add_prefix(name)):
            return True
        return self.cleaned_data[name] is None and not declared.may_be_none

    # -- the outcome ----------------------------------------------------------------------------------------------

    @property
    def expected_version(self) -> int | None:
        """The aggregate's version when the form was shown. The form must be valid."""
        return self.cleaned_data.get(EXPECTED)

    def command(self) -> Command:
        """Return the command of a valid form, the same object each time. Raises ValueError if the form is invalid."""
        if not self.is_valid() or self._command is None:
            raise ValueError(f"{type(self).__qualname__} is not valid; call is_valid() first, and show its errors")
        return self._command

    def execute(self, *, wait_for: WaitFor = WaitFor.EXECUTED, timeout: float | None = None) -> CommandResult | None:
        """Execute the command of a valid form, as `enode_django.execute_command` does.

        Returns None if the command was refused or failed. The form then has errors, ``result`` holds the reason, and
        the form makes another command when it is sent again. Other errors of `execute_command` are raised.
        """
        command, expected = self.command(), self.expected_version
        try:
            self.result = execute_command(command, wait_for=wait_for, timeout=timeout, expected_version=expected)
        except (DomainException, CommandFailed) as error:
            self.result = error.result
            self.add_failure(error)
            self._renew()
            return None
        return self.result

    def add_failure(self, error: Failure) -> None:
        """Add to the form's errors why its command took no effect. The error's code is the ``error_type``."""
        text = ValidationError(text_of(error), error.result.error_type)
        self.add_error(self.field_of(error), ValidationError([text]))

    def field_of(self, error: Failure) -> str | None:
        """Return the first visible field that the domain exception has a field of the same name for, with a value that
        is not None. Return None if the failure concerns the form as a whole."""
        return place_of(error, (field.name for field in self.visible_fields()))

    def _renew(self) -> None:
        """Reset the hidden fields: a refused command stays refused, so the form must make another one."""
        data: Any = copy(self.data)
        data[self.add_prefix(TOKEN)] = self._new_token()
        if EXPECTED in self.fields:
            data[self.add_prefix(EXPECTED)] = str(self._seen_version)
        self.data = data


def command_form(
    command: type[Command], fields: Iterable[str] | None = None, exclude: Iterable[str] = ()
) -> type[CommandForm]:
    """Return a form class for a class of commands.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        form = command_form(Deposit)({"amount": "5"}, aggregate_root_id="ada")
        assert form.is_valid() and form.execute().value == 5
    """
    given = fields if fields is None else tuple(fields)
    return _command_form(command, given, tuple(exclude))  # type: ignore[arg-type]


@cache
def _command_form(
    command: type[Command], fields: tuple[str, ...] | None, exclude: tuple[str, ...]
) -> type[CommandForm]:
    meta = type("Meta", (), {"command": command, "fields": fields, "exclude": exclude})
    form: type[CommandForm] = CommandFormMetaclass(f"{command.__name__}Form", (CommandForm,), {"Meta": meta})
    return form

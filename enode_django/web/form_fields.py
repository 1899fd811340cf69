"""Form fields for the types of a command's fields: Django's own for simple types, and JSON for nested ones."""

from __future__ import annotations

import json
import types as python_types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Choices
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from enode_django.domain.aliases import without_aliases
from enode_django.domain.bounds import Bound, bounds_of
from enode_django.domain.declarations import schema_of
from enode_django.domain.defaults import MISSING
from enode_django.domain.fields import field_type
from enode_django.domain.messages import Command
from enode_django.domain.scalars import is_enum, is_literal
from enode_django.exceptions import DefinitionError, InvalidField, shown
from enode_django.serialization.json_scalars import LARGEST_EXPONENT, Errors
from enode_django.serialization.json_text import json_value
from enode_django.serialization.json_values import json_type
from enode_django.serialization.plain import MOST_BITS, MOST_DIGITS
from enode_django.web.failures import texts_of

AGGREGATE = "aggregate_root_id"
_META = ("command", "exclude", "extra_kwargs", "fields", "help_texts", "internal", "labels", "widgets")
"""The options of the ``Meta`` of forms and serializers."""


class DateTimeField(forms.DateTimeField):
    """Returns aware datetimes. With ``USE_TZ = False`` they are in the time zone of the settings."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")

    def to_python(self, value: Any) -> datetime | None:
        moment = super().to_python(value)
        if moment is not None and timezone.is_naive(moment):
            moment = timezone.make_aware(moment, timezone.get_default_timezone())
        return moment


def _blank(options: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the choice of nothing, unless the field is required and something is chosen at first."""
    return [] if options.get("initial") is not None and options.get("required") else [("", "---------")]


class EnumField(forms.TypedChoiceField):
    """Lets the user choose a member by its name. Members of Django's choices show their labels."""

    def __init__(self, kind: type[Enum], **options: Any) -> None:
        choices = [*_blank(options), *((member.name, _label(member)) for member in kind)]
        super().__init__(choices=choices, coerce=lambda name: kind[name], empty_value=None, **options)

    def prepare_value(self, value: Any) -> Any:
        return value.name if isinstance(value, Enum) else value


def _label(member: Enum) -> Any:
    return member.label if isinstance(member, Choices) else member.name.replace("_", " ").capitalize()


class LiteralField(forms.TypedChoiceField):
    """Lets the user choose a value of a ``Literal``, shown by `str`, or by `repr` if two would look the same."""

    def __init__(self, annotation: Any, **options: Any) -> None:
        values = typing.get_args(annotation)
        texts = [str(value) for value in values]
        if len({*texts}) < len(texts):
            texts = [repr(value) for value in values]
        self._values = dict(zip(texts, values, strict=True))
        choices = [*_blank(options), *((text, text) for text in texts)]
        super().__init__(choices=choices, coerce=self._values.__getitem__, empty_value=None, **options)

    def prepare_value(self, value: Any) -> Any:
        # Compare the types, too, since True equals 1.
        same = (text for text, one in self._values.items() if (type(one), one) == (type(value), value))
        return next(same, value)


class JsonField(forms.Field):
    """A value as JSON text, read and written by `enode_django.serialization.json_values`. An empty text is None;
    ``[]`` and ``{}`` are values."""

    widget = forms.Textarea
    empty_values = [None]

    def __init__(self, annotation: Any, **options: Any) -> None:
        super().__init__(**options)
        self._json = json_type(annotation)
        self._encode = field_type(annotation).encode

    def to_python(self, value: Any) -> Any:
        text = "" if value is None else str(value).strip()
        if not text:
            return None
        errors: Errors = {}
        found = self._json.read(text if self._json.is_text else _parsed(text), (), errors)
        if errors:
            raise ValidationError(texts_of(errors), code="invalid")
        return found

    def prepare_value(self, value: Any) -> Any:
        """Return the value as the form shows it. Typed text stays as it is."""
        if value is None or isinstance(value, str):
            return value
        shown = json_value(self._encode(value) if self._encode else value)
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValidationError(_("Enter valid JSON."), code="invalid") from None


def _check_digits(value: int) -> None:
    if value.bit_length() > MOST_BITS:
        raise ValidationError(_("Enter a whole number of at most %(most)s digits.") % {"most": MOST_DIGITS})


_SCALARS: Mapping[Any, Callable[..., forms.Field]] = {
    int: partial(forms.IntegerField, validators=[_check_digits]),
    float: forms.FloatField,
    str: forms.CharField,
    Decimal: partial(forms.DecimalField, max_digits=LARGEST_EXPONENT),
    datetime: DateTimeField,
    date: partial(forms.DateField, widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")),
    UUID: forms.UUIDField,
}


_LIMITS = {"ge": "min_value", "le": "max_value"}
_OPTIONS: Mapping[Any, Mapping[str, str]] = {
    int: _LIMITS,
    float: _LIMITS,
    Decimal: _LIMITS,
    str: {"min_length": "min_length", "max_length": "max_length"},
}
"""By type, the form field's option for each name of a bound. Browsers check these, too."""


_TEXTS: Mapping[str, Any] = {
    "ge": _("Ensure this value is greater than or equal to %(limit_value)s."),
    "gt": _("Ensure this value is greater than %(limit_value)s."),
    "le": _("Ensure this value is less than or equal to %(limit_value)s."),
    "lt": _("Ensure this value is less than %(limit_value)s."),
    "multiple_of": _("Ensure this value is a multiple of step size %(limit_value)s."),
    "pattern": _("Enter a valid value."),
    "predicate": _("Enter a valid value."),
}
"""By name of a bound, what a form says. Where Django has such a text, it is the same, since Django translates it."""


class Declaration(NamedTuple):
    """A field as a command declares it. ``declared`` is the whole annotation; ``annotation`` lacks an alternative None
    and the ``bounds``. ``default`` may be a function that returns it."""

    annotation: Any
    may_be_none: bool
    default: Any
    bounds: tuple[Bound, ...] = ()
    declared: Any = None

    @classmethod
    def of(cls, declared: Any, default: Any) -> Declaration:
        kind, may_be_none, bounds = _unwrapped(declared)
        return cls(kind, may_be_none, default, bounds, declared)

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING

    def form_field(self, **options: Any) -> forms.Field:
        """Return a form field. ``required`` and ``initial`` follow from the declaration unless ``options`` has them."""
        kind = self.annotation
        is_required = not self.has_default and not self.may_be_none and kind is not type(None)
        options = {"required": is_required, "initial": self.default if self.has_default else None, **options}
        if kind is bool:
            options["required"] = False  # an empty box is an answer
            return forms.NullBooleanField(**options) if self.may_be_none else forms.BooleanField(**options)
        if kind is str and self.may_be_none:
            options = {"empty_value": None, **options}
        known = _OPTIONS.get(kind, {})
        options |= {known[bound.name]: bound.limit for bound in self.bounds if bound.name in known}
        field = self._field(kind, options)
        field.validators += [_validator(bound) for bound in self.bounds if bound.name not in known]
        return field

    def _field(self, kind: Any, options: dict[str, Any]) -> forms.Field:
        if kind in _SCALARS:
            return _SCALARS[kind](**options)
        if is_enum(kind):
            return EnumField(kind, **options)
        return LiteralField(kind, **options) if is_literal(kind) else JsonField(kind, **options)


def _validator(bound: Bound) -> Callable[[Any], None]:
    def validate(value: Any) -> None:
        try:
            bound.check(value)
        except InvalidField as error:
            if bound.name in _TEXTS:
                raise ValidationError(_TEXTS[bound.name], bound.name, {"limit_value": bound.limit}) from error
            raise ValidationError(str(error), bound.name) from error

    return validate


def chosen(of: type, meta: Any) -> dict[str, Declaration]:
    """Return the fields of a form or serializer by name: ``fields`` of its ``meta`` without those in ``exclude``. By
    default these are all fields of the command; the aggregate's id is included only if ``fields`` names it. Raises
    `DefinitionError`."""
    _check_options(of, meta)
    command = getattr(meta, "command", None)
    if not isinstance(command, type) or not issubclass(command, Command):
        raise DefinitionError(f"{of.__qualname__}.Meta has command = {shown(command)}; give it a class of commands")
    if not command.exposed and not getattr(meta, "internal", False):
        raise DefinitionError(
            f"{of.__qualname__} is for {command.__qualname__}, which only code sends (exposed = False); take a command "
            "that is meant for people, or write internal = True into Meta for a page of operators"
        )
    known = _declarations(command)
    fields, excluded = getattr(meta, "fields", None), getattr(meta, "exclude", None) or ()
    for option, value in (("fields", fields), ("exclude", excluded)):
        if isinstance(value, str):
            raise DefinitionError(
                f"{of.__qualname__}.Meta has {option} = {value!r}; give it a list of names, or leave it out: all "
                "fields of the command are the default"
            )
    names = tuple(schema_of(command).names) if fields is None else tuple(fields)
    for name in (*names, *excluded):
        if name not in known:
            raise DefinitionError(
                f"{of.__qualname__}.Meta names {name!r}, which {command.__qualname__} has not; it has {tuple(known)}"
            )
    return {name: known[name] for name in names if name not in excluded}


def _check_options(of: type, meta: Any) -> None:
    """Raise `DefinitionError` for a misspelt option, such as an ``exlude`` that would show what it is to hide."""
    for name in dir(meta):
        close = () if name.startswith("_") or name in _META else get_close_matches(name, _META, n=1, cutoff=0.8)
        for option in close:
            raise DefinitionError(f"{of.__qualname__}.Meta has {name!r}, which is no option; write {option}")


def _declarations(command: type[Command]) -> dict[str, Declaration]:
    hints = typing.get_type_hints(command, include_extras=True)
    defaults = schema_of(command).defaults
    own = {name: Declaration.of(without_aliases(hints[name]), default) for name, default in defaults.items()}
    return {AGGREGATE: Declaration.of(str, MISSING), **own}


def _unwrapped(annotation: Any) -> tuple[Any, bool, tuple[Bound, ...]]:
    """Return the annotation without None and bounds, True if it allows None, and the bounds."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        kind, may_be_none, inner = _unwrapped(arguments[0])
        return kind, may_be_none, (*inner, *bounds_of(annotation))
    if origin in (typing.Union, python_types.UnionType):
        kind, _, bounds = _unwrapped(next(each for each in arguments if each is not type(None)))
        return kind, True, bounds
    return annotation, False, ()

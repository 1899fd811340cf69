"""Pages for actions in the admin: a form, a confirmation, then the action."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from django import forms
from django.contrib import messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.text import capfirst

from enode_django.admin.showing import Pages, rendered
from enode_django.exceptions import EnodeError

CONFIRMED = "confirmed"
"""The name of the button on the confirmation page."""
ERRORS = (EnodeError, DatabaseError, ValueError)


class Operation(forms.Form):
    """The form of an action. ``button`` is on the confirmation page. If a method raises one of `ERRORS`, the page shows
    its text.

    The methods are abstract for the type checker only: forms have a metaclass of their own.
    """

    title: ClassVar[str]
    button: ClassVar[str]
    level = messages.SUCCESS
    """The level of the message after the action. `perform` may change it."""
    quoted = ""
    """Text that is added to the message about the action, but not to the log: it may quote payload. `perform` may set
    it."""
    found_at: tuple[str, str] | None = None
    """The URL and the name of a page that shows the effect. `perform` may set it."""

    @abstractmethod
    def consequences(self) -> Iterable[str]:
        """Return sentences about what `perform` would do now. Call it on a valid form only."""

    @abstractmethod
    def perform(self) -> str:
        """Do the action. Return what was done, for the message and the log. Call it on a valid form only."""

    def let_choose(self, name: str, choices: Iterable[tuple[str, str]]) -> None:
        """Give the field of this name these choices."""
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(choices)


Chosen = TypeVar("Chosen", bound=Operation)


def operate(
    admin: Pages,
    request: HttpRequest,
    make_form: Callable[[Mapping[str, Any] | None], Chosen],
    *,
    log: Callable[[Chosen, str], object],
    log_failure: Callable[[Chosen, str], object],
    back: Callable[[Chosen], str],
    crumbs: Sequence[tuple[str, str]] = (),
) -> HttpResponse:
    """Show the pages of an operation. The caller checks the permission. ``make_form`` gets the posted data, or None.

    GET shows the form. A valid POST shows the consequences; with `CONFIRMED` it performs the operation, calls ``log``
    with what was done, and redirects to the URL that ``back`` returns. After an error it calls ``log_failure`` with the
    error's class, and shows the error. ``crumbs`` are (url, text) of the pages above.
    """
    form = make_form(request.POST if request.method == "POST" else None)
    consequences: Sequence[str] = ()
    if form.is_valid():
        try:
            if CONFIRMED in request.POST:
                done = _perform(form, log_failure)
                log(form, done)
                admin.message_user(request, _said(form, done), form.level)
                return HttpResponseRedirect(back(form))
            consequences = list(form.consequences())
        except ERRORS as error:
            form.add_error(None, str(error))
    context = {
        "form": form,
        "consequences": consequences,
        "confirmed": CONFIRMED,
        "back": back(form),
        "crumbs": crumbs,
    }
    return rendered(admin, request, "operation", form.title, context)


def _perform(form: Chosen, log_failure: Callable[[Chosen, str], object]) -> str:
    try:
        return form.perform()
    except ERRORS as error:  # a part of it may have happened
        log_failure(form, f"ended by {type(error).__name__}")
        raise


def _said(form: Operation, done: str) -> str:
    said = capfirst(done) + form.quoted
    if form.found_at is None:
        return said
    return format_html('{}. <a href="{}">{}</a>', said, *form.found_at)

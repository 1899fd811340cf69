"""Settle rows such as parked events: by buttons on the page of a row, and with a page that confirms an action."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from enode_django.admin.auditing import REASON
from enode_django.admin.databases import PARAMETER, ByDatabase, within
from enode_django.admin.operating import CONFIRMED
from enode_django.admin.showing import rendered

if TYPE_CHECKING:
    from django.db.models import QuerySet

Action = Callable[[Any, HttpRequest, Any], None]
AskingAction = Callable[[Any, HttpRequest, Any], HttpResponse | None]

MOST_NAMED = 100
"""The most rows that a confirmation page names."""
SEEN = "seen"
"""The name of the form field with what a confirmation page says of each row that it names."""
GONE = "nothing was done: what you chose is gone"
ACROSS = "select_across"
"""The name of Django's form field that chooses all rows that the list finds."""


class Settling(ByDatabase):
    """Mixin for an admin class with actions for the permission ``settle``: the page of a row has ``buttons``, for users
    who have it. They call actions of the list with this row, and lead to the list."""

    change_form_template = "enode_django/admin/settling.html"
    buttons: ClassVar[Sequence[tuple[str, str]]]
    """Actions, each with the text of its button."""

    def has_settle_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"enode_django.change_{self.opts.model_name}"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        offered = self.offered()
        listing = reverse(f"{self._urls}_changelist")
        alias = request.GET.get(PARAMETER, offered[0])
        tools = {
            "buttons": self.buttons if self.has_settle_permission(request) else (),
            "actions_url": within(alias, listing, self.offered) if alias in offered else listing,
            "pk": unquote(object_id),
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **tools})

    def meant(self, request: HttpRequest, chosen: QuerySet[Any]) -> QuerySet[Any] | None:
        """Return the chosen rows that a confirmation page has shown or counted; None before that page. Leave out rows
        that are newer than the page, and, with a message, those of which it would say something else by now."""
        if CONFIRMED not in request.POST:
            return None
        changed: list[int] = []
        if SEEN in request.POST:  # otherwise a program asks
            try:
                last, shown = json.loads(request.POST[SEEN])
                chosen = chosen.filter(pk__lte=int(last))
                rows = chosen.filter(pk__in=[int(pk) for pk in shown])
                changed = [row.pk for row in rows if self._digest(row) != shown[str(row.pk)]]
            except (ValueError, TypeError, KeyError, RecursionError):
                return None
        meant = chosen.exclude(pk__in=changed)
        if changed:
            text = f"{len(changed)} of them changed after you were asked, and stay as they are: look at them again"
            self.message_user(request, text, messages.WARNING)
        elif not meant.exists():
            self.message_user(request, GONE, messages.WARNING)
        return meant

    def confirm(
        self, request: HttpRequest, chosen: QuerySet[Any], action: str, *, title: str, button: str, last: str
    ) -> HttpResponse | None:
        """Show the page of `confirmed`. Return None, with a message, if the rows are gone."""
        many, newest = chosen.count(), chosen.aggregate(newest=Max("pk"))["newest"]
        named = list(chosen[:MOST_NAMED])
        if not named:
            self.message_user(request, GONE, messages.WARNING)
            return None
        more = [f"The same happens to {many - MOST_NAMED:,} more."] if many > MOST_NAMED else []
        context = {
            "button": button,
            "action": action,
            "consequences": [*map(self.consequence_of, named), *more, last],
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "select_across": request.POST.get(ACROSS, "0"),
            "seen": json.dumps([newest, {row.pk: self._digest(row) for row in named}]),
            "reason": request.POST.get(REASON, ""),
            "confirmed": CONFIRMED,
            "back": request.get_full_path(),
        }
        return rendered(self, request, "confirming", title, context)

    def _digest(self, row: Any) -> str:
        return sha256(self.consequence_of(row).encode()).hexdigest()[:16]

    def consequence_of(self, row: Any) -> str:
        """Return a sentence about the effect of the confirmed action on the row."""
        raise NotImplementedError


def confirmed(*, title: str, button: str, last: str) -> Callable[[Action], AskingAction]:
    """Let an action of a `Settling` show a page first: with what it would do to each chosen row, by `consequence_of`,
    and with ``last``. The page posts `CONFIRMED`, and the action gets the rows of `Settling.meant`."""

    def decorate(action: Action) -> AskingAction:
        @wraps(action)
        def asking(admin: Any, request: HttpRequest, chosen: QuerySet[Any]) -> HttpResponse | None:
            meant = admin.meant(request, chosen)
            if meant is None:
                shown: HttpResponse | None = admin.confirm(
                    request, chosen, action.__name__, title=title, button=button, last=last
                )
                return shown
            if meant.exists():
                action(admin, request, meant)
            return None

        return asking

    return decorate

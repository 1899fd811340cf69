"""The audit trail in the admin: a list of all operator actions, and the history of one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import Listed, ModelAdmin, Pages, WithTexts, preformatted, rendered
from enode_django.models import OperatorAction
from enode_django.operating.actions import LONGEST_OBJECT, LONGEST_REASON, Done, record

if TYPE_CHECKING:
    from django.db.models import Model
    from django.utils.safestring import SafeString

REASON = "reason"
"""The name of the form field for the reason of an action."""
MOST_SHOWN = 200
_DRILL_DOWN = ("happened_at__year", "happened_at__month", "happened_at__day")


class ReasonForm(ActionForm):
    """The form for the actions of a list, with a reason."""

    reason = forms.CharField(
        label="Reason:", required=False, max_length=LONGEST_REASON, widget=forms.TextInput(attrs={"size": 30})
    )


class Audited(Pages):
    """Mixin for an admin class: the history of an object shows its operator actions, also when the object is gone.
    `done` adds one."""

    action_form = ReasonForm

    def object_id_of(self, row: Any) -> str:
        """Return the id that all rows of one object share, such as an aggregate's id; by default the primary key."""
        return str(row.pk)

    def name_of_gone(self, actions: Iterable[OperatorAction]) -> str:
        """Return the name of an object without a row, from its actions (at least one)."""
        return f"{self.opts.verbose_name} {next(iter(actions)).object_id}"

    def done(self, request: HttpRequest, row: Model, action: str, details: str) -> None:
        """Store an action of the request's user on an object, with the posted reason. Add it to Django's log, too."""
        self.log_change(request, row, details)
        self.failed(request, row, action, details)

    def failed(self, request: HttpRequest, row: Model, action: str, details: str) -> None:
        """Store an action that ended with an error in the audit trail. Unlike `done`, add nothing to Django's log."""
        audit(request, row, action, details, object_id=self.object_id_of(row))

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for row in queryset:
            audit(request, row, "delete", str(row), object_id=self.object_id_of(row))
        return super().log_deletions(request, queryset)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        if "\0" in unquote(object_id):
            raise Http404("no object has this key")
        row = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        # The row of another database may have the same key, so a row is known by its object.
        of_object = (
            {"row": unquote(object_id)} if row is None else {"object_id": self.object_id_of(row)[:LONGEST_OBJECT]}
        )
        found = OperatorAction.objects.filter(**of_object, object_type=self.opts.label_lower).order_by("-pk")
        actions = found[:MOST_SHOWN]
        gone = self.name_of_gone(actions) if actions else f"{self.opts.verbose_name} {unquote(object_id)}"
        context = {"object": row, "actions": actions, **(extra_context or {})}
        return rendered(self, request, "history", f"Operator actions: {row or gone}", context)


def audit(request: HttpRequest, row: Model, action: str, details: str, *, object_id: str) -> None:
    """Store an action of the request's user on an object, with the posted reason. Blocks."""
    kind, reason = row._meta.label_lower, request.POST.get(REASON, "").replace("\0", "").strip()
    pk = "" if row.pk is None else str(row.pk)[:100]
    record(
        request.user.get_username(),
        OperatorAction.Source.ADMIN,
        Done(action, kind, object_id, details=details, reason=reason, row=pk),
    )


@admin.register(OperatorAction)
class OperatorActionAdmin(WithMoments, Listed, WithTexts, ModelAdmin):
    """Read-only for everybody."""

    when_empty = "No operator has done anything yet, in the admin or by a management command."
    list_display = ("happened_at", "operator", "action", "object_type", "object_id", "reason")
    list_filter = ("source", "action", "object_type")
    date_hierarchy = "happened_at"
    search_fields = ("object_id__exact", "operator__exact", "details__contains")
    search_help_text = "a whole id or name of an object, the whole name of an operator, or a text in the details"
    ordering = ("-id",)
    fields = (
        "happened_at",
        "operator",
        "source",
        "action",
        "object_type",
        "object_id",
        "row",
        "shown_details",
        "reason",
    )
    labels = {"row": "primary key of the object"}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup in _DRILL_DOWN or super().lookup_allowed(lookup, value, request)

    @admin.display(description="details")
    def shown_details(self, action: OperatorAction) -> SafeString:
        return preformatted(action.details or "-")

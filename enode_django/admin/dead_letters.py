"""Dead letters of commands in the admin: view, send again, discard and answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils.safestring import SafeString

from enode_django.admin.auditing import Audited
from enode_django.admin.databases import ShardFilter, shards
from enode_django.admin.linking import WithLinks, link, may_open
from enode_django.admin.moments import WithMoments
from enode_django.admin.settling import Settling, confirmed
from enode_django.admin.showing import VIEW_PAYLOAD, ModelAdmin, NamedValues, WithError, page_at
from enode_django.exceptions import ConfigurationError, EnodeError
from enode_django.models import DeadLetter

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from enode_django.operating.dead_letters import Portion

    Letters = QuerySet[Any]


@admin.register(DeadLetter)
class DeadLetterAdmin(WithMoments, WithLinks, Settling, Audited, WithError, ModelAdmin):
    """Users with ``change_deadletter`` send letters again and discard them; with ``view_payload``, too, they send a new
    command like the one in a letter."""

    offered = staticmethod(shards)
    when_empty = "There are no dead letters of commands here. Those of your own consumers are under Topics and queues."
    list_display = ("__str__", "aggregate_root_id", "attempts", "last_failed_at", "stored")
    list_filter = (ShardFilter, ("command_type", NamedValues), ("error_type", NamedValues))
    search_fields = ("aggregate_root_id__exact", "command_id__exact")
    search_help_text = "a whole aggregate root id or command id"
    ordering = ("-last_failed_at",)
    show_full_result_count = True
    fields = (
        "command_type",
        "command_id",
        "aggregate_root_id",
        "place",
        "attempts",
        "first_failed_at",
        "last_failed_at",
        "answered",
        "stored_since",
        "error_type",
        "shown_error",
    )
    actions = ("requeue", "discard")
    buttons = (("requeue", "Send again"), ("discard", "Discard …"))

    def get_urls(self) -> list[URLPattern]:
        route = "<path:object_id>/command/"
        return [page_at(self, route, self.new_command, "command", self.may_answer), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> Letters:
        from enode_django.operating.dead_letters import letters_in  # see the package

        return letters_in(super().get_queryset(request).db).defer("body", "error")  # a list could load megabytes

    def get_fields(self, request: HttpRequest, obj: DeadLetter | None = None) -> tuple[str, ...]:
        from enode_django.admin.new_commands import cause_in

        more = ["message"] if request.user.has_perm(VIEW_PAYLOAD) else []
        if self.may_answer(request) and obj is not None and cause_in(bytes(obj.body)):
            more.append("answering")
        names = [*super().get_fields(request, obj), *more]
        may_read = request.user.has_perm(VIEW_PAYLOAD) and may_open(request, "enode_django.view_topic")
        return tuple("linked_place" if name == "place" and may_read else name for name in names)

    def object_id_of(self, row: DeadLetter) -> str:
        return row.command_id or row.key

    @admin.display(description="place")
    def place(self, letter: DeadLetter) -> str:
        return f"queue {letter.queue} of {letter.topic}, offset {letter.message_offset}"

    @admin.display(description="place")
    def linked_place(self, letter: DeadLetter) -> SafeString:
        address = [quote(letter.topic), letter.queue, letter.message_offset]
        return link(reverse("admin:enode_django_topic_message", args=address), self.place(letter))

    @admin.display(description="stored since")
    def stored(self, letter: Any) -> str:
        """Return yes if the command came again and has a stored outcome: sending it again changes nothing."""
        return "yes" if letter.is_stored else "no"

    @admin.display(description="stored since")
    def stored_since(self, letter: Any) -> str:
        what = ": the command took effect or was refused after all. Sent again, it changes nothing."
        return self.stored(letter) + (what if letter.is_stored else "")

    @admin.display(description="answered")
    def answered(self, letter: Any) -> str:
        from enode_django.operating.dead_letters import is_told

        return (
            "yes: its sender was told that it failed"
            if is_told(letter)
            else "no: its sender was not told that it failed"
        )

    @admin.display(description="message")
    def message(self, letter: DeadLetter) -> SafeString:
        from enode_django.admin.readable import preformatted_message

        return preformatted_message(bytes(letter.body))

    @admin.display(description="answer")
    def answering(self, letter: DeadLetter) -> SafeString:
        return link(self.url_of(letter, "command"), "Send a new command like it")

    def may_answer(self, request: HttpRequest) -> bool:
        return self.has_settle_permission(request) and bool(request.user.has_perm(VIEW_PAYLOAD))

    def new_command(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Prepare and send a new command with the fields of the letter's command, which the user may correct. The
        letter stays until it is discarded."""
        from enode_django.admin.new_commands import cause_in, new_command

        letter = self.get_object(request, unquote(object_id))
        cause = cause_in(bytes(letter.body)) if letter is not None else None
        if letter is None or cause is None:
            raise Http404("no dead letter has this number, or it holds no command; it may have been settled meanwhile")
        back = self.url_of(letter)
        crumbs = [(self.list_url_of(letter), "Dead letters"), (back, str(letter))]
        cause = cause._replace(stays="The dead letter")
        return new_command(self, request, letter, cause, back=back, crumbs=crumbs)

    @admin.action(description="Send again, and delete the letters", permissions=["settle"])
    def requeue(self, request: HttpRequest, chosen: Letters) -> None:
        from enode_django.operating.dead_letters import requeue_in
        from enode_django.runtime import make_transport

        try:
            transport = make_transport()
        except ConfigurationError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        with closing(transport):
            self._settle(request, chosen, "requeue", "sent again", lambda alias, pks: requeue_in(transport, alias, pks))

    @admin.action(description="Discard for good", permissions=["settle"])
    @confirmed(title="Discard dead letters", button="Discard", last="This cannot be undone.")
    def discard(self, request: HttpRequest, chosen: Letters) -> None:
        from enode_django.operating.dead_letters import discard_in

        self._settle(request, chosen, "discard", "discarded", discard_in)

    def consequence_of(self, row: Any) -> str:
        what = "Its command took effect or was refused after all." if row.is_stored else "It is never handled."
        return f"The dead letter {row} is deleted. {what}"

    def _settle(
        self,
        request: HttpRequest,
        chosen: Letters,
        action: str,
        done: str,
        settle: Callable[[str, Sequence[int]], Iterator[Portion]],
    ) -> None:
        """Settle the chosen letters. Log those of each portion when they are gone: an error in the next one, or the
        loss of the database, takes nothing back."""
        letters, settled = {letter.pk: letter for letter in chosen}, 0
        try:
            for many, gone in settle(chosen.db, list(letters)):
                settled += many
                for pk in gone:
                    self.done(request, letters[pk], action, done)
        except EnodeError as error:
            self.message_user(request, f"{error}; what is left here can be {done} once more", messages.ERROR)
        else:
            self.message_user(request, f"{settled} of {len(letters)} dead letters were {done}", messages.SUCCESS)

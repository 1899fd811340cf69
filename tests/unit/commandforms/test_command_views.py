"""Behaviour of views that the counter of the sample's bank does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpResponse
from django.test import RequestFactory

from enode_django import CommandResult, CommandStatus, WaitFor, execute_command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandTimeout, StoreUnavailable, TransportUnavailable
from enode_django.forms import CommandForm
from enode_django.runtime import use_bus
from enode_django.testing import inline
from enode_django.testing.inline import InlineCommandBus
from enode_django.views import CommandView
from tests.unit.commandforms.domain import Fill, Take

ROOT = User(username="root", is_superuser=True, is_active=True)


class Page(CommandView):
    """Shows the form alone."""

    def render_to_response(self, context: dict[str, Any], **options: Any) -> HttpResponse:
        return HttpResponse(str(context["form"]), **options)


class TakePage(Page):
    command = Take
    fields = ("coins",)
    success_url = "/jars/{aggregate_root_id}/"

    def get_command_values(self) -> dict[str, Any]:
        return {"who": self.request.GET.get("who", "")}


class FillPage(TakePage):
    command = Fill

    def get_command_values(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def bus() -> Iterator[InlineCommandBus]:
    with inline(MemoryEventStore()) as bus:
        execute_command(Fill("jar", coins=10))
        yield bus


def answer(page: Any, sent: dict[str, str] | None = None, user: Any = ROOT, query: str = "", **arguments: str) -> Any:
    factory = RequestFactory()
    request = factory.get(f"/{query}") if sent is None else factory.post(f"/{query}", sent)
    request.user = user
    return page.as_view()(request, **arguments)


def test_a_command_is_in_no_transaction_of_the_request_and_its_page_in_no_cache(bus: InlineCommandBus) -> None:
    assert "default" in TakePage.as_view()._non_atomic_requests
    assert "no-store" in answer(TakePage)["Cache-Control"]


def test_the_class_of_commands_is_enough(bus: InlineCommandBus) -> None:
    page = answer(TakePage, aggregate_root_id="jar").content.decode()
    assert 'name="coins"' in page
    assert 'name="who"' not in page
    done = answer(TakePage, {"coins": "3"}, aggregate_root_id="jar")
    assert (done.status_code, done["Location"]) == (302, "/jars/jar/")


def test_the_address_of_what_is_new_is_known_and_stays_an_address(bus: InlineCommandBus) -> None:
    done = answer(FillPage, {"coins": "3"})
    assert done["Location"] == f"/jars/{bus.results[-1].aggregate_root_id}/"
    odd = answer(FillPage, {"coins": "3"}, aggregate_root_id="//evil.example/\r\n?x")
    assert odd["Location"] == "/jars/%2F%2Fevil.example%2F%0D%0A%3Fx/"


def test_a_page_without_a_command_says_so() -> None:
    with pytest.raises(ImproperlyConfigured, match="Page needs a command, or a form_class"):
        answer(Page)


def test_a_page_that_leads_nowhere_says_so_before_its_command_takes_effect(bus: InlineCommandBus) -> None:
    class Nowhere(TakePage):
        success_url = None

    with pytest.raises(ImproperlyConfigured, match="Nowhere has no address to go to after its command"):
        answer(Nowhere, {"coins": "3"}, aggregate_root_id="jar")
    assert len(bus.results) == 1  # of the fixture


def test_an_error_of_the_code_is_told_as_one_without_its_text(bus: InlineCommandBus) -> None:
    broken = answer(TakePage, {"coins": "1"}, query="?who=bug", aggregate_root_id="jar")
    assert broken.status_code == 500
    assert "An error kept this from being done." in broken.content.decode()
    assert "secret" not in broken.content.decode()


def test_an_id_that_can_be_none_is_not_found(bus: InlineCommandBus) -> None:
    for id in ("", "x" * 256, "a\0"):
        with pytest.raises(Http404):
            answer(TakePage, aggregate_root_id=id)


class Guarded(TakePage):
    permission_required = ("jars.open", "jars.take")


class Knows:
    """Somebody who is logged in, with these permissions."""

    is_authenticated = True

    def __init__(self, *permissions: str) -> None:
        self.permissions = set(permissions)

    def has_perms(self, needed: Iterable[str]) -> bool:
        return self.permissions.issuperset(needed)


def test_every_permission_is_needed(bus: InlineCommandBus) -> None:
    assert answer(Guarded, user=Knows("jars.open", "jars.take"), aggregate_root_id="jar").status_code == 200
    with pytest.raises(PermissionDenied):
        answer(Guarded, {"coins": "3"}, user=Knows("jars.open"), aggregate_root_id="jar")
    asked = answer(Guarded, {"coins": "3"}, user=AnonymousUser(), aggregate_root_id="jar")
    assert asked["Location"] == "/accounts/login/?next=/"
    assert len(bus.results) == 1


def test_being_logged_in_is_needed_at_least(bus: InlineCommandBus) -> None:
    assert answer(TakePage, user=AnonymousUser(), aggregate_root_id="jar").status_code == 302
    assert answer(TakePage, user=Knows(), aggregate_root_id="jar").status_code == 200


class Asked(InlineCommandBus):
    """Records its options. Its commands are executed, but not handled in time."""

    def __init__(self) -> None:
        self.options: tuple[Any, ...] = ()

    def execute(self, command: Any, *options: Any) -> Any:
        self.options = options
        raise CommandTimeout("late", executed=CommandResult.__new__(CommandResult), missing=("bank.Ledger",))


def test_a_command_that_is_done_but_not_shown_yet_says_so(bus: InlineCommandBus) -> None:
    class Patient(TakePage):
        wait_for = WaitFor.HANDLED
        timeout = 2.5

    with use_bus(asked := Asked()):
        late = answer(Patient, {"coins": "3"}, aggregate_root_id="jar")
    assert late.status_code == 504
    assert "This is done, but not everything shows it yet." in late.content.decode()
    assert asked.options[0] == 2.5
    assert asked.options[1] is not None


class Away(InlineCommandBus):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def execute(self, *arguments: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [TransportUnavailable("away"), StoreUnavailable("away")])
def test_the_form_is_shown_again_while_the_queue_or_the_store_is_away(error: Exception) -> None:
    with use_bus(Away(error)):
        away = answer(TakePage, {"coins": "3"}, aggregate_root_id="jar")
    assert away.status_code == 503
    assert away["Retry-After"] == "5"
    assert "Send it again soon." in away.content.decode()
    assert 'value="3"' in away.content.decode()


class Parked(InlineCommandBus):
    """A subscriber has parked the aggregate of each command."""

    def __init__(self) -> None: ...

    def execute(self, command: Any, *options: Any) -> Any:
        return CommandResult(
            status=CommandStatus.SUCCESS,
            command_id=command.id,
            aggregate_root_id=command.aggregate_root_id,
            version=2,
            parked=("bank.Ledger",),
        )


def test_a_page_may_say_that_what_it_did_will_not_be_shown(bus: InlineCommandBus) -> None:
    class Saying(TakePage):
        def command_parked(self, form: CommandForm, result: CommandResult) -> HttpResponse:
            assert self.result is result
            return HttpResponse(f"parked by {', '.join(result.parked)}")

    assert answer(Saying, {"coins": "3"}, aggregate_root_id="jar").status_code == 302
    with use_bus(Parked()):
        assert answer(Saying, {"coins": "3"}, aggregate_root_id="jar").content == b"parked by bank.Ledger"


def test_a_page_that_does_not_ask_for_it_treats_what_is_parked_as_done(bus: InlineCommandBus) -> None:
    class Done(TakePage):
        def command_done(self, form: CommandForm, result: CommandResult) -> HttpResponse:
            return HttpResponse("done", status=201)

    with use_bus(Parked()):
        assert answer(TakePage, {"coins": "3"}, aggregate_root_id="jar")["Location"] == "/jars/jar/"
        assert answer(Done, {"coins": "3"}, aggregate_root_id="jar").status_code == 201


def test_a_version_is_expected_of_a_row_only() -> None:
    request = RequestFactory().get("/")
    request.user = ROOT
    with pytest.raises(ImproperlyConfigured, match=r"Expecting expects a version, but has no model"):
        Expecting.as_view()(request, aggregate_root_id="jar")


class Expecting(TakePage):
    expects_version = True

"""The page on operating names the permission for each page and action, and `manage.py enode groups` grants them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from itertools import product
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now
from django.test import Client, RequestFactory, override_settings
from django.urls import resolve

from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.state_types import FORMAT
from enode_django.eventstore.dead_letters import DeadLetter as Letter
from enode_django.eventstore.dead_letters import PostgresDeadLetters
from enode_django.management.subcommands.groups import LOOKS, ON_CALL, ON_CALL_PERMISSIONS
from enode_django.models import (
    DeadLetter,
    EventStream,
    GenerationCheck,
    Job,
    OutboxCommand,
    ParkedEvent,
    ProcessState,
    Rebuild,
    ScheduledCommand,
)
from enode_django.serialization.codec import encode_command
from enode_django.serialization.plain import pack
from sample_project.bank.domain import Deposit
from tests.admin.people import without_times
from tests.admin.test_jobs import make_job, make_rebuild
from tests.admin.test_new_commands import park
from tests.admin.users import client_of
from tests.docs.pages import DOCS, tables_of
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db

PAGE = DOCS / "howto" / "operate.md"
ADMIN = "/admin/enode_django/"
COMMAND = encode_command(Deposit("a", amount=Decimal("2.50"), id="deposit-2"), b"")
_memory = MemoryTransport()

Probe = Callable[[Client], bool]


def shared_memory(location: str) -> MemoryTransport:
    return _memory


@pytest.fixture
def stored(streams: Sequence[EventStream], settings: Any) -> Iterator[None]:
    """Something for every page."""
    global _memory
    _memory = MemoryTransport()
    _memory.create_topic("orders", 1)
    _memory.send("orders", {0: [COMMAND]})
    _memory.create_topic("dead.billing", 1)
    _memory.send(
        "dead.billing", {0: [encode_failed(Failed(Message("orders", 0, 0, COMMAND, 3), "KeyError: 1", 1e9, 0.0))]}
    )
    PostgresDeadLetters().keep(
        [Letter("key", "deposit-2", "a", "bank.Deposit", "commands", 0, 7, "KeyError", "KeyError: 1", COMMAND, False)]
    )
    DeadLetter.objects.update(first_failed_at=datetime(2026, 3, 1, 20, 51, 42, 501938, UTC))  # contains 2.50, too
    body = encode_command(Deposit("a", amount=Decimal("7.25"), id="deposit-3"), b"")
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="deposit-3", body=body)
    state = FORMAT + pack({"price": 9})
    ProcessState.objects.create(subscriber="bank.transfers", key="t", state=state, started_at=Now())
    ScheduledCommand.objects.create(aggregate_root_id="a", command_id="deposit-3", body=body, due_at=Now())
    park("deposit-1", 2, "a")
    make_job("failed"), make_job("running"), make_rebuild()
    GenerationCheck.objects.create(
        **{"subscriber": "bank.Ledger", "shard": 0, "aggregate_root_id": "a", "generation": 1},
        **{"stored_version": 1, "handled_version": 2, "taken_back": False},
    )
    queue = {"BACKEND": f"{__name__}.shared_memory"}
    with override_settings(ENODE={**REAL_QUEUE, "QUEUE": queue, "JOBS": {"EXPORT_DIRECTORIES": ["/archive"]}}):
        yield


def opens(path: str) -> Probe:
    """Return a probe that is True if the page answers."""

    def probe(client: Client) -> bool:
        status = client.get(ADMIN + _with_keys(path)).status_code
        assert status in (200, 403), (path, status)
        return status == 200

    return probe


def offers(path: str, action: str) -> Probe:
    """Return a probe that is True if the client may see the list and the list offers the action."""

    def probe(client: Client) -> bool:
        response = client.get(ADMIN + path)
        return response.status_code == 200 and f'<option value="{action}"' in response.content.decode()

    return probe


def shows(path: str, text: str) -> Probe:
    """Return a probe that is True if the client may open the page and the page shows the text, other than in a
    time."""

    def probe(client: Client) -> bool:
        response = client.get(ADMIN + _with_keys(path))
        return response.status_code == 200 and text in without_times(html.unescape(response.content.decode()))

    return probe


def _with_keys(path: str) -> str:
    """Put the keys of the rows in."""
    models = {
        "parked": ParkedEvent,
        "letter": DeadLetter,
        "stream": EventStream,
        "rebuild": Rebuild,
        "waiting": OutboxCommand,
        "process": ProcessState,
        "scheduled": ScheduledCommand,
    }
    keys = {name: model.objects.order_by("pk").values_list("pk", flat=True).first() for name, model in models.items()}
    return path.format(**keys, failed=Job.objects.filter(state="failed").values_list("pk", flat=True).first())


PROBES: dict[str, Probe] = {
    "*Dashboard*": opens("processorreport/"),
    "*Event streams*: lists, envelopes, aggregates": opens("eventstream/"),
    "*Event streams*: events, states, differences, causation": opens("eventstream/aggregates/a/state/?version=1"),
    "*Subscribers*": opens("subscriber/"),
    "*Dead letters*": opens("deadletter/{letter}/change/"),
    "*Send again*, *Discard*": offers("deadletter/", "requeue"),
    "the message of a dead letter": shows("deadletter/{letter}/change/", "2.50"),
    "*Send a new command like it*": opens("deadletter/{letter}/command/"),
    "*Outbox*": opens("outboxcommand/{waiting}/change/"),
    "*Send again what was rejected*, *Discard for good*": offers("outboxcommand/", "discard"),
    "the message of a command in the outbox": shows("outboxcommand/{waiting}/change/", "7.25"),
    "*Scheduled commands*": opens("scheduledcommand/{scheduled}/change/"),
    "*Fire now*, *Cancel for good*": offers("scheduledcommand/", "cancel"),
    "the message of a scheduled command": shows("scheduledcommand/{scheduled}/change/", "7.25"),
    "*Parked events*": opens("parkedevent/{parked}/change/"),
    "*Retry*, *Skip*": offers("parkedevent/", "skip"),
    "*Send a new command*": opens("parkedevent/{parked}/command/"),
    "*Correct the events*": opens("parkedevent/{parked}/correct/"),
    "what an error says": shows("parkedevent/{parked}/change/", "<script>alert(1)</script>"),
    "*Unique values*": opens("uniquevalue/"),
    "*Erased events*": opens("generationcheck/"),
    "their deletion": offers("generationcheck/", "delete_selected"),
    "*Process states*": opens("processstate/{process}/change/"),
    "the state of a process": shows("processstate/{process}/change/", '"price": 9'),
    "*Jobs*": opens("job/"),
    "*Make snapshots*, *Rebuild a projection*": opens("job/start/rebuild/"),
    "*Export events*": opens("job/start/export/"),
    "*Cancel*": offers("job/", "cancel"),
    "the deletion of jobs that have ended": opens("job/{failed}/delete/"),
    "*Rebuilds*": opens("rebuild/{rebuild}/change/"),
    "*Put back the former tables*": opens("rebuild/{rebuild}/undo/"),
    "*Operator actions*": opens("operatoraction/"),
    "*Topics and queues*": opens("topic/orders/change/"),
    "all that these pages can change": opens("topic/orders/operate/pause/"),
    "messages of a queue": opens("topic/orders/messages/0/0/"),
    "a new command like the one in a message": opens("topic/orders/messages/0/0/command/"),
}


def table() -> dict[str, list[set[str]]]:
    """The alternatives of permissions that the page names, by what they open."""
    section = PAGE.read_text().split("\n## Who may do what\n")[1].split("\n## ")[0]
    rows = next(tables_of(section))
    return {row[0]: [set(re.findall(r"`(\w+)`", one)) for one in row[1].split(", or ")] for row in rows}


def names() -> set[str]:
    return set(Permission.objects.filter(content_type__app_label="enode_django").values_list("codename", flat=True))


def test_the_table_is_of_everything_that_can_be_opened_and_names_permissions_that_are_there() -> None:
    assert table().keys() == PROBES.keys()
    assert set().union(*(one for alternatives in table().values() for one in alternatives)) <= names()
    pages = {title.lower() for title in re.findall(r"\*([^*]+)\*", "\n".join(table()))} | {"processor reports"}
    models = [one.model for one in ours()]
    assert len(models) >= 9
    assert {str(model._meta.verbose_name_plural) for model in models} - pages == set()


@pytest.mark.usefixtures("stored")
def test_the_permissions_of_the_table_open_it_and_all_others_do_not() -> None:
    every, rows, found = names(), table(), []
    for what, probe in PROBES.items():
        for enough in rows[what]:
            if not probe(client_of(*enough)):
                found.append(f"{sorted(enough)} do not open {what}")
        for lacking in {frozenset(one) for one in product(*rows[what])}:
            if probe(client_of(*every - lacking)):
                found.append(f"{what} is open without {sorted(lacking)}")
    assert found == []


PARTS = {"quoted_id": "a", "kind": "rebuild", "name": "pause", "queue": "0", "offset": "0"}
"""Parts of addresses other than the key of a row."""
LEAD_ELSEWHERE = ("<path:object_id>/", "<path:object_id>/history/")
"""Django's redirect to the page of a row, and from the history of a row that is not there."""


def ours() -> Iterator[Any]:
    """The admin classes of the app."""
    yield from (one for model, one in admin.site._registry.items() if model._meta.app_label == "enode_django")


def addresses() -> Iterator[tuple[str, str]]:
    """The route and an address of each page of the app."""
    for one in ours():
        name, parts = one.opts.model_name, dict(PARTS)
        for route in [str(pattern.pattern) for pattern in one.get_urls()]:
            if "object_id" in route and "object_id" not in parts:
                key = "orders" if name == "topic" else one.model._base_manager.values_list("pk", flat=True).first()
                parts["object_id"] = str(key or 1)
            yield route, f"{ADMIN}{name}/" + re.sub(r"<[a-z]+:([a-z_]+)>", lambda part: parts[part[1]], route)  # noqa: B023


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("method", ["get", "post"])
def test_no_address_answers_a_user_without_permissions(method: str) -> None:
    client, found = client_of(), []
    for route, url in addresses():
        with transaction.atomic():
            status = getattr(client, method)(url).status_code
            transaction.set_rollback(True)
        if status != 403 and (status == 200 or route not in LEAD_ELSEWHERE):
            found.append((url, status))
    assert found == []


def test_lists_refuse_users_without_permissions_wherever_they_are_called() -> None:
    request = RequestFactory().get("/")
    request.user = User.objects.create_user("member", is_staff=True)
    for one in ours():
        with pytest.raises(PermissionDenied):
            one.changelist_view(request)


@pytest.mark.parametrize("page", ["progress", "start/rebuild"])
def test_the_function_behind_an_address_has_the_name_of_its_view(page: str) -> None:
    """Django's documentation of views lists them by it, and decorators leave their marks there."""
    assert resolve(f"{ADMIN}job/{page}/").func.__name__ == page.partition("/")[0]


def made() -> str:
    written = StringIO()
    call_command("enode", "groups", stdout=written)
    return written.getvalue()


def permissions_of(group: str) -> set[str]:
    return set(Group.objects.get(name=group).permissions.values_list("codename", flat=True))


def test_the_groups_look_and_act_and_neither_reads_contents() -> None:
    assert f"{LOOKS} has " in made()
    looks, on_call = permissions_of(LOOKS), permissions_of(ON_CALL)
    assert looks == {name for name in names() if name.startswith("view_")} - {"view_payload"}
    assert on_call == looks | set(ON_CALL_PERMISSIONS)


def test_groups_get_what_they_lack_and_keep_what_else_they_have() -> None:
    made()
    group = Group.objects.get(name=LOOKS)
    group.permissions.add(Permission.objects.get(codename="view_payload"))
    group.permissions.remove(Permission.objects.get(codename="view_job"))
    assert "1 of them new" in made()
    assert {"view_payload", "view_job"} <= permissions_of(LOOKS)
    assert made().count(" 0 of them new") == 2


def test_the_groups_wait_for_migrate() -> None:
    Permission.objects.filter(codename="change_topic").delete()
    with pytest.raises(CommandError, match=r"\['change_topic'\]; run manage.py migrate first"):
        made()
    assert not Group.objects.filter(name=ON_CALL).exists()


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("group", [LOOKS, ON_CALL])
def test_no_link_that_a_member_sees_is_refused(group: str) -> None:
    made()
    client = Client()
    user = User.objects.create_user("member", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client.force_login(user)
    seen, waiting = {"/admin/"}, ["/admin/"]
    while waiting:
        url = waiting.pop()
        response = client.get(url)
        assert response.status_code == 200, url
        links = {html.unescape(link) for link in re.findall(r'href="(/admin/enode_django/[^"#]*)', _text(response))}
        waiting += sorted(links - seen)
        seen |= links
    lists = {
        f"{ADMIN}{model._meta.model_name}/" for model in admin.site._registry if "enode_django" in model.__module__
    }
    assert lists <= seen


def _text(response: Any) -> str:
    return response.content.decode() if response["Content-Type"].startswith("text/html") else ""

"""Dead letters of commands in the admin."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.http import HttpResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from enode_django.admin.operating import CONFIRMED
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.dead_letters import DeadLetter as Letter
from enode_django.eventstore.dead_letters import PostgresDeadLetters, key_of
from enode_django.ids import new_id
from enode_django.models import DeadLetter, OperatorAction
from enode_django.serialization.codec import encode_command
from sample_project.bank.domain import Deposit
from tests.admin.people import HOSTILE, logged_in, without_times
from tests.services import REAL_QUEUE

pytestmark = pytest.mark.django_db
LIST = "/admin/enode_django/deadletter/"

_memory: MemoryTransport | None = None


def shared_memory(location: str) -> MemoryTransport:
    assert _memory is not None
    return _memory


@pytest.fixture
def queue() -> Iterator[MemoryTransport]:
    """Yield the transport that the settings of the test name."""
    global _memory
    _memory = MemoryTransport()
    _memory.create_topic("commands", 1)
    with override_settings(
        ENODE={**REAL_QUEUE, "QUEUE": {"BACKEND": f"{__name__}.shared_memory", "QUEUES_PER_TOPIC": 1}}
    ):
        yield _memory
    _memory = None


def keep(command_type: str, error_type: str, body: bytes, id: str = "") -> DeadLetter:
    text = f"Traceback (most recent call last):\n{error_type}: {HOSTILE}"
    key = key_of(id, "ada", body)
    PostgresDeadLetters().keep([Letter(key, id, "ada", command_type, "commands", 0, 7, error_type, text, body, False)])
    return DeadLetter.objects.get(key=key)


@pytest.fixture
def deposit() -> DeadLetter:
    command = Deposit("ada", amount=Decimal("2.50"))
    return keep("bank.Deposit", "KeyError", encode_command(command, b""), command.id)


@pytest.fixture
def garbage() -> DeadLetter:
    return keep("", "MalformedMessage", b"\xff\x00")


def page(letter: DeadLetter, name: str = "change") -> str:
    return reverse(f"admin:enode_django_deadletter_{name}", args=[letter.pk])


def act(client: Client, action: str, *letters: DeadLetter, confirmed: bool = True, **more: str) -> str:
    chosen = {"action": action, "_selected_action": [letter.pk for letter in letters]}
    confirmation = {CONFIRMED: "yes"} if confirmed else {}
    return html.unescape(client.post(LIST, {**chosen, **confirmation, **more}, follow=True).content.decode())


def click(client: Client, page: str, button: str) -> HttpResponse:
    """Send the page's form with the actions, by the button with this text."""
    (form,) = re.findall(r'<form method="post" action="([^"]+)" class="enode-settling">.*?</form>', page, re.DOTALL)
    (action,) = re.findall(rf'name="action" value="(\w+)">{button}<', page)
    (pk,) = re.findall(r'name="_selected_action" value="(\d+)"', page)
    data = {"action": action, "_selected_action": pk, "reason": "by its page"}
    response: HttpResponse = client.post(html.unescape(form), data, follow=True)
    return response


def test_letters_are_listed_by_kind_and_found_by_id(client: Client, deposit: DeadLetter, garbage: DeadLetter) -> None:
    logged_in(client, "view_deadletter")
    assert client.get(LIST).context["cl"].result_count == 2
    assert [row.pk for row in client.get(LIST, {"error_type": "KeyError"}).context["cl"].result_list] == [deposit.pk]
    assert [row.pk for row in client.get(LIST, {"q": deposit.command_id}).context["cl"].result_list] == [deposit.pk]
    text = client.get(LIST).content.decode()
    assert HOSTILE not in text


def test_the_list_leaves_messages_and_errors_in_the_database(
    client: Client, deposit: DeadLetter, garbage: DeadLetter
) -> None:
    logged_in(client, "view_deadletter")
    with CaptureQueriesContext(connection) as queries:
        assert client.get(LIST).context["cl"].result_count == 2
    asked = [query["sql"] for query in queries if 'FROM "enode_django_deadletter"' in query["sql"]]
    assert asked
    assert not [sql for sql in asked if '."body"' in sql or '."error"' in sql]


def test_errors_and_messages_are_for_those_who_may_see_contents(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "view_deadletter")
    text = client.get(page(deposit)).content.decode()
    assert "KeyError" in text
    assert "Traceback" not in text
    assert "2.50" not in without_times(text)


def test_a_letter_is_shown_decoded_with_its_traceback(client: Client, deposit: DeadLetter, garbage: DeadLetter) -> None:
    logged_in(client, "view_deadletter", "view_payload")
    text = client.get(page(deposit)).content.decode()
    assert HOSTILE not in text
    assert HOSTILE in html.unescape(text)
    assert "Traceback" in text
    assert "2.50" in text
    assert "ff 00" in client.get(page(garbage)).content.decode()


def test_letters_are_sent_again_from_the_list(
    client: Client, queue: MemoryTransport, deposit: DeadLetter, garbage: DeadLetter
) -> None:
    logged_in(client, "change_deadletter")
    assert "1 of 1 dead letters were sent again" in act(client, "requeue", deposit)
    (batch,) = queue.pull("commands", {0: 0}, limit=9, wait=0)
    assert [bytes(body) for body in batch.bodies] == [bytes(deposit.body)]
    assert [letter.pk for letter in DeadLetter.objects.all()] == [garbage.pk]
    assert LogEntry.objects.get().object_id == str(deposit.pk)


def test_letters_are_discarded_from_the_list(client: Client, deposit: DeadLetter, garbage: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    assert "2 of 2 dead letters were discarded" in act(client, "discard", deposit, garbage)
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 2


def test_discarding_is_confirmed_and_says_what_it_does(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    asked = act(client, "discard", deposit, confirmed=False)
    assert f"The dead letter {deposit} is deleted. It is never handled." in asked
    assert f'name="{CONFIRMED}" value="Discard"' in asked
    assert DeadLetter.objects.exists()


def test_the_confirmation_of_all_letters_is_of_all_and_names_some(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr("enode_django.admin.settling.MOST_NAMED", 2)
    logged_in(client, "change_deadletter")
    letters = [keep("", "MalformedMessage", bytes([number])) for number in range(5)]
    data = {"action": "discard", "_selected_action": letters[0].pk, "select_across": "1"}
    asked = client.post(LIST, data).content.decode()
    assert asked.count("is deleted") == 2
    assert "The same happens to 3 more." in asked
    assert 'name="select_across" value="1"' in asked
    client.post(LIST, {**data, CONFIRMED: "yes"})
    assert not DeadLetter.objects.exists()


def test_a_letter_is_sent_again_from_its_page(client: Client, queue: MemoryTransport, deposit: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    response = click(client, client.get(page(deposit)).content.decode(), "Send again")
    assert response.request["PATH_INFO"] == LIST  # type: ignore[attr-defined]
    assert "1 of 1 dead letters were sent again" in response.content.decode()
    assert not DeadLetter.objects.exists()
    assert OperatorAction.objects.get().reason == "by its page"


def test_a_letter_that_holds_no_command_is_discarded_from_its_page(client: Client, garbage: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    asked = click(client, client.get(page(garbage)).content.decode(), "Discard …").content.decode()
    assert 'value="by its page"' in asked
    assert "1 of 1 dead letters were discarded" in act(client, "discard", garbage)
    assert not DeadLetter.objects.exists()


def test_what_has_gone_since_it_was_asked_about_is_said_to_be_gone(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    DeadLetter.objects.all().delete()
    said = act(client, "discard", deposit, seen=f'[{deposit.pk}, {{"{deposit.pk}": ""}}]')
    assert "Nothing was done: what you chose is gone" in said
    assert "0 of 0" not in said


def test_what_is_gone_is_not_asked_about(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    DeadLetter.objects.all().delete()
    assert "Nothing was done: what you chose is gone" in act(client, "discard", deposit, confirmed=False)


def test_a_queue_that_is_away_is_told_and_loses_nothing(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "change_deadletter")
    away = {"BACKEND": "enode_django.equeue.transports.broker.BrokerTransport", "LOCATION": "tcp://127.0.0.1:1"}
    with override_settings(ENODE={**REAL_QUEUE, "QUEUE": {**away, "OPTIONS": {"timeout": 1.0}}}):
        assert "runbroker" in act(client, "requeue", deposit)
    assert DeadLetter.objects.exists()


def test_what_was_sent_before_an_error_is_logged(
    client: Client, queue: MemoryTransport, deposit: DeadLetter, garbage: DeadLetter, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged_in(client, "change_deadletter")
    monkeypatch.setattr("enode_django.operating.dead_letters.AT_ONCE", 1)
    monkeypatch.setattr(queue, "max_send", len(garbage.body))  # the other one does not go through
    assert "what is left here can be sent again once more" in act(client, "requeue", garbage, deposit)
    sent = {str(letter.pk) for letter in (deposit, garbage)} - {str(letter.pk) for letter in DeadLetter.objects.all()}
    assert {entry.object_id for entry in LogEntry.objects.all()} == sent == {str(garbage.pk)}


def test_who_may_only_look_settles_nothing(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "view_deadletter")
    for action in ("requeue", "discard"):
        act(client, action, deposit)
    assert DeadLetter.objects.exists()
    assert "enode-settling" not in client.get(page(deposit)).content.decode()
    assert client.get(page(deposit, "command")).status_code == 403


def test_a_command_like_it_can_be_corrected_and_sent(
    client: Client, queue: MemoryTransport, deposit: DeadLetter, garbage: DeadLetter
) -> None:
    logged_in(client, "change_deadletter", "view_payload")
    assert page(deposit, "command") in client.get(page(deposit)).content.decode()
    form = client.get(page(deposit, "command"), {"type": "bank.Deposit"}).content.decode()
    assert "2.50" in form
    assert page(garbage, "command") not in client.get(page(garbage)).content.decode()
    assert client.get(page(garbage, "command")).status_code == 404


def test_a_letter_whose_command_is_stored_says_so(client: Client, db: None) -> None:
    from enode_django import execute_command, try_command
    from enode_django.testing import inline
    from sample_project.bank.domain import OpenAccount

    with inline(followed_by=[]):
        execute_command(OpenAccount("ada", owner="Ada"))
        command = Deposit("ada", amount=Decimal(1), id=new_id())
        try_command(command)
    letter = keep("bank.Deposit", "KeyError", encode_command(command, b""), command.id)
    DeadLetter.objects.update(is_answered=True)  # the answer was noted, and the queue lost before it was sent
    logged_in(client, "view_deadletter")
    text = client.get(page(letter)).content.decode()
    assert "yes: the command took effect or was refused after all" in text
    assert "no: its sender was not told that it failed" in text
    assert '<td class="field-stored">yes</td>' in client.get(LIST).content.decode()


@pytest.mark.parametrize("told", [True, False])
def test_a_letter_says_in_words_whether_its_sender_was_told(client: Client, deposit: DeadLetter, told: bool) -> None:
    DeadLetter.objects.update(is_answered=told)
    logged_in(client, "view_deadletter")
    text = client.get(page(deposit)).content.decode()
    assert ("yes: its sender was told that it failed" in text) is told
    assert ("no: its sender was not told that it failed" in text) is not told
    assert '<div class="readonly">no</div>' in text, "it is not stored since"
    for shown in (text, client.get(LIST).content.decode()):
        assert "icon-no" not in shown


def test_there_is_no_page_for_a_database_that_has_no_letters(client: Client, deposit: DeadLetter) -> None:
    logged_in(client, "view_deadletter")
    assert client.get(LIST, {"database": "nowhere"}).status_code == 404

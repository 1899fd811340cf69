"""Ids with a prefix, as people type them into the admin's search."""

from __future__ import annotations

import pytest

from enode_django import AggregateRoot, Command, DomainEvent, applies, command_handler, execute_command
from enode_django.admin.stream_search import search
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.testing import inline

pytestmark = pytest.mark.django_db(transaction=True)


class OpenPurse(Command):
    type_name = "admin.OpenPurse"


class PurseOpened(DomainEvent):
    type_name = "admin.PurseOpened"


class Purse(AggregateRoot):
    type_name = "admin.Purse"
    id_prefix = "purse-"

    @command_handler(creates=True)
    def open(self, command: OpenPurse) -> None:
        self.apply(PurseOpened())

    @applies
    def _opened(self, event: PurseOpened) -> None: ...


@pytest.mark.parametrize("typed", ["purse-ada", "ada", " ada "])
def test_the_search_finds_an_id_without_its_prefix(typed: str) -> None:
    store = PostgresEventStore()
    with inline(followed_by=[]):
        execute_command(OpenPurse("purse-ada"))
    assert [row.aggregate_root_id for hits in search(store, typed) for row in hits.rows] == ["purse-ada"]

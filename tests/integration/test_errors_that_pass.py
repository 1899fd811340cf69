"""Errors of the database in a command's handler that pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from django.db import connection, connections, transaction

from enode_django.bus.results import CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.conf import conf
from enode_django.databases import heal_connections
from enode_django.domain.handlers import HandlerTable
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import EnodeError
from enode_django.runtime import make_retries
from tests.integration.postgres_proxy import PostgresProxy
from tests.integration.store_sessions import database_alias
from tests.races.counting import Add, Counter, Create
from tests.races.harness import Worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[PostgresProxy]:
    settings = connection.settings_dict
    host, port = settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)
    options = {"sslmode": "disable", "gssencmode": "disable"}
    with (
        PostgresProxy(host, port) as proxy,
        database_alias("proxied", HOST="127.0.0.1", PORT=str(proxy.port), OPTIONS=options),
    ):
        yield proxy


def add_with(execute: Callable[[CommandContext], None]) -> HandlerTable:
    def add(command: Add, context: CommandContext) -> None:
        context.get(Counter).add(command.amount)
        execute(context)

    table = HandlerTable()
    table.add(Add, add)
    return table


_RAISES = "DO $$ BEGIN RAISE SQLSTATE '{}'; END $$"
_DEADLOCK, _SERIALIZATION, _LOCK_TIMEOUT = map(_RAISES.format, ("40P01", "40001", "55P03"))
_LOST = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("within", [transaction.atomic, nullcontext], ids=["atomic", "autocommit"])
@pytest.mark.parametrize("statement", [_DEADLOCK, _SERIALIZATION, _LOCK_TIMEOUT, _LOST])
def test_a_deadlock_or_a_lost_connection_does_not_fail_the_command(
    transactional_db: None, within: Callable[[str], AbstractContextManager[object]], statement: str
) -> None:
    statements = [statement, "SELECT 1"]
    with database_alias("hindered") as alias:

        def execute(context: CommandContext) -> None:
            with within(alias), connections[alias].cursor() as cursor:
                cursor.execute(statements.pop(0))

        worker = Worker(PostgresEventStore(alias), retries=make_retries(conf()))
        worker.run(Create("x"))
        worker.processor._handlers = add_with(execute)
        worker.send(Add("x", id="a"))
        worker.settle()
        assert worker.processor.pause == pytest.approx(conf().WORKERS.RETRY_DELAY)
        heal_connections()
        worker.clock.now += 2 * conf().WORKERS.RETRY_DELAY
        worker.settle()
    answer = worker.answers["a"]
    assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 2)


def test_a_statement_that_is_wrong_fails_the_command_at_once(transactional_db: None) -> None:
    def execute(context: CommandContext) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    worker = Worker(PostgresEventStore(), retries=make_retries(conf()))
    worker.run(Create("x"))
    worker.processor._handlers = add_with(execute)
    assert worker.run(Add("x"))[0].error_type == "DataError"


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_command_whose_handler_loses_its_transaction_while_it_loads_is_handled_again(
    proxy: PostgresProxy, swallows: bool
) -> None:
    """A connection inside an atomic block is not replaced, so no waiting helps: the attempt has to end."""
    attempts: list[str] = []

    def add(command: Add, context: CommandContext) -> None:
        attempts.append(command.id)
        with transaction.atomic("proxied"):
            with connections["proxied"].cursor() as cursor:
                cursor.execute("SELECT 1")
            if len(attempts) == 1:
                proxy.lose_at(lambda message: message.from_client)
            try:
                other = context.get(Counter, "other")
            except EnodeError:
                if not swallows:
                    raise
                return
        context.get(Counter).add(other.total + command.amount)

    worker = Worker(PostgresEventStore("proxied"))
    worker.run(Create("x"), Create("other"))
    worker.run(Add("other", amount=3))
    worker.processor._handlers = table = HandlerTable()
    table.add(Add, add)
    first, second = Add("x", id="first"), Add("x", id="second")
    worker.send(first)
    worker.handle()
    heal_connections()
    worker.clock.now += 5.0
    worker.run(second)
    assert attempts == ["first", "first", "second"]
    assert (worker.status(first), worker.answers["first"].version) == (CommandStatus.SUCCESS, 2)
    assert (worker.status(second), worker.answers["second"].version) == (CommandStatus.SUCCESS, 3)

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from enode_django.conf import make_conf
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.management.commands.runprocessors import _roles
from enode_django.processors.connections import connections_by_database
from enode_django.processors.control import Role
from enode_django.processors.worker import worker_name
from enode_django.processors.worker_group import Plan

CONF = make_conf({"COMMANDS": {"MAILBOXES": 2, "EVENT_MAILBOXES": 1}})
COMMANDS = Plan(Role.COMMAND, 3, "commands", 8)
EVENTS = Plan(Role.EVENT, 4, "events", 8)
APPLICATION_NAME_BYTES = 63


class Elsewhere(EventHandlerGroup): ...


Elsewhere.database = "other"  # type: ignore[assignment, method-assign]  # as a router may say


def test_all_means_both_roles_where_there_is_a_subscriber() -> None:
    with subscribers.only(EventHandlerGroup("a")):
        assert _roles("all") == [Role.COMMAND, Role.EVENT]
        assert _roles("command") == [Role.COMMAND]
        assert _roles("event") == [Role.EVENT]


def test_without_a_subscriber_all_means_commands_only() -> None:
    with subscribers.only():
        assert _roles("all") == [Role.COMMAND]


def test_event_workers_without_a_subscriber_are_refused_with_what_to_declare() -> None:
    with subscribers.only(), pytest.raises(CommandError, match=r"no subscriber is declared.*ModelProjection"):
        call_command("runprocessors", "--role", "event")


def test_a_role_that_there_is_not_is_refused() -> None:
    with pytest.raises(CommandError, match=r"invalid choice: 'query' \(choose from '?command'?, '?event'?, '?all'?\)"):
        call_command("runprocessors", "--role", "query")


def test_connections_are_counted_for_each_role_and_database() -> None:
    shares = connections_by_database(CONF, [COMMANDS, EVENTS], [EventHandlerGroup("a"), Elsewhere("b")])
    assert shares == {"default": [(3, 4), (4, 2)], "other": [(4, 1)]}
    assert [share.total for share in shares["default"]] == [12, 8]


def test_command_workers_alone_need_no_connections_for_subscribers() -> None:
    assert connections_by_database(CONF, [COMMANDS], [Elsewhere("b")]) == {"default": [(3, 4)]}


@pytest.mark.parametrize("role", Role)
def test_names_of_workers_are_never_used_twice_and_fit_into_an_application_name(role: Role) -> None:
    supervisor = f"enode-{'h' * 20}-4194304-012345"
    names = {worker_name(supervisor, role, 99) for _ in range(10)}
    assert len(names) == 10
    assert all(len(name.encode()) <= APPLICATION_NAME_BYTES for name in names)

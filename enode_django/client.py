"""Send commands and read their outcomes from anywhere in a Django project."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction

from enode_django.bus.command_bus import acurrent_metadata, named
from enode_django.bus.results import CommandResult, WaitFor, stored_result
from enode_django.bus.waiting import AwaitedSubscribers
from enode_django.conf import conf
from enode_django.domain.messages import Command, ResultT
from enode_django.domain.metadata import ambient_metadata, current_metadata
from enode_django.domain.origin import handled_command
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber, key_of, running_subscriber, yielding_subscriber
from enode_django.exceptions import (
    DefinitionError,
    ExecuteInsideHandler,
    InvalidField,
    SendInsideHandler,
    WaitInsideTransaction,
    shown,
)
from enode_django.ids import check_id
from enode_django.runtime import current_bus, current_store
from enode_django.scheduling.due import Due, due_of
from enode_django.serialization.codec import encode_command, encode_metadata
from enode_django.telemetry.tracing import current_tracing


def send_command(
    command: Command,
    *,
    expected_version: int | None = None,
    outbox: bool = False,
    at: datetime | None = None,
    after: timedelta | float | None = None,
    using: str | None = None,
) -> None:
    """Send a command. Block until the queue has stored it.

    Raises `TransportUnavailable` if the queue cannot be reached or is full, after three tries. The same command may
    then be sent again: it takes effect once, however often it arrives. Raises `MessageTooLarge`, and `InvalidField` for
    a value that cannot be encoded. Raises `SendInsideHandler` in a handler of a projection or a process manager, and
    `SendInsideTest` in a test that is not inside `enode_django.testing.inline`. Without a queue, the command is handled
    before the call returns, which raises `StoreUnavailable` if the database is away.

    With an ``expected_version`` (0: the aggregate does not exist) the command is refused by a `VersionMismatch` if its
    aggregate has another version when it is handled. That refusal is stored like any other.

    With ``outbox`` the command is sent if and only if the current transaction of the database ``using`` commits: it is
    written in that transaction, and a relay of ``runprocessors`` sends it after the commit. Commands for one aggregate
    arrive in the order of their transactions, if one began after the other's commit. ``using`` is by default the
    database that the routers choose for `OutboxCommand`. Raises `ConfigurationError` if it has no outbox, and what the
    database raises; `DefinitionError` if ``using`` is given to a command that is sent at once.

    With ``at`` (a datetime with a time zone) or ``after`` (a timedelta, or seconds) the command is written in that
    transaction, too, and sent when it is due by the clock of the database. Raises `InvalidField` for another time.

    For example::

        send_command(OpenAccount("ada", owner="Ada"), expected_version=0)
        with transaction.atomic():
            send_command(Deposit("ada", amount=Decimal(5)), outbox=True)
            send_command(Deposit("ada", amount=Decimal(1)), after=timedelta(days=30))
    """
    batch, versions = [_sendable(command)], [check_version(expected_version)]
    if at is not None or after is not None:
        _keep(batch, versions, using, due_of(at, after))
    elif outbox:
        _keep(batch, versions, using)
    else:
        _send(batch, versions, using)


def send_commands(
    commands: Iterable[Command | tuple[Command, int | None]], *, outbox: bool = False, using: str | None = None
) -> None:
    """Send many commands at once, like `send_command`. An item is a command, or a pair of a command and its expected
    version. Commands of one aggregate arrive in this order.

    All commands are read into memory and checked before the first is sent, whatever iterable they come from: send a
    large number in portions.

    For example::

        send_commands([OpenAccount("ada", owner="Ada"), (Deposit("ada", amount=Decimal(5)), 1)])
    """
    if isinstance(commands, Command):
        raise DefinitionError(
            f"send_commands() takes several commands, got one {type(commands).__qualname__}; put it into a list, or "
            "call send_command()"
        )
    pairs = [pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None) for pair in commands]
    batch, versions = [_sendable(command) for command, _ in pairs], [check_version(version) for _, version in pairs]
    if batch and outbox:
        _keep(batch, versions, using)
    elif batch:
        _send(batch, versions, using)


def send_command_on_commit(command: Command, using: str | None = None, *, expected_version: int | None = None) -> None:
    """Send the command when the current transaction of the database ``using`` commits, or now if there is none. Its
    metadata are those of the call. Raises `InvalidField` at once if it cannot be encoded, and `SendInsideHandler` as
    `send_command` does: the transaction can still be rolled back. What the sending itself raises, such as
    `TransportUnavailable`, is raised after the commit.

    A process that dies after the commit and before it has sent the command loses it, unless ``OUTBOX["ON_COMMIT"]`` of
    the settings is True: then this is `send_command` with ``outbox=True``.

    For example::

        with transaction.atomic():
            send_command_on_commit(OpenAccount("ada", owner="Ada"))
    """
    if conf().OUTBOX.ON_COMMIT:
        return send_command(command, expected_version=expected_version, outbox=True, using=using or DEFAULT_DB_ALIAS)
    known = current_metadata()
    # An error after the commit would cost the command, and those that follow it.
    encode_command(_sendable(command), encode_metadata(known), expected_version=check_version(expected_version))

    def send() -> None:
        with ambient_metadata(known):
            send_command(command, expected_version=expected_version)

    transaction.on_commit(send, using=using)


async def asend_command(
    command: Command,
    *,
    expected_version: int | None = None,
    outbox: bool = False,
    at: datetime | None = None,
    after: timedelta | float | None = None,
    using: str | None = None,
) -> None:
    """Send a command like `send_command`. The event loop goes on meanwhile.

    With ``outbox``, ``at`` or ``after`` the command is written in the transaction of Django's synchronous code: call
    `send_command` there if the command is to be part of one.

    For example::

        async def deposit(account: str) -> None:
            await asend_command(Deposit(account, amount=Decimal(5)))
            await asend_command(Deposit(account, amount=Decimal(1)), after=timedelta(days=30))

        execute_command(OpenAccount("ada", owner="Ada"))
        asyncio.run(deposit("ada"))
        assert BankAccount.load("ada").balance == 5
    """
    batch, versions = [_sendable(command)], [check_version(expected_version)]
    due = None if at is None and after is None else due_of(at, after)
    if due is None and not outbox:
        _check_using(using)
    bus = current_bus()
    with ambient_metadata(await acurrent_metadata()):
        if due is not None or outbox:
            await sync_to_async(_keep)(batch, versions, using, due)
        elif bus.joins_transactions:  # the transaction belongs to the thread of Django's synchronous code
            await sync_to_async(bus.send)(batch, versions)
        else:
            await asyncio.to_thread(bus.send, batch, versions)


def cancel_command(command_id: str, *, using: str | None = None) -> bool:
    """Cancel a command that `send_command` has scheduled by ``at`` or ``after``. Return True if it was waiting, and
    False if a relay has fired it, since it was due, or if it was never scheduled.

    It is deleted in the current transaction of the database ``using``; after a rollback it waits again. Blocks while a
    relay fires the command, and raises as `send_command` does with ``at``; `SendInsideHandler` in a handler of a
    projection. Process managers cancel their deadlines with a `CancelDeadline`.

    For example::

        bonus = Deposit("ada", amount=Decimal(1))
        send_command(bonus, after=timedelta(days=30))
        assert cancel_command(bonus.id)
        assert not cancel_command(bonus.id)
    """
    id = check_id(command_id, "command id")
    _refuse_projections(f"the command {id!r} cannot be cancelled", "let a process manager or an event handler do it")
    return current_bus().cancel(_outbox_alias(using), id)


def execute_command(
    command: Command[ResultT],
    *,
    wait_for: WaitFor = WaitFor.EXECUTED,
    timeout: float | None = None,
    expected_version: int | None = None,
) -> CommandResult[ResultT]:
    """Send a command and block until its outcome is durable and, if ``wait_for`` says so, handled by subscribers.

    ``expected_version`` is that of `send_command`. A command that changed nothing has no events to be handled.

    Raises the `DomainException` that refused the command, with its fields, and `CommandFailed` if another exception
    ended it. Raises `CommandTimeout` after ``timeout`` seconds (default: ``EXECUTE_TIMEOUT`` of ``COMMANDS``), which
    include connecting and sending; the command goes on. Raises `ExecuteInsideHandler` in a handler, and
    `WaitInsideTransaction` if it waits for subscribers inside an atomic block: both could wait for themselves. Raises
    `UnknownSubscriber`, and `InvalidField` for a timeout that is not a number above 0. Raises `TransportUnavailable`,
    `MessageTooLarge`, `InvalidField` and `SendInsideTest` as `send_command` does.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        result = execute_command(Deposit("ada", amount=Decimal(5)))
        assert result.value == 5
    """
    return _execute(command, wait_for, timeout, expected_version).raise_for_status()


async def aexecute_command(
    command: Command[ResultT],
    *,
    wait_for: WaitFor = WaitFor.EXECUTED,
    timeout: float | None = None,
    expected_version: int | None = None,
) -> CommandResult[ResultT]:
    """Execute a command like `execute_command`. The wait occupies no thread.

    For example::

        async def open_account() -> int | None:
            return (await aexecute_command(OpenAccount("ada", owner="Ada"))).version

        assert asyncio.run(open_account()) == 1
    """
    return (await _aexecute(command, wait_for, timeout, expected_version)).raise_for_status()


def try_command(
    command: Command[ResultT],
    *,
    wait_for: WaitFor = WaitFor.EXECUTED,
    timeout: float | None = None,
    expected_version: int | None = None,
) -> CommandResult[ResultT]:
    """Execute a command like `execute_command`, but return the result of a refused or failed command, too.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        result = try_command(Withdraw("ada", amount=Decimal(5)))
        assert isinstance(result.error, InsufficientFunds)
    """
    return _execute(command, wait_for, timeout, expected_version)


async def atry_command(
    command: Command[ResultT],
    *,
    wait_for: WaitFor = WaitFor.EXECUTED,
    timeout: float | None = None,
    expected_version: int | None = None,
) -> CommandResult[ResultT]:
    """Execute a command like `try_command`. The wait occupies no thread.

    For example::

        async def is_taken(account: str) -> bool:
            result = await atry_command(Withdraw(account, amount=Decimal(5)))
            return result.status is CommandStatus.SUCCESS

        execute_command(OpenAccount("ada", owner="Ada"))
        assert not asyncio.run(is_taken("ada"))
    """
    return await _aexecute(command, wait_for, timeout, expected_version)


def _execute(
    command: Command[ResultT], wait_for: WaitFor, timeout: float | None, expected_version: int | None
) -> CommandResult[ResultT]:
    seconds = _timeout(timeout)
    _check_surroundings(command, wait_for)
    return current_bus().execute(command, seconds, _awaited(wait_for), check_version(expected_version))


async def _aexecute(
    command: Command[ResultT], wait_for: WaitFor, timeout: float | None, expected_version: int | None
) -> CommandResult[ResultT]:
    seconds = _timeout(timeout)
    _check_surroundings(command, wait_for)
    return await current_bus().aexecute(command, seconds, _awaited(wait_for), check_version(expected_version))


def result_of(command_id: str, aggregate_root_id: str) -> CommandResult | None:
    """Return the stored outcome of a command; None if it has no row, or has none yet.

    Success, refusal, and a crash that a process manager handles are stored. Another failure, or a command that changed
    nothing, leaves no row: execute the command with the same id again to get the remembered outcome, or a new one if
    nobody has waited for the first. Blocks on the event store. Raises `InvalidId`,
    `StoreUnavailable`, and `MalformedMessage` for a row that cannot be read.

    For example::

        execute_command(OpenAccount("ada", owner="Ada", id="open-ada"))
        assert result_of("open-ada", "ada").version == 1
        assert result_of("open-bob", "bob") is None
    """
    key = (check_id(command_id, "command id"), check_id(aggregate_root_id, "aggregate root id"))
    stored = current_store().find([key]).get(key)
    return None if stored is None else stored_result(stored)


async def aresult_of(command_id: str, aggregate_root_id: str) -> CommandResult | None:
    """Return the stored outcome of a command, like `result_of`.

    For example::

        async def status_of(command_id: str) -> CommandStatus | None:
            result = await aresult_of(command_id, "ada")
            return None if result is None else result.status

        execute_command(OpenAccount("ada", owner="Ada", id="open-ada"))
        assert asyncio.run(status_of("open-ada")) is CommandStatus.SUCCESS
    """
    return await sync_to_async(result_of)(command_id, aggregate_root_id)


def _send(commands: Sequence[Command], versions: Sequence[int | None], using: str | None) -> None:
    _check_using(using)
    current_bus().send(commands, versions)


def _check_using(using: str | None) -> None:
    """Raise `DefinitionError` for a database of a command that is sent at once: no transaction has that command."""
    if using is not None:
        raise DefinitionError(
            f"using={using!r} names the database of a transaction, which a command that is sent at once is no part of; "
            "add outbox=True, at= or after=, or leave it out"
        )


def _keep(
    commands: Sequence[Command], versions: Sequence[int | None], using: str | None, due: Due | None = None
) -> None:
    """Write commands to the outbox of a database, or schedule them there."""
    alias = _outbox_alias(using)
    with current_tracing().sending(named(commands), current_metadata()) as metadata:
        pairs = [(command, metadata) for command in commands]
        if due is None:
            current_bus().write_to_outbox(alias, pairs, expected_versions=versions)
        else:
            current_bus().schedule(alias, pairs, due, expected_versions=versions)


def _outbox_alias(using: str | None) -> str:
    from enode_django.models import OutboxCommand  # not at the top: models need Django's apps

    return router.db_for_write(OutboxCommand) if using is None else using


def _awaited(wait_for: WaitFor) -> AwaitedSubscribers | None:
    """Return the function that names the subscribers to wait for, by event types; None if none is awaited. Raises
    `UnknownSubscriber`, and `TypeNameError` for a subscriber that cannot have a name."""
    if not wait_for.handling:
        return None
    if wait_for.only is None:
        subscribers.all()
        return subscribers.following
    key = key_of(subscribers.get(_name_of(wait_for.only)))

    def follows(event_types: Sequence[str]) -> Mapping[str, str]:
        return {one: name for one, name in subscribers.following(event_types).items() if one == key}

    return follows


def _name_of(subscriber: str | type[Subscriber]) -> str:
    if isinstance(subscriber, type) and issubclass(subscriber, Subscriber):
        return subscribers.instance(subscriber).name
    if not isinstance(subscriber, str):
        raise DefinitionError(f"WaitFor.subscriber({shown(subscriber)}) names no subscriber; give its class or name")
    return subscriber


def _timeout(timeout: float | None) -> float:
    if timeout is None:
        return conf().COMMANDS.EXECUTE_TIMEOUT
    if type(timeout) not in (int, float) or not math.isfinite(timeout) or timeout <= 0:
        raise InvalidField(
            f"timeout={shown(timeout)} is not a number of seconds above 0; "
            "leave it out for ENODE['COMMANDS']['EXECUTE_TIMEOUT'], or use send_command to not wait"
        )
    return timeout


def check_version(expected_version: int | None) -> int | None:
    """Return a valid expected version unchanged. Raises `InvalidField` for any other value."""
    if expected_version is None or (type(expected_version) is int and 0 <= expected_version < 2**63):
        return expected_version
    raise InvalidField(
        f"expected_version={shown(expected_version)} is not a version; give that of the aggregate as it was seen, 0 "
        "for one that does not exist, or None for any"
    )


def _checked(command: object) -> Command:
    if isinstance(command, type) and issubclass(command, Command):
        raise DefinitionError(f"a command is to be sent, got the class {command.__qualname__}; make an instance of it")
    if not isinstance(command, Command):
        raise DefinitionError(f"{command!r} is not a command; derive its class from enode_django.Command")
    return command


def _sendable(command: object) -> Command:
    """Return a command. Raises `SendInsideHandler` in a handler of a projection, which a rebuild calls again for all
    events, or of a process manager, which may be called again: only what it yields takes effect once."""
    sendable = _checked(command)
    if (manager := yielding_subscriber.get()) is not None:
        raise SendInsideHandler(
            f"{type(sendable).__qualname__} cannot be sent by a handler of {manager}, which may be called twice for an"
            " event; yield it instead"
        )
    _refuse_projections(f"{type(sendable).__qualname__} cannot be sent", "let a process manager yield it")
    return sendable


def _refuse_projections(what: str, way_out: str) -> None:
    running = running_subscriber.get()
    if isinstance(running, BaseProjection):
        raise SendInsideHandler(
            f"{what} by a handler of the projection {running.name}, which a rebuild calls again for all events; "
            f"{way_out}"
        )


def _check_surroundings(command: Command, wait_for: WaitFor) -> None:
    what = type(_checked(command)).__qualname__
    if not isinstance(wait_for, WaitFor):
        raise DefinitionError(
            f"wait_for={wait_for!r} is no WaitFor; use WaitFor.EXECUTED, WaitFor.HANDLED or WaitFor.subscriber(…)"
        )
    if handled_command.get() is not None:
        raise ExecuteInsideHandler(
            f"{what} cannot be executed by a command handler, which would wait for itself; "
            "send it by context.send(), or let a process manager yield it"
        )
    running = running_subscriber.get()
    if (name := running.name if running is not None else yielding_subscriber.get()) is not None:
        raise ExecuteInsideHandler(
            f"{what} cannot be executed by a handler of {name}, which could wait for itself; "
            "send it, or let a process manager yield it"
        )
    if current_bus().joins_transactions or not _in_atomic_block():
        return
    if wait_for.handling:
        raise WaitInsideTransaction(
            f"{what} cannot be waited for until it is handled inside an atomic block: a subscriber may need what the "
            "block has locked, and so wait for its end; use send_command_on_commit, or wait after the block"
        )
    warnings.warn(
        f"{what} is executed inside an atomic block: a rollback will not undo it, and its handler does not see what "
        "the block has written; use send_command_on_commit",
        RuntimeWarning,
        stacklevel=4,
    )


def _in_atomic_block() -> bool:
    return any(connection.in_atomic_block for connection in connections.all(initialized_only=True))

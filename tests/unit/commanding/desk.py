"""The other end of a bus: a test takes commands out of the queue, and answers and sends notices by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from enode_django.bus.addresses import answer_address, notice_address
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.bus.notices import Notice, encode_notice
from enode_django.bus.results import CommandResult, CommandStatus, encode_result
from enode_django.domain.messages import Command
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.serialization.codec import WireCommand, decode_command

SOON = 60.0
BOTH = ("bank.Ledger", "bank.Summaries")


def both(event_types: Sequence[str]) -> Mapping[str, str]:
    """Return two subscribers if ``event_types`` contains `Added`."""
    return {name: name for name in BOTH} if "races.Added" in event_types else {}


class Asked(NamedTuple):
    """A command that was sent, and the execution that waits for it."""

    future: Future[CommandResult]
    wire: WireCommand


class Desk:
    def __init__(self, transport: MemoryTransport | None = None) -> None:
        self.transport = transport or MemoryTransport()
        self.transport.create_topic("commands", 1)
        self.bus = QueueCommandBus(self.transport, Producer(self.transport), "commands")
        self._callers = ThreadPoolExecutor(8)
        self._seen = 0

    def close(self) -> None:
        self.bus.close()
        self._callers.shutdown()

    def received(self) -> WireCommand:
        """The next command in the queue, waiting for it."""
        (batch,) = self.transport.pull("commands", {0: self._seen}, limit=1, wait=SOON)
        self._seen += 1
        return decode_command(batch.bodies[0])

    def ask(self, command: Command, *, timeout: float = SOON, handled: bool = True) -> Asked:
        future = self._callers.submit(self.bus.execute, command, timeout, both if handled else None)
        return Asked(future, self.received())

    # -- the part of the processors -------------------------------------------------------------------------------

    def answer(self, wire: WireCommand, status: CommandStatus = CommandStatus.SUCCESS) -> CommandResult:
        done = status is CommandStatus.SUCCESS
        result = CommandResult(
            status=status,
            command_id=wire.id,
            aggregate_root_id=wire.aggregate_root_id,
            version=7 if done else None,
            event_types=("races.Added",) if done else (),
        )
        self.transport.reply([(answer_address(wire.reply_to), encode_result(result))])
        return result

    def notify(self, wire: WireCommand, subscriber: str, error: str = "") -> None:
        notice = Notice(wire.id, wire.aggregate_root_id, subscriber, error)
        address = notice_address(wire.reply_to)
        assert address, "the sender does not wait for notices"
        self.transport.reply([(address, encode_notice(notice))])

    def settle(self) -> None:
        """Returns when the sender's process has taken everything that was sent to it before."""
        replies = self.bus._replies
        key = ("probe", "probe")
        probe = replies.expect(key)
        result = CommandResult(status=CommandStatus.SUCCESS, command_id=key[0], aggregate_root_id=key[1])
        self.transport.reply([(replies.address, encode_result(result))])
        probe.future.result(SOON)
        replies.forget(key, probe)

    @property
    def remembered(self) -> int:
        """Return the number of commands that the sender's process remembers."""
        return len(self.bus._replies._expected)

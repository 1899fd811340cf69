"""The message by which a process manager learns of the crash of a command that it sent."""

from __future__ import annotations

from typing import Self

from enode_django.domain.messages import Command
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import error_text
from enode_django.serialization.registry import types


class CommandCrashed(DomainException):
    """An exception that is not a refusal has ended a command whose process manager handles crashes (`handles_crash`).

    It is stored as a refusal of the command, and so it is final: the command never takes effect. ``error_type`` is the
    class name of the exception, ``message`` its text. ``sender`` names the process manager, the only one to receive it.

    For example::

        class Transfers(ProcessManager):
            name = "bank.reserving"

            @handles_crash(ReserveDeposit)
            def not_reserved(self, crash: CommandCrashed) -> Iterator[Command]:
                assert isinstance(crash.command, ReserveDeposit)  # for type checkers
                yield CancelTransfer(crash.command.transfer, reason=f"{crash.error_type}: {crash.message}")
    """

    command_type: str
    error_type: str
    sender: str
    body: bytes

    @classmethod
    def of(cls, command: Command, error: BaseException, *, sender: str, body: bytes | None = None) -> Self:
        """Return the crash of ``command`` by ``error``. ``body`` is the message that brought the command, if any."""
        from enode_django.serialization.codec import encode_command  # the checks of the settings do not need it

        return cls(
            error_text(error).encode(errors="replace").decode(),
            command_type=types.name_of(type(command)),
            error_type=type(error).__name__,
            sender=sender,
            body=encode_command(command, b"") if body is None else body,
        )

    @property
    def command(self) -> Command:
        """The command as it was sent. Raises `UnknownMessageType`, `InvalidField` and `MalformedMessage`."""
        from enode_django.serialization.codec import decode_command, restore_command

        return restore_command(decode_command(self.body))

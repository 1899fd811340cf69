"""The message that tells a process manager of the crash of a command it has sent."""

from __future__ import annotations

from typing import Self

from enode_django.domain.messages import Command
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import error_text
from enode_django.serialization.registry import types


class CommandCrashed(DomainException):
    """An exception that is not a refusal has ended a command, and its process manager handles that (`handles_crash`).

    It is stored as a refusal of the command, and so it is final: the command takes no effect, and never will.
    ``error_type`` is the class name of the exception, ``message`` its text; ``sender`` names the process manager, and
    nobody else gets it.
    """

    command_type: str
    error_type: str
    sender: str
    body: bytes

    @classmethod
    def of(cls, command: Command, error: BaseException, *, sender: str, body: bytes | None = None) -> Self:
        """``body``: the message that brought the command, if one did."""
        from enode_django.serialization.codec import encode_command  # no check of the settings needs it

        return cls(
            error_text(error).encode(errors="replace").decode(),
            command_type=types.name_of(type(command)),
            error_type=type(error).__name__,
            sender=sender,
            body=encode_command(command, b"") if body is None else body,
        )

    @property
    def command(self) -> Command:
        """Return the command as it was sent. Raises `UnknownMessageType`, `InvalidField`, `MalformedMessage`."""
        from enode_django.serialization.codec import decode_command, restore_command

        return restore_command(decode_command(self.body))

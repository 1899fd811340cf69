"""The commands that a handler sends by its context. They are stored with its events, and sent by the publisher."""

from __future__ import annotations

from collections import Counter

from enode_django.bus.derived_ids import derived_id, with_id
from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata, caused_by
from enode_django.exceptions import DefinitionError, shown
from enode_django.serialization.codec import encode_command, encode_metadata
from enode_django.serialization.registry import types
from enode_django.serialization.sent_commands import SentCommand


class SentCommands:
    """The commands that one call of a handler sends; ``messages`` are these as they travel. Their ids are derived from
    the handled command, so that handling it again sends the same ones. They carry its metadata, with it as their
    cause."""

    def __init__(self, command: Command, metadata: Metadata) -> None:
        self.messages: list[SentCommand] = []
        self._cause = command
        self._metadata = encode_metadata(caused_by(metadata, command.id))
        self._seen: Counter[tuple[str, str]] = Counter()

    def add(self, command: Command) -> str:
        """Add a command and return the id that it gets. Raises `InvalidField` for a command that cannot be sent, and
        `DefinitionError` for a value that is not a command."""
        if not isinstance(command, Command):
            raise DefinitionError(f"context.send({shown(command)}) is given no command; pass one")
        key = (types.first_name_of(type(command)), command.aggregate_root_id)
        self._seen[key] += 1
        sender = f"handler of {self._cause.aggregate_root_id}"  # together with the cause's id it names a command
        id = derived_id(self._cause.id, sender, *key, self._seen[key])
        self.messages.append((command.aggregate_root_id, encode_command(with_id(command, id), self._metadata)))
        return id

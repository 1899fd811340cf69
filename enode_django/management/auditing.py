"""Management commands in the audit trail."""

from __future__ import annotations

import getpass
import socket
from argparse import ArgumentParser
from contextlib import AbstractContextManager

from enode_django.models import OperatorAction
from enode_django.operating.actions import Done, recorded


def add_reason(parser: ArgumentParser) -> None:
    """Add ``--reason`` to the parser of an action that changes something."""
    parser.add_argument("--reason", default="", help="why, for those who read the operator actions later")


def audited(action: str, object_type: str, object_id: str, *, reason: str) -> AbstractContextManager[list[str]]:
    """Put what the block does into the audit trail; texts that it adds to the list are the details."""
    done = Done(action, object_type, object_id, reason=reason)
    return recorded(operator(), OperatorAction.Source.COMMAND, done)


def operator() -> str:
    """Return the user of the operating system and the host; the user's number if it has no name."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        import os

        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"

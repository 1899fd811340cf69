"""Store the actions of management commands in the audit trail."""

from __future__ import annotations

import getpass
import os
import socket
from argparse import ArgumentParser
from contextlib import AbstractContextManager

from enode_django.models import OperatorAction
from enode_django.operating.actions import Done, recorded


def add_reason(parser: ArgumentParser) -> None:
    """Add ``--reason`` to the parser of an action that changes something."""
    parser.add_argument("--reason", default="", help="why; stored in the operator actions")


def audited(action: str, object_type: str, object_id: str, *, reason: str) -> AbstractContextManager[list[str]]:
    """Store the block's action in the audit trail, with the texts that it adds to the list as details."""
    done = Done(action, object_type, object_id, reason=reason)
    return recorded(operator(), OperatorAction.Source.COMMAND, done)


def operator() -> str:
    """Return the user of the operating system and the host, as ``user@host``."""
    return f"{user_name()}@{socket.gethostname()}"


def user_name() -> str:
    """Return the name of the operating system's user, or the number of one without a name, as containers have."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())

"""The name of this host, for people."""

from __future__ import annotations

import os
import socket


def host_name() -> str:
    """Return the name of this host. Its bytes that are not UTF-8 are shown as escapes, so that it can be sent and
    stored."""
    return os.fsencode(socket.gethostname()).decode(errors="backslashreplace")

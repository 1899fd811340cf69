"""The operating systems that commands run on."""

from __future__ import annotations

import sys

from django.core.management.base import CommandError


def check_linux(command: str) -> None:
    """Raise `CommandError` on other systems than Linux, which lack what the command needs of processes and locks."""
    if sys.platform != "linux":
        raise CommandError(
            f"{command} needs Linux, and this is {sys.platform!r}; run it in a container or a virtual machine, or set "
            'QUEUE["BACKEND"] to "enode_django.immediate.Immediate", which needs no workers'
        )

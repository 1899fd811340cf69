"""``python -m tests.immediate.dying SUBSCRIBER ID``: fills a jar, and is killed by a handler of the subscriber.

``python -m tests.immediate.dying label ID outbox``: writes to the outbox, and is killed by a handler of the command.
"""

from __future__ import annotations

import sys

import django
from django.conf import settings


def main(name: str, id: str, way: str = "") -> None:
    from enode_django import send_command, send_commands
    from enode_django.conf.groups import IMMEDIATE
    from enode_django.eventing.registry import subscribers

    settings.ENODE = {"QUEUE": {"BACKEND": IMMEDIATE}}
    django.setup()
    from tests.immediate.domain import Fill, JarEntries, JarRows, Label, behaviour, mails

    behaviour.killing = (name, id)
    with subscribers.only(JarEntries, JarRows, mails("beginning")):
        if way == "outbox":
            send_commands([Label(id, id="label"), Fill(id, id="fill")], outbox=True)
        send_command(Fill(id))


if __name__ == "__main__":
    main(*sys.argv[1:])

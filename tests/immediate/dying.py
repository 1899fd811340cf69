"""``python -m tests.immediate.dying SUBSCRIBER ID``: fills a jar, and is killed by a handler of the subscriber."""

from __future__ import annotations

import sys

import django
from django.conf import settings


def main(name: str, id: str) -> None:
    from enode_django import send_command
    from enode_django.conf.groups import IMMEDIATE
    from enode_django.eventing.registry import subscribers

    settings.ENODE = {"QUEUE": {"BACKEND": IMMEDIATE}}
    django.setup()
    from tests.immediate.domain import Fill, JarEntries, JarRows, behaviour, mails

    behaviour.killing = (name, id)
    with subscribers.only(JarEntries, JarRows, mails("beginning")):
        send_command(Fill(id))


if __name__ == "__main__":
    main(*sys.argv[1:])

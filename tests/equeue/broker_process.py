"""A broker in a separate process: ``python -m tests.equeue.broker_process '{"directory": …}'``."""

from __future__ import annotations

import json
import logging
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.utils.module_loading import import_string

from enode_django.equeue import wire
from enode_django.equeue.broker import server
from enode_django.equeue.broker.access import Role, Secret
from enode_django.equeue.broker.handlers import Handlers
from enode_django.equeue.broker.options import BrokerOptions, Tls
from enode_django.equeue.broker.requests import REQUESTS, Request, number, optional, text
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.server import run
from enode_django.equeue.wire import VERSION, Versions


def options_of(given: dict[str, Any]) -> BrokerOptions:
    given["directory"] = Path(given["directory"])
    if "retention" in given:
        given["retention"] = Retention(**given["retention"])
    if "tls" in given:
        given["tls"] = Tls(**given["tls"])
    given["secrets"] = tuple(
        Secret(name=name, text=text, roles=frozenset(map(Role, roles)))
        for name, (text, roles) in given.pop("secrets", {}).items()
    )
    if "allocate" in given:
        given["allocate"] = import_string(given["allocate"])
    return BrokerOptions(**given)


def become_newer() -> None:
    """Make this process a broker of the next version, with one more request, one more argument, and longer answers."""
    requests: dict[str, Request] = REQUESTS  # type: ignore[assignment]
    requests["fly"] = Request((text,))
    requests["create_topic"] = requests["create_topic"]._replace(
        arguments=(text, number, optional(text)), defaults=("added",)
    )
    wire.SPOKEN = Versions(VERSION, VERSION + 1)  # type: ignore[misc]
    server.Handlers = NewerHandlers  # type: ignore[misc]


class NewerHandlers(Handlers):
    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        plain = dict(self._plain)
        self._plain = {
            **plain,
            "create_topic": lambda topic, queues, added: plain["create_topic"](topic, queues),
            **{name: _with_more(plain[name], depth) for name, depth in ANSWERS_WITH_MORE.items()},
        }

    def fly(self, where: str) -> str:
        return f"flew to {where}"


ANSWERS_WITH_MORE = {"route": 0, "queues": 1, "join": 0, "acquire": 0, "groups": 1}
"""The requests whose answers get another field, with the number of mappings in which the field is nested."""


def _with_more(handler: Callable[..., Any], depth: int) -> Callable[..., Any]:
    return lambda *values: with_more(handler(*values), depth)


def with_more(answer: Any, depth: int) -> Any:
    """Return the answer with a field that this version does not have, nested in ``depth`` mappings."""
    if depth:
        return {key: with_more(value, depth - 1) for key, value in answer.items()}
    return [*answer, "added"]


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    for name in given.pop("without", ()):  # a broker of an earlier version lacks these requests
        del REQUESTS[name]  # type: ignore[attr-defined]
    if given.pop("newer", False):
        become_newer()
    file_size = given.pop("file_size", None)
    if file_size is not None:  # stands for a full disk, with EFBIG instead of ENOSPC
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    return run(options_of(given), lambda location: print(location, flush=True))


if __name__ == "__main__":
    sys.exit(main())

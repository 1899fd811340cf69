"""Files in ``ACCEPTANCE_DIRECTORY``: with ``failing``, handlers raise for aggregates that are `is_unlucky`; with
``holding-<subscriber>``, that subscriber's handlers wait until it is gone, and add a line to ``held-<subscriber>``: the
id of their process, and that of the aggregate. If the file names aggregates, only theirs do so: one of another
aggregate that waited would keep those from ever being called.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enode_django.eventing.subscribers import Followed, Handler, Subscriber


def is_unlucky(aggregate_root_id: str) -> bool:
    """Return True for some accounts. The random id of a transfer may have the same end."""
    return aggregate_root_id.startswith("account-") and aggregate_root_id.endswith("007")


class BadLuck(Exception):
    pass


def hinder(subscriber: Subscriber) -> None:
    handlers_of = subscriber._enode_handlers_of

    def hindered(cls: Followed) -> Sequence[Handler]:
        return [_hindered(handler, subscriber.name) for handler in handlers_of(cls)]

    subscriber._enode_handlers_of = hindered  # type: ignore[method-assign]


def _hindered(handler: Handler, name: str) -> Handler:
    directory = Path(os.environ["ACCEPTANCE_DIRECTORY"])
    failing, holding, held = directory / "failing", directory / f"holding-{name}", directory / f"held-{name}"

    def call(*arguments: Any) -> Any:
        message = arguments[-1]
        if is_unlucky(message.aggregate_root_id) and failing.exists():
            raise BadLuck(f"{name} does not like {message.aggregate_root_id}")
        result = handler(*arguments)
        if _is_held(holding, message.aggregate_root_id):
            with held.open("a") as lines:
                lines.write(f"{os.getpid()} {message.aggregate_root_id}\n")
            while holding.exists():
                time.sleep(0.01)
        return result

    return call


def _is_held(holding: Path, aggregate_root_id: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        named = holding.read_text().split()
        return not named or aggregate_root_id in named
    return False

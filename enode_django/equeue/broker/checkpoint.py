"""What the store knows at one position of the log, in one file: start-up goes on from there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgpack

from enode_django.equeue.broker.files import replace_file
from enode_django.equeue.broker.queues import SavedQueue
from enode_django.equeue.records import is_whole, seal, unseal

logger = logging.getLogger(__name__)

_FORMAT = 1


class Checkpoint(NamedTuple):
    """``position``: the log's end when this was true. ``time``: of the newest batch, in milliseconds since 1970.
    ``state``: bytes of the caller, who alone knows what they mean."""

    position: int
    time: int
    queues: Sequence[SavedQueue]
    state: bytes


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    replace_file(path, seal(msgpack.packb([_FORMAT, *checkpoint])))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None when there is none that can be used; why is logged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if not is_whole(content):
            raise ValueError("its CRC is wrong")
        version, *fields = msgpack.unpackb(unseal(content), use_list=False)
        if version != _FORMAT:
            raise ValueError(f"it has format {version!r}, not {_FORMAT!r}")
        return Checkpoint(*fields)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        logger.error("checkpoint %s cannot be used (%s); everything is read from the messages instead", path, error)
        return None

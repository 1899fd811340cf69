"""A broker in a process of its own: ``python -m tests.equeue.broker_process '{"directory": …}'``."""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

from django.utils.module_loading import import_string

from enode_django.equeue.broker.options import BrokerOptions, Tls
from enode_django.equeue.broker.requests import REQUESTS
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.broker.server import run


def options_of(given: dict[str, Any]) -> BrokerOptions:
    given["directory"] = Path(given["directory"])
    if "retention" in given:
        given["retention"] = Retention(**given["retention"])
    if "tls" in given:
        given["tls"] = Tls(**given["tls"])
    if "allocate" in given:
        given["allocate"] = import_string(given["allocate"])
    return BrokerOptions(**given)


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    given = json.loads(sys.argv[1])
    for name in given.pop("without", ()):  # as a broker of an earlier version
        del REQUESTS[name]  # type: ignore[attr-defined]
    file_size = given.pop("file_size", None)
    if file_size is not None:  # a disk that is full: EFBIG where it would be ENOSPC
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, resource.RLIM_INFINITY))
    return run(options_of(given), lambda location: print(location, flush=True))


if __name__ == "__main__":
    sys.exit(main())

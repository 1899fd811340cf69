"""Check that the settings of the queue name the broker that a command is about to start."""

from __future__ import annotations

from django.core.management.base import CommandError

from enode_django.conf.groups import BROKER, Conf
from enode_django.equeue.broker.options import is_loopback, parse_location
from enode_django.equeue.transport import Transport
from enode_django.exceptions import ConfigurationError, QueueError
from enode_django.processors.broker_options import broker_options

LOCALHOST = {"localhost", "127.0.0.1", "::1"}
"""Names of one host. Any other address of the loopback is one of its own: clients of 127.0.0.2 miss 127.0.0.1."""


def answers(transport: Transport) -> bool:
    """Return True if the queue answers. Blocks."""
    try:
        transport.topics()
    except QueueError:
        return False
    return True


def check_would_be_found(current: Conf, transport: Transport) -> None:
    """Raise `CommandError` if no broker answers at the queue's location, and one started here would not. Blocks."""
    if current.QUEUE.BACKEND != BROKER:
        return
    location = current.QUEUE.LOCATION
    try:
        listen = broker_options(current).listen
        different = _difference(listen, location)
    except ConfigurationError as error:
        raise CommandError(f"{error}\nsee ENODE['BROKER'] and ENODE['QUEUE'] in the settings") from error
    if different and not answers(transport):
        raise CommandError(
            f"no broker answers at {location} (ENODE['QUEUE']), and a broker started here would listen on {listen} "
            f"(ENODE['BROKER']); start the first one, or let both name the same {different}"
        )


def _difference(listen: str, location: str) -> str:
    """Return what keeps clients of ``location`` from finding a broker that listens at ``listen``: the port, the host or
    nothing. Under another name of the host they miss only a broker that listens on the loopback.

    >>> _difference("tcp://127.0.0.1:7625", "tcp://127.0.0.1:7711")
    'port'
    >>> _difference("tcp://127.0.0.2:7625", "tcp://queue.example:7625")
    'host'
    >>> _difference("tcp://127.0.0.1:7625", "tcp://127.0.0.2:7625")
    'host'
    >>> _difference("tcp://localhost:7625", "tcp://[::1]:7625"), _difference("tcp://127.0.0.2:1", "tcp://127.0.0.2:1")
    ('', '')
    >>> _difference("tcp://0.0.0.0:7625", "tcp://queue.example:7625")
    ''
    >>> _difference("tcp://10.0.0.5:7625", "tcp://queue.example:7625")
    ''
    """
    (host, port), (wanted_host, wanted_port) = parse_location(listen), parse_location(location)
    if port != wanted_port:
        return "port"
    is_same = host == wanted_host or {host, wanted_host} <= LOCALHOST
    return "host" if is_loopback(host) and not is_same else ""

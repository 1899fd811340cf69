"""The address of a broker, and the credentials for it."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enode_django.equeue.broker.options import is_loopback, location_of, parse_location
from enode_django.equeue.wire import SPOKEN, Versions
from enode_django.exceptions import ConfigurationError

logger = logging.getLogger("enode_django.equeue")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker, with the client's secret and TLS context. ``tls``: see `BrokerTransport`."""

    host: str
    port: int
    secret: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    spoken: Versions = SPOKEN

    @property
    def location(self) -> str:
        return location_of(self.host, self.port)


def client_tls(options: Mapping[str, Any] | bool | None) -> ssl.SSLContext | None:
    """Return the TLS context for `BrokerTransport`'s ``tls``; None without TLS. Raises `ConfigurationError`."""
    if not options:
        return None
    paths = {} if options is True else dict(options)
    unknown = paths.keys() - {"ca", "certificate", "key"}
    if unknown:
        raise ConfigurationError(f"tls knows 'ca', 'certificate' and 'key', not {sorted(unknown)[0]!r}")
    try:
        context = ssl.create_default_context(cafile=paths.get("ca"))
        if "certificate" in paths:
            context.load_cert_chain(paths["certificate"], paths.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificates in tls cannot be used: {error}") from error
    return context


def address_of(location: str, secret: str | None, tls: Mapping[str, Any] | bool | None) -> Address:
    address = Address(*parse_location(location), secret, client_tls(tls))
    if secret is not None and address.tls is None and not is_loopback(address.host):
        logger.warning(
            "the broker at %s is on another machine and asked without TLS: its secret says who connects, and protects "
            "nothing that follows; give the transport the option 'tls'",
            address.location,
        )
    return address

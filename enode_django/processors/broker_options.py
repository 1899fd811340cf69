"""The broker options that the settings describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from enode_django.conf.groups import Broker, Conf
from enode_django.equeue.broker.access import Role, Secret
from enode_django.equeue.broker.options import BrokerOptions, Tls
from enode_django.equeue.broker.retention import Retention
from enode_django.exceptions import ConfigurationError
from enode_django.runtime import chosen_allocation


def broker_options(
    current: Conf,
    *,
    listen: str | None = None,
    directory: Path | None = None,
    flush: str | None = None,
    accept_loss: bool = False,
) -> BrokerOptions:
    """Return the options for `enode_django.equeue.broker.server.run`. Arguments override the settings.

    A relative directory lies in ``BASE_DIR`` of the settings, if there is one. Raises `ConfigurationError`.
    """
    given = current.BROKER
    try:
        return BrokerOptions(
            directory=directory or Path(getattr(settings, "BASE_DIR", "."), given.DIRECTORY),
            listen=listen or given.LISTEN,
            flush=flush or given.FLUSH,
            flush_interval=given.FLUSH_INTERVAL,
            chunk_size=given.CHUNK_SIZE,
            retention=_retention(given),
            low_watermark=given.LOW_WATERMARK,
            high_watermark=given.HIGH_WATERMARK,
            ring_batches=given.RING_BATCHES,
            ring_bytes=given.RING_BYTES,
            allocate=chosen_allocation(current),
            max_unflushed=given.MAX_UNFLUSHED,
            reserve=given.RESERVE,
            low_space=given.LOW_SPACE,
            accept_loss=accept_loss,
            secret=given.SECRET,
            secrets=_secrets(given.SECRETS),
            max_connections=given.MAX_CONNECTIONS,
            tls=_tls(given),
        )
    except TypeError as error:
        raise ConfigurationError(f"ENODE['BROKER'] has a value of the wrong kind: {error}") from error


def _retention(given: Broker) -> Retention:
    return Retention(
        max_age=given.RETENTION_AGE,
        max_bytes=given.RETENTION_BYTES,
        max_messages=given.RETENTION_MESSAGES,
        all_limits=given.RETENTION_ALL,
        delete_unconsumed=given.DELETE_UNCONSUMED,
    )


def _secrets(given: Any) -> tuple[Secret, ...]:
    """Return the secrets. Error messages show their names, and no texts."""
    if not isinstance(given, Mapping):
        raise ConfigurationError("ENODE['BROKER']['SECRETS'] must be a dictionary of secrets by their names")
    return tuple(_secret(name, each) for name, each in given.items())


def _secret(name: str, given: Any) -> Secret:
    if not isinstance(given, Mapping) or given.keys() != {"SECRET", "ROLES"}:
        raise ConfigurationError(f"ENODE['BROKER']['SECRETS'][{name!r}] must be a dictionary of 'SECRET' and 'ROLES'")
    roles = given["ROLES"]
    known = [role.value for role in Role]
    if not isinstance(roles, list | tuple | set | frozenset) or not roles or any(each not in known for each in roles):
        raise ConfigurationError(f"the ROLES of ENODE['BROKER']['SECRETS'][{name!r}] must be a list of some of {known}")
    return Secret(name=name, text=given["SECRET"], roles=frozenset(map(Role, roles)))


def _tls(given: Broker) -> Tls | None:
    if given.TLS_CERTIFICATE is None:
        return None
    if given.TLS_KEY is None:
        raise ConfigurationError("ENODE['BROKER'] has TLS_CERTIFICATE without TLS_KEY; a certificate needs its key")
    return Tls(certificate=given.TLS_CERTIFICATE, key=given.TLS_KEY, client_ca=given.TLS_CLIENT_CA)

"""Secrets of clients, and the requests that their roles allow. No message and no repr shows a secret."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from enode_django.equeue.wire import is_proof, proof
from enode_django.exceptions import ConfigurationError, RoleMissing


class Role(StrEnum):
    """``produce``: send messages and wait for answers. ``consume``: pull and commit, and answer. ``administer``: change
    queues, groups and offsets."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMINISTER = "administer"


ALL_ROLES = frozenset(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A shared secret of clients, and the roles that it grants. Errors and logs show only its ``name``. Raises
    `ConfigurationError` if the text is empty or no text, or if the roles are empty or unknown."""

    name: str
    text: str = field(repr=False)
    roles: frozenset[Role] = ALL_ROLES

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:
            raise ConfigurationError(f"the secret {self.name!r} must be a text that is not empty")
        if not self.roles or not self.roles <= ALL_ROLES:
            raise ConfigurationError(
                f"the secret {self.name!r} has the roles {sorted(self.roles)}; give it one or more of {_names(Role)}"
            )

    def check(self, request: str, role: Role | None) -> None:
        """Raise `RoleMissing` if the secret does not have the role that the request needs. None: it needs no role."""
        if role is not None and role not in self.roles:
            raise RoleMissing(
                f"the request {request!r} needs the role {role.value!r}, which the secret {self.name!r} does not have "
                f"(it has {_names(self.roles)}); give it the role in ENODE['BROKER']['SECRETS'], or use another secret"
            )


def check_distinct(secrets: Sequence[Secret]) -> None:
    """Raise `ConfigurationError` if two secrets have the same text: a client's secret would be ambiguous."""
    names: dict[str, str] = {}
    for secret in secrets:
        other = names.setdefault(secret.text, secret.name)
        if other != secret.name:
            raise ConfigurationError(
                f"the secrets {other!r} and {secret.name!r} have the same text; give each one of its own"
            )


def proven(secrets: Iterable[Secret], claimed: object, nonces: tuple[bytes, bytes]) -> Secret | None:
    """Return the secret that a client has proven to know, or None. All are compared, so that timing reveals nothing."""
    found = None
    for secret in secrets:
        if is_proof(claimed, proof(secret.text, "client", *nonces)):
            found = secret
    return found


def _names(roles: Iterable[Role]) -> str:
    return ", ".join(sorted(role.value for role in roles))

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
    """A text that lets clients in. Errors and logs show its ``name``. Raises `ConfigurationError` for what is none."""

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
        """Raise `RoleMissing` if the request needs a role that the secret does not have. None: it needs none."""
        if role is not None and role not in self.roles:
            raise RoleMissing(
                f"the request {request!r} needs the role {role.value!r}, which the secret {self.name!r} does not have "
                f"(it has {_names(self.roles)}); give it the role in ENODE['BROKER']['SECRETS'], or use another secret"
            )


def check_distinct(secrets: Sequence[Secret]) -> None:
    """Raise `ConfigurationError` if two secrets have the same text: nobody could say which one a client has."""
    names: dict[str, str] = {}
    for secret in secrets:
        other = names.setdefault(secret.text, secret.name)
        if other != secret.name:
            raise ConfigurationError(
                f"the secrets {other!r} and {secret.name!r} have the same text; give each one of its own"
            )


def proven(secrets: Iterable[Secret], claimed: object, nonces: tuple[bytes, bytes]) -> Secret | None:
    """Return the secret that a client has proven to know. Every secret is compared, so that the time does not tell
    which one it was."""
    found = None
    for secret in secrets:
        if is_proof(claimed, proof(secret.text, "client", *nonces)):
            found = secret
    return found


def _names(roles: Iterable[Role]) -> str:
    return ", ".join(sorted(role.value for role in roles))

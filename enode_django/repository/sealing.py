"""Values kept where others can write, sealed with a secret of the project."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from django.utils.crypto import salted_hmac

from enode_django.exceptions import ConfigurationError, MalformedMessage

_SALT = "enode_django.snapshots.sealing"  # never change it, even if the module moves: stored seals depend on it
_ALGORITHM = "sha256"
_SIZE = 32


class Seal:
    """Seals with a key that is derived from the first of the secrets, and accepts what any of them has sealed.

    Keys are derived once. Sealing takes some microseconds for each value. Thread-safe.
    """

    def __init__(self, secrets: Sequence[str | bytes]) -> None:
        if not secrets or not all(secrets):
            raise ConfigurationError("shared states need a secret to be sealed with; set SECRET_KEY")
        self._keys = [salted_hmac(_SALT, b"", secret, algorithm=_ALGORITHM).digest() for secret in secrets]

    def sealed(self, name: str, value: bytes) -> bytes:
        """Return the value with its seal, which holds for no other name."""
        return _digest(self._keys[0], name, value) + value

    def opened(self, name: str, sealed: bytes) -> bytes:
        """Return the value that was sealed for this name. Raises `MalformedMessage` for anything else. The time that it
        takes does not reveal how much of a seal is right."""
        seal, value = sealed[:_SIZE], sealed[_SIZE:]
        if not any(hmac.compare_digest(seal, _digest(key, name, value)) for key in self._keys):
            raise MalformedMessage("it has no seal of this project")
        return value


def _digest(key: bytes, name: str, value: bytes) -> bytes:
    place = name.encode()
    return hmac.digest(key, len(place).to_bytes(4) + place + value, _ALGORITHM)

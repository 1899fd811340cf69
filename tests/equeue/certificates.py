"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def needs_openssl() -> None:
    """Skip the test if the command is missing, or fail it if ``ENODE_REQUIRE_SERVICES`` is 1."""
    if shutil.which("openssl") is None:
        if os.environ.get("ENODE_REQUIRE_SERVICES") == "1":
            pytest.fail("the openssl command is missing")
        pytest.skip("the openssl command is missing")


class Authority:
    """A certificate authority that signs certificates for 127.0.0.1. All its files are in one directory."""

    def __init__(self, directory: Path, name: str) -> None:
        needs_openssl()
        self._directory = directory
        self.path, self._key = (str(directory / f"{name}.{kind}") for kind in ("pem", "key"))
        usage = ("-addext", "keyUsage=critical,keyCertSign")
        self._openssl(
            *f"req -x509 -days 2 -subj /CN={name} -keyout {self._key} -out {self.path}".split(), *usage, *_NEW_KEY
        )

    def certificate(self, name: str) -> tuple[str, str]:
        """Make a certificate. Return the paths of the certificate and of its key."""
        path, key, request = (str(self._directory / f"{name}.{kind}") for kind in ("pem", "key", "request"))
        self._openssl(*f"req -subj /CN={name} -keyout {key} -out {request}".split(), *_NEW_KEY)
        names = self._directory / f"{name}.names"
        names.write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        self._openssl(
            *f"x509 -req -days 2 -in {request} -CA {self.path} -CAkey {self._key} -CAcreateserial".split(),
            *f"-extfile {names} -out {path}".split(),
        )
        return path, key

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


_NEW_KEY = ("-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")

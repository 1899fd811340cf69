"""The page on two hosts: its certificates, settings and secrets suffice, and admit nobody else."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from enode_django.checks import settings as checks
from enode_django.conf import conf
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import ConfigurationError, RoleMissing, TransportUnavailable
from enode_django.processors.broker_options import broker_options
from tests.docs.blocks import Block, blocks
from tests.docs.pages import DOCS
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.certificates import needs_openssl

PAGE = DOCS / "howto" / "two-hosts.md"
NAME = "queue.internal"
SECRETS = {"WEB_SECRET": "of web", "WORKER_SECRET": "of workers", "OPERATOR_SECRET": "of operators"}


def only(blocks: list[Block], with_text: str) -> str:
    (block,) = (block for block in blocks if with_text in block.text)
    return block.text


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Make the page's certificates, for an address that the test can connect to."""
    needs_openssl()
    script = only(blocks(PAGE), "openssl req").replace(f"DNS:{NAME}", "IP:127.0.0.1").replace("rsa:3072", "rsa:2048")
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE)
    return tmp_path


def test_the_certificates_are_accepted_by_newer_pythons_which_are_strict(certificates: Path) -> None:
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "broker.pem"]
    verified = subprocess.run(strict, cwd=certificates, capture_output=True, text=True, timeout=DEADLINE)
    assert (verified.returncode, verified.stdout) == (0, "broker.pem: OK\n"), verified.stderr


def settings_on(host: dict[str, str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of the page as a process of this environment has them."""
    path = directory / "page_settings.py"
    path.write_text(only(blocks(PAGE), "BROKER"))
    with monkeypatch.context() as environment:
        for name, value in {"QUEUE_TLS": str(directory), **host}.items():
            environment.setenv(name, value)
        enode: dict[str, Any] = runpy.run_path(str(path))["ENODE"]
    return enode


def test_each_host_may_do_what_its_secret_says_and_strangers_nothing(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enode = settings_on(SECRETS, certificates, monkeypatch)
    with override_settings(ENODE=enode):
        assert checks.check_settings(None) == []
        options = broker_options(conf())
    assert options.listen == "tcp://0.0.0.0:7625"
    assert options.tls is not None
    tls = {"certificate": options.tls.certificate, "key": options.tls.key}
    secrets = {one.name: [one.text, [role.value for role in one.roles]] for one in options.all_secrets}

    with RunningBroker(certificates / "data", tls=tls, secrets=secrets) as broker:

        def transport(secret: str) -> BrokerTransport:
            host = {"QUEUE_LOCATION": broker.location, "QUEUE_SECRET": secret}
            queue = settings_on(host, certificates, monkeypatch)["QUEUE"]
            return BrokerTransport(queue["LOCATION"], **queue["OPTIONS"])

        web, worker = transport("of web"), transport("of workers")
        web.create_topic("t", 1)
        web.send("t", {0: [b"sent"]})
        with pytest.raises(RoleMissing, match="needs the role 'consume'"):
            web.pull("t", {0: 0}, limit=1, wait=0)
        (batch,) = worker.pull("t", {0: 0}, limit=1, wait=0)
        assert list(batch.bodies) == [b"sent"]
        with pytest.raises(RoleMissing):
            worker.delete_topic("t")
        for one in (web, worker):
            one.close()
        with pytest.raises(ConfigurationError):
            transport("of nobody").topics()
        with pytest.raises(TransportUnavailable):
            broker.transport(secret="of web", timeout=0.5).topics()
        with pytest.raises(ConfigurationError, match="shows a certificate that is not trusted"):
            broker.transport(secret="of web", tls=True).topics()


def test_on_one_host_the_settings_of_the_page_are_those_of_development(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enode = settings_on({}, tmp_path, monkeypatch)
    assert enode == {"QUEUE": {"LOCATION": "tcp://127.0.0.1:7625", "OPTIONS": {"secret": None}}}

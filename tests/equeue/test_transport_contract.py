"""The contract of transports, for the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from enode_django.equeue.transport import Transport
from enode_django.testing.transport_contract import TransportContract
from enode_django.testing.transport_lease_contract import TransportLeaseContract
from tests.equeue.brokers import RunningBroker

DELETING = {"chunk_size": 64 * 1024, "retention": {"max_age": 0.0}}


class OfABroker:
    flush = "interval"

    @pytest.fixture(scope="class")
    def lasting_broker(
        self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[RunningBroker]:
        with RunningBroker(tmp_path_factory.mktemp("broker") / "data", flush=request.cls.flush) as broker:
            yield broker
            assert broker.stop() == 0

    @pytest.fixture
    def broker(self, request: pytest.FixtureRequest, lasting_broker: RunningBroker) -> Iterator[RunningBroker]:
        """A broker that the tests share. Tests of trimming get one of their own, since messages are deleted file by
        file."""
        if "trim" in request.node.name:
            directory = request.getfixturevalue("tmp_path") / "data"
            with RunningBroker(directory, flush=self.flush, **DELETING) as broker:
                yield broker
        else:
            yield lasting_broker

    @pytest.fixture
    def transport(self, broker: RunningBroker) -> Iterator[Transport]:
        transport = broker.transport()
        yield transport
        transport.close()

    @pytest.fixture
    def another(self, broker: RunningBroker) -> Iterator[Transport]:
        transport = broker.transport()
        yield transport
        transport.close()


class TestBrokerTransport(OfABroker, TransportContract):
    pass


class TestBrokerThatFlushesEveryWrite(OfABroker, TransportLeaseContract):
    """Messages, leases, offsets and receipts, which are written. The rest of the contract does not ask for a flush."""

    flush = "every_write"

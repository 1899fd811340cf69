"""A directory that the broker cannot use: a mistake in the settings, or in who owns a volume, or it is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from enode_django.exceptions import ConfigurationError
from tests.equeue.brokers import RunningBroker
from tests.equeue.storing import opened


@pytest.mark.parametrize("below", ["", "broker"])
def test_a_file_instead_of_a_directory_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot use the directory '.*/file.*/file' is a file; name another"):
        opened(tmp_path / "file" / below)


def test_a_directory_that_the_user_may_not_write_to_is_told(tmp_path: Path) -> None:
    for one in (tmp_path, *tmp_path.parents[:2]):  # pytest makes them private
        one.chmod(0o755)
    directory = tmp_path / "broker"
    directory.mkdir(0o555)
    program = (
        "import os, sys; from pathlib import Path; from enode_django.equeue.broker.store import MessageStore\n"
        "if os.geteuid() == 0: os.setgid(65534), os.setuid(65534)\n"
        "MessageStore(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, directory], capture_output=True, text=True)
    assert "ConfigurationError: the broker cannot use the directory" in done.stderr


def replace_by_empty(directory: Path) -> None:
    directory.rename(directory.with_name("old"))
    directory.mkdir()


@pytest.mark.parametrize("lose", [shutil.rmtree, replace_by_empty])
def test_a_broker_whose_directory_is_removed_or_replaced_stops_and_writes_nothing_there(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        lose(broker.directory)
        assert broker.wait() == 1
        assert "was removed, or another one took its place" in broker.log.read_text()
        assert not list(broker.directory.glob("*"))


def test_a_directory_that_was_moved_and_put_back_has_all_messages(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        with closing(broker.transport()) as transport:
            transport.create_topic("orders", 1)
            transport.send("orders", {0: [b"one"]})
        broker.directory.rename(tmp_path / "moved")
        assert broker.wait() == 1
        (tmp_path / "moved").rename(broker.directory)
        broker.start()
        with closing(broker.transport()) as transport:
            (batch,) = transport.pull("orders", {0: 0}, limit=1, wait=0)
            assert list(batch.bodies) == [b"one"]

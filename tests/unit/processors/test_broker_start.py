"""A broker waits for one whose supervisor was killed: that one serves the workers until they have ended."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Timer

import pytest

from enode_django.equeue.files import DirectoryLock
from enode_django.exceptions import DirectoryInUse
from enode_django.processors.broker import when_free


def taken(directory: Path) -> int:
    DirectoryLock(directory).release()
    return 7


def test_a_directory_is_waited_for_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    earlier = DirectoryLock(tmp_path)
    Timer(0.3, earlier.release).start()
    with caplog.at_level(logging.WARNING):
        assert when_free(lambda: taken(tmp_path), 30) == 7
    (line,) = caplog.messages
    assert "is used by process" in line
    assert "waiting for up to 30 s" in line


def test_a_directory_that_stays_in_use_is_an_error(tmp_path: Path) -> None:
    DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse):
        when_free(lambda: taken(tmp_path), 0.1)


def test_a_free_directory_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert when_free(lambda: taken(tmp_path), 0) == 7
    assert not caplog.messages

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from enode_django.management.commands.runprocessors import _Reporter


def test_report_that_cannot_be_written_is_logged_and_written_when_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "later"
    reporter = _Reporter(directory / "report.json")
    with caplog.at_level(logging.WARNING, "enode_django.supervisor"):
        reporter({"finished": 1})
    assert "the report cannot be written" in caplog.text
    directory.mkdir()
    reporter({"finished": 2})
    assert json.loads((directory / "report.json").read_text()) == {"finished": 2}

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

from tests import warm


class TheSchemas(SimpleTestCase):
    """Runs in a separate process, as in CI, without the classes that tests declare."""

    def check(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run(["manage.py", "enode", "eventschemas", "--check", *arguments], cwd=settings.BASE_DIR)

    def test_events_and_refusals_are_as_the_committed_file_has_them(self) -> None:
        done = self.check()
        assert (done.returncode, done.stderr) == (0, "")

    def test_an_event_that_changed_without_a_new_version_ends_the_check_with_status_1(self) -> None:
        recorded = json.loads((settings.BASE_DIR / "event_schemas.json").read_text())
        recorded["events"]["bank.Deposited"]["versions"]["1"]["amount"] = "int"
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "changed.json")
            path.write_text(json.dumps(recorded))
            done = self.check(str(path))
        assert done.returncode == 1
        assert "bank.Deposited has changed without a new version" in done.stderr

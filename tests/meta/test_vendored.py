from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from tests.meta.tree import ROOT, VENDOR, name, text_files

PUBLISHED = {
    "uplot/LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of each file, as in the archive of uplot 1.6.32 on npm."""


def vendored() -> list[Path]:
    return [path for path in VENDOR.rglob("*") if path.is_file()]


def test_vendored_files_are_as_they_were_published() -> None:
    digests = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in vendored()
    }
    assert digests == PUBLISHED


def test_each_vendored_library_has_its_licence_among_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert {folder / "LICENSE" for folder in VENDOR.iterdir()} <= licences


def test_the_rules_for_own_files_leave_vendored_files_out() -> None:
    assert [name(path) for path in text_files() if VENDOR in path.parents] == []

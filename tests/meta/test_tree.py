from __future__ import annotations

import re

from tests.meta.tree import ROOT, modules, name, text_files

MAX_MODULE_LINES = 500
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|tmp)/")
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b")
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+( ; .+)?")


def offending_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine() -> None:
    assert offending_lines(MACHINE_PATH) == []


def test_nothing_is_left_marked_as_unfinished() -> None:
    assert offending_lines(UNFINISHED) == []


def test_modules_stay_short() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in modules("enode_django", "sample_project")}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def pins(file: str) -> list[str]:
    lines = (ROOT / file).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_every_requirement_is_pinned_and_names_no_host_or_path() -> None:
    assert pins("requirements.txt")
    assert [line for line in pins("requirements.txt") if not PIN.fullmatch(line)] == []


def test_the_sample_has_the_versions_that_the_tests_have() -> None:
    sample = set(pins("requirements-sample.txt"))
    assert sample
    assert sample - set(pins("requirements.txt")) == set()

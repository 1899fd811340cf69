"""The project's own files, for tests about the tree."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("enode_django", "sample_project", "tests", "benchmarks", "chaos", "docs", ".ci")
SUFFIXES = (".py", ".md", ".toml", ".txt", ".lua", ".html", ".sql", "")
VENDOR = ROOT / "enode_django" / "static" / "enode_django" / "vendor"
"""Files of others, as they were published: the rules for the project's own files do not apply to them."""


def text_files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a linked worktree
    for folder in FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    own = (path for path in found if "__pycache__" not in path.parts and VENDOR not in path.parents)
    return sorted(path for path in own if path.suffix in SUFFIXES)


def modules(*folders: str) -> list[Path]:
    return [path for path in text_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()

"""The fenced blocks of a Markdown file.

The words after the fence say what a block is: ``python`` runs, ``python file=a/b.py`` is that file,
``python append=a/b.py`` belongs to its end, ``python no-run`` is only read, ``console`` holds commands and what they
print. Any other block is for the eye.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """``line`` is that of the fence, counted from 1."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def runs(self) -> bool:
        return self.language == "python" and "no-run" not in self.info.split(" ")

    def option(self, name: str) -> str | None:
        """The value of ``name=value`` behind the language."""
        for word in self.info.split(" ")[1:]:
            key, _, value = word.partition("=")
            if key == name:
                return value
        return None

    @property
    def at_its_lines(self) -> str:
        """The text behind as many empty lines as stand before it in the page, so that a traceback names the line."""
        return "\n" * self.line + self.text


class Command(NamedTuple):
    line: str
    output: list[str]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["info"].strip(), match["text"])
        for match in _FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block, each with the lines that follow it up to the next."""
    current: Command | None = None
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if current is not None:
                yield current
            current = Command(line[2:], [])
        elif current is not None:
            current.output.append(line)
        else:
            raise ValueError(f"{block.page.name}:{block.line}: {line!r} is the output of no command")
    if current is not None:
        yield current


def without_blocks(text: str) -> str:
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)

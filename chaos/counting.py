"""The numbers of sends and answers of the clients, read from their growing journals."""

from __future__ import annotations

from pathlib import Path

SEND, SENT, ANSWER = b'"what": "send",', b'"what": "sent",', b'"what": "answer",'


class Counting:
    """The numbers of sends, repeated ones included, and of answers."""

    def __init__(self, directory: Path) -> None:
        self.sends = self.answers = 0
        self._directory = directory
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Read the lines written since the last look."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self.sends += whole.count(SEND)
            self.answers += whole.count(ANSWER)

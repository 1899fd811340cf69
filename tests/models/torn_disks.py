"""Damage a log's files as a crash of the machine does: bytes that were not flushed are there, missing, or different."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

PAGE = 4096
WHOLE = 1 << 60

NOISE = st.binary(min_size=1, max_size=50)
TEARS = st.one_of(
    st.sampled_from([("nothing", b""), ("cut", b""), ("zeros", bytes(1))]),
    st.tuples(st.just("noise"), NOISE),
    st.tuples(st.just("pages"), NOISE),
)
"""The kind of damage, and the bytes in the place of lost ones. For ``pages``, the bytes choose the lost pages."""


def spoil(directory: Path, torn: int, tear: tuple[str, bytes]) -> int:
    """Change the files' bytes from a position of the log on; returns where the first one that is different now is."""
    kind, noise = tear
    if kind == "nothing":
        return WHOLE
    changed = [WHOLE]
    for path in sorted((directory / "messages").glob("*.chunk")):
        content, start = path.read_bytes(), int(path.stem)
        kept = content[: max(torn - start, 0)]
        if len(kept) == len(content):
            continue
        if kind == "cut":
            path.write_bytes(kept) if kept else path.unlink()
            changed.append(start + len(kept))
        else:
            spoiled = _lost_pages(content, len(kept), noise) if kind == "pages" else _filled(content, len(kept), noise)
            path.write_bytes(spoiled)
            changed += [start + at for at in range(len(kept), len(content)) if content[at] != spoiled[at]][:1]
    return min(changed)


def _filled(content: bytes, first: int, noise: bytes) -> bytes:
    length = len(content) - first
    return content[:first] + (noise * length)[:length]


def _lost_pages(content: bytes, first: int, which: bytes) -> bytes:
    """Pages that never got there, between others that did."""
    left = bytearray(content)
    for page in range(first // PAGE, len(content) // PAGE + 1):
        if which[page % len(which)] % 2:
            begin, end = max(first, page * PAGE), min(len(content), (page + 1) * PAGE)
            left[begin:end] = bytes(max(0, end - begin))
    return bytes(left)

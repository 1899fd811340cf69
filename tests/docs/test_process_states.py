"""The transfer with a state against the sample's without one."""

from __future__ import annotations

import io
import tokenize

from tests.docs.blocks import blocks
from tests.docs.pages import DOCS
from tests.meta.tree import ROOT

PAGE = DOCS / "howto" / "process-states.md"
SAMPLE = ROOT / "sample_project" / "bank"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str) -> int:
    """Return the number of lines with code: empty lines, comments and docstrings do not count."""
    lines: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = token.type in NO_CODE
    return len(lines)


def test_the_transfer_with_a_state_takes_a_third_of_the_lines() -> None:
    shown = {block.option("file"): block.text for block in blocks(PAGE)}
    process = [shown["transfers/process_managers.py"], shown["transfers/domain.py"]]
    sample = [path.read_text() for path in (SAMPLE / "process_managers.py", SAMPLE / "domain" / "transfers.py")]
    with_state, without = [lines_of_code(text) for text in process], [lines_of_code(text) for text in sample]
    print(f"lines of code: with a state {sum(with_state)} {with_state}, without {sum(without)} {without}")
    assert 3 * sum(with_state) <= sum(without)

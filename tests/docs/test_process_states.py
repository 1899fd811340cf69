"""The transfer with a state against the sample's without one."""

from __future__ import annotations

import ast
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


def without_imports(text: str) -> str:
    """Return the code without its imports, which the sample writes in another style than the page."""
    tree = ast.parse(text)
    tree.body = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom)]
    lines = text.splitlines()
    return "\n".join("\n".join(lines[_first_line(one) - 1 : one.end_lineno]) for one in tree.body)


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])


def test_the_transfer_with_a_state_takes_less_than_half_of_the_lines() -> None:
    shown = {block.option("file"): block.text for block in blocks(PAGE)}
    process = [shown["transfers/process_managers.py"], shown["transfers/domain.py"]]
    sample = [path.read_text() for path in (SAMPLE / "process_managers.py", SAMPLE / "domain" / "transfers.py")]
    for what, counted in (
        ("all", lines_of_code),
        ("without imports", lambda text: lines_of_code(without_imports(text))),
    ):
        with_state, without = [counted(text) for text in process], [counted(text) for text in sample]
        print(f"lines of code, {what}: with a state {sum(with_state)} {with_state}, without {sum(without)} {without}")
        assert 2 * sum(with_state) < sum(without)

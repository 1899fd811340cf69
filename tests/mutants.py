"""``python -m tests.mutants --sample 150 --seed 1``: count how many small changes of the code the tests notice.

It works on the last commit, in a separate checkout. First it runs the tests with coverage, to learn which of them
execute which line. Then it changes one place after the other (``<`` to ``<=``, ``and`` to ``or``, a call left out …),
and runs the tests that execute the line until one fails. The same seed changes the same places.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from coverage import CoverageData

from sample_project.embedded import embedded_services

PACKAGES = ("enode_django/commanding", "enode_django/eventing", "enode_django/eventstore")
TESTS = tuple(
    f"tests/{name}"
    for name in (
        *("unit", "races", "models", "properties", "contracts", "unique", "outbox", "scheduling", "immediate"),
        *("following", "snapshots", "history", "observing", "integration", "docs"),
    )
)
"""The directories of fast tests. Acceptance tests are left out: coverage does not see the processes that they start."""
MOST_TESTS = 250
SECONDS = 900.0
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--durations=0")
SWAPPED: Mapping[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
}


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str
    source: str
    """The source of the whole file with the change."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {_short(self.before)}  ->  {_short(self.after)}"


def _short(text: str) -> str:
    return " ".join(text.split())[:70]


# -- the changes ------------------------------------------------------------------------------------------------------


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield every change of a module that may be tried."""
    tree = ast.parse(source)
    passed_over = {id(inner) for node in ast.walk(tree) if _is_no_logic(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        for changed in _changes(node):
            before = ast.get_source_segment(source, node)
            if before is not None:
                yield Mutant(file, node.lineno, before, changed, _replaced(source, node, changed))  # type: ignore[attr-defined]


def _is_no_logic(node: ast.AST) -> bool:
    """Return True for logging, and for blocks that only a type checker reads."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).startswith("logger.")
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op], left=left, comparators=comparators) if type(op) in SWAPPED:
            yield ast.unparse(ast.Compare(left, [SWAPPED[type(op)]()], comparators))  # type: ignore[list-item]
        case ast.BoolOp(op=op, values=values):
            yield f"({ast.unparse(ast.BoolOp(SWAPPED[type(op)](), values))})"  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=(ast.Add() | ast.Sub()) as op, right=right):
            yield f"({ast.unparse(ast.BinOp(left, SWAPPED[type(op)](), right))})"  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "True", "False"):
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _replaced(source: str, node: ast.AST, text: str) -> str:
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    begin, end = lines[first][: node.col_offset], lines[last][node.end_col_offset :]  # type: ignore[attr-defined]
    return b"".join([*lines[:first], begin, text.encode(), end, *lines[last + 1 :]]).decode()


def sample(root: Path, packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    files = sorted(path for package in packages for path in (root / package).rglob("*.py"))
    found = [mutant for path in files for mutant in mutants_of(str(path.relative_to(root)), path.read_text())]
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    print(f"{len(found)} places to change in {', '.join(packages)}; {len(chosen)} of them by seed {seed}")
    return [found[number] for number in sorted(chosen)]


# -- the tests --------------------------------------------------------------------------------------------------------


class Tests:
    """The tests of one checkout, and the lines that each of them executes."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        self._root = root
        self._packages = packages
        self._names = [name for name in TESTS if (root / name).exists()]
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._failing: set[str] = set()

    def learn(self) -> None:
        """Run all tests with coverage. Tests that fail without a change are not used: coverage takes time and
        memory."""
        options = [f"--cov={package}" for package in self._packages] + ["--cov-context=test", "--cov-report=", "-rfE"]
        command = [*PYTEST, *options, *self._names]
        done = subprocess.run(command, cwd=self._root, check=False, capture_output=True, text=True)
        self._failing = {
            line.split(" ", 1)[1].split(" - ")[0] for line in done.stdout.splitlines() if _is_failure(line)
        }
        print(done.stdout.splitlines()[-1], *sorted(self._failing), sep="\n", flush=True)
        data = CoverageData(str(self._root / ".coverage"))
        data.read()
        for file in data.measured_files():
            name = str(Path(file).relative_to(self._root))
            self._lines[name] = data.contexts_by_lineno(file)

    def over(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the changed line: all or a sample, in the order of `TESTS`."""
        lines = self._lines.get(mutant.file, {})
        # No test executes a line that runs at the import of the module, so all tests of the module are taken.
        names = sorted(self._named(lines.get(mutant.line, [])) or self._named(chain.from_iterable(lines.values())))
        if len(names) > MOST_TESTS:
            names = random.Random(mutant.line).sample(names, MOST_TESTS)
        return sorted(names, key=lambda name: (self._rank(name), name))

    def _named(self, contexts: Iterable[str]) -> set[str]:
        return {context.rpartition("|")[0] for context in contexts if "|" in context} - self._failing

    def _rank(self, name: str) -> int:
        return next(rank for rank, directory in enumerate(self._names) if name.startswith(directory))

    def notice(self, mutant: Mutant) -> bool:
        """Return True if a test fails or times out with the change."""
        names = self.over(mutant)
        if not names:
            return False
        path = self._root / mutant.file
        source = path.read_text()
        path.write_text(mutant.source)
        try:
            return _fails([*PYTEST, "-x", "--timeout=120", "--reuse-db", *names], self._root)
        finally:
            path.write_text(source)


def _is_failure(line: str) -> bool:
    return line.startswith(("FAILED ", "ERROR "))


def _fails(command: Sequence[str], directory: Path) -> bool:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=150, help="how many changes are tried")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="where changes are tried")
    parser.add_argument("--json", type=Path, help="a file for what became of each")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="enode-mutants-") as directory, embedded_services():
        root = Path(directory).resolve() / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", root, options.commit], check=True)
        try:
            tests = Tests(root, options.packages)
            tests.learn()
            survivors, results = [], []
            mutants = sample(root, options.packages, options.sample, options.seed)
            for number, mutant in enumerate(mutants, 1):
                noticed = tests.notice(mutant)
                results.append({"mutant": str(mutant), "noticed": noticed, "tests": len(tests.over(mutant))})
                print(f"{number}/{len(mutants)} {'noticed ' if noticed else 'SURVIVED'} {mutant}", flush=True)
                if not noticed:
                    survivors.append(mutant)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], check=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    score = 1 - len(survivors) / max(len(mutants), 1)
    print(f"\nnoticed {len(mutants) - len(survivors)} of {len(mutants)} changes: {score:.1%}; not noticed:")
    print("\n".join(f"  {mutant}" for mutant in survivors))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

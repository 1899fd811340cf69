"""Print figures of the package's code: sizes of modules and functions, annotations, lines by kind, modules in the root.

python -m tests.measures
"""

from __future__ import annotations

import ast
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.meta.tree import ROOT

PACKAGE = ROOT / "enode_django"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[Path, str]:
    files = (path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)
    return {path: path.read_text() for path in sorted(files)}


def functions(trees: Sequence[ast.Module]) -> Iterator[Function]:
    return (node for tree in trees for node in ast.walk(tree) if isinstance(node, Function))


def is_annotated(function: Function) -> bool:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    return function.returns is not None and all(argument.annotation is not None for argument in named)


def lines_by_kind(source: str, tree: ast.Module) -> Counter[str]:
    kinds = dict.fromkeys(range(1, len(source.splitlines()) + 1), "code")
    for number, line in enumerate(source.splitlines(), 1):
        if not line.strip():
            kinds[number] = "blank"
        elif line.lstrip().startswith("#"):
            kinds[number] = "comments"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds.update(dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "imports"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds.update(dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "docstrings"))
    return Counter(kinds.values())


def summary(name: str, sizes: Sequence[int], percentile: int) -> str:
    high = statistics.quantiles(sizes, n=100)[percentile - 1]
    middle = statistics.median(sizes)
    return f"{name}: {len(sizes)}, median {middle:.0f} lines, p{percentile} {high:.0f}, {max(sizes)} at most"


def main() -> None:
    texts = sources()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    found = list(functions([*trees.values()]))
    lines: Counter[str] = sum((lines_by_kind(texts[path], trees[path]) for path in texts), Counter())
    print(summary("modules", [len(text.splitlines()) for text in texts.values()], 90))
    print(summary("functions", [(one.end_lineno or 0) - one.lineno + 1 for one in found], 95))
    print(f"annotated functions: {100 * sum(map(is_annotated, found)) / len(found):.1f} %")
    print(f"lines: {lines.total()}, of them {', '.join(f'{count} {kind}' for kind, count in lines.most_common())}")
    print(f"modules in the root: {len(list(PACKAGE.glob('*.py')))}")


if __name__ == "__main__":
    main()

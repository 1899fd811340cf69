"""``python -m chaos.checker DIRECTORY [--json]``: check a run by the data that it left.

Exit status 0: all rules hold; 1: some do not; 2: the directory is not that of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.checker.reading.run import NoRun, read_facts
from chaos.checker.rules import violations
from chaos.checker.verdict import Verdict, figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.checker", description="Judge a run by what it left behind.")
    parser.add_argument("directory", type=Path, help="where the run wrote run.json and its logs")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    options = parser.parse_args(arguments)
    try:
        facts, unreadable = read_facts(options.directory)
    except NoRun as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    verdict = Verdict(figures(facts))
    verdict.add(unreadable)
    verdict.add(violations(facts))
    print(verdict.as_json() if options.json else "\n".join(verdict.lines()))
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())

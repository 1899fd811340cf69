"""``python -m chaos``: run the bank with faults on real processes, and report whether every promise was kept."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from chaos.errors import ChaosError
from chaos.faults import ALL, KINDS, switched_on
from chaos.faults.servers import DeadClusterNode
from chaos.names import BROKER, CLUSTER, REDIS, TRANSPORTS, Setup
from chaos.processes import guarded_directory
from chaos.rounds import Round, run_round
from chaos.servers import can_mount, take_private_mounts

ROUND_MINUTES = 2.0
BESIDE_FAULTS = 45.0
"""Seconds of a round besides the faults: start, end and check."""
LEAST_SECONDS = 10.0
WORLDS = [(transport, shards) for shards in (1, 2) for transport in TRANSPORTS]
BOTH = "both"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=ROUND_MINUTES, help="in rounds of two minutes")
    parser.add_argument("--seed", type=int, help="decides worlds, load and faults; by default any, and printed")
    parser.add_argument(
        "--transport",
        choices=[*TRANSPORTS, BOTH],
        default=BOTH,
        help=f"{BOTH}: {BROKER} and {REDIS}, and {CLUSTER} with {DeadClusterNode.name}",
    )
    parser.add_argument("--shards", choices=["1", "2", BOTH], default=BOTH)
    kinds = [*sorted(KINDS), ALL]
    parser.add_argument(
        *("--with", "--more"),
        dest="more",
        action="append",
        default=[],
        choices=kinds,
        metavar="FAULT",
        help=f"a kind of fault that is to happen in spite of --without {ALL}; or {ALL}",
    )
    parser.add_argument(
        *("--without", "--less"),
        dest="less",
        action="append",
        default=[],
        choices=kinds,
        metavar="FAULT",
        help=f"a kind of fault that is not to happen: {', '.join(kinds)}",
    )
    parser.add_argument("--directory", type=Path, help="keep what the checker reads in this directory")
    parser.add_argument("--plan", action="store_true", help="print the planned faults, and run nothing")
    options = parser.parse_args(arguments)
    if vain := faults_without_target(options):
        parser.error(f"nothing can be befallen by {', '.join(vain)} here; choose another --transport, or leave it out")
    return options


def faults_without_target(options: argparse.Namespace) -> list[str]:
    """Return the kinds of faults requested by name for which no world of the run has a target."""
    setups = [Setup(*world) for world in worlds_of(options)]
    return [name for name in options.more if name != ALL and not any(map(KINDS[name].targets, setups))]


def worlds_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the worlds that the run may choose from, as (transport, shards)."""
    transports = {options.transport}
    if options.transport == BOTH:
        names = DeadClusterNode.name in options.more or ALL in options.more
        has_dead_nodes = names and DeadClusterNode.name in switched_on(options.more, options.less)
        transports = {BROKER, REDIS, *([CLUSTER] if has_dead_nodes else [])}
    return [world for world in WORLDS if world[0] in transports and options.shards in (str(world[1]), BOTH)]


def rounds_of(options: argparse.Namespace) -> Iterator[Round]:
    """Yield the rounds. The first one has the run's seed and the first requested world; the others get random seeds,
    and worlds without repetition until all were used."""
    worlds = worlds_of(options)
    chance = random.Random(f"rounds {options.seed}")
    count = max(1, round(options.minutes / ROUND_MINUTES))
    seconds = max(LEAST_SECONDS, 60 * options.minutes / count - BESIDE_FAULTS)
    faults = switched_on(options.more, options.less)
    deck: list[tuple[str, int]] = []
    for number in range(count):
        deck = deck or worlds[:1] * (number == 0) + chance.sample(worlds[number == 0 :], len(worlds) - (number == 0))
        deck = deck or list(worlds)
        seed = options.seed if number == 0 else chance.randrange(1_000_000)
        yield Round(number + 1, seed, Setup(*deck.pop(0), faults), seconds)


def command_of(options: argparse.Namespace, round_: Round) -> str:
    """Return the command that repeats one round."""
    minutes = options.minutes / max(1, round(options.minutes / ROUND_MINUTES))
    switches = [f"--with {name}" for name in options.more] + [f"--without {name}" for name in options.less]
    words = [
        f"--minutes {minutes:g} --seed {round_.seed}",
        f"--transport {round_.setup.transport} --shards {round_.setup.shards}",
        *switches,
    ]
    return f'make chaos ARGS="{" ".join(words)}"'


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _run(options: argparse.Namespace, round_: Round) -> bool:
    """Run one round and remove its directory, unless the round failed."""
    _say(f"== round {round_.number}: seed {round_.seed}, {round_.setup.transport}, {round_.setup.shards} shard(s)")
    if options.plan:
        for fault in round_.plan():
            print(f"{fault.at:7.2f} {fault.kind} of {fault.target} for {fault.seconds:.1f} s")
        return True
    run = _run_directory(options, round_)
    try:
        with guarded_directory() as directory:
            kept_its_promises = run_round(round_, directory, run, _say)
    except ChaosError as error:
        _say(f"the run itself failed: {error}")
        kept_its_promises = False
    except Exception:
        traceback.print_exc()
        kept_its_promises = False
    except BaseException:  # interrupted, without a result
        _remove(options, run)
        raise
    if kept_its_promises:
        _remove(options, run)
    else:
        _say(f"FAILED; what is left is in {run}; this repeats it:")
        _say(command_of(options, round_))
    return kept_its_promises


def _remove(options: argparse.Namespace, run: Path) -> None:
    if options.directory is None:
        shutil.rmtree(run, ignore_errors=True)


def _run_directory(options: argparse.Namespace, round_: Round) -> Path:
    if options.directory is None:
        return Path(tempfile.mkdtemp(prefix=f"enode-chaos-run-{round_.seed}-"))
    run: Path = options.directory.resolve() / f"round-{round_.number}"
    if run.exists():
        raise SystemExit(f"{run} exists already; name another --directory, or remove it")
    run.mkdir(parents=True)
    return run


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    if "full-disk" in switched_on(options.more, options.less) and can_mount():
        take_private_mounts([*arguments, "--seed", str(options.seed)])
    signal.signal(signal.SIGTERM, _end)
    _say(f"seed {options.seed}; this repeats the run: --minutes {options.minutes:g} --seed {options.seed}")
    try:
        results = [_run(options, round_) for round_ in rounds_of(options)]
    except KeyboardInterrupt:
        _say("broken off")
        return 130
    _say(f"{sum(results)} of {len(results)} rounds kept every promise")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

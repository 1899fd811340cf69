"""Reader of a run's directory, and of the databases and the queue that it names."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.checker.facts import Facts
from chaos.checker.reading.broker_log import read_broker_log
from chaos.checker.reading.clients import read_clients, read_handled, read_samples
from chaos.checker.reading.lines import read_lines
from chaos.checker.reading.problems import Problems
from chaos.checker.reading.queue import QueueLog, Topics
from chaos.checker.reading.redis_streams import read_redis
from chaos.checker.reading.store import read_dead_letters, read_read_side, read_shards


class NoRun(Exception):
    """A directory without a readable run.json."""


def read_facts(directory: Path) -> tuple[Facts, Problems]:
    """Return the facts of a run, and the places that could not be read. Blocks. Raises `NoRun`."""
    run = _description(directory)
    problems = Problems()
    if not run.get("finished", True):
        problems.add("run.json", "the run has not finished; what follows may be of something that was still going on")
    clients = read_clients(directory / "clients", problems)
    read_side = read_read_side(run["read_database"], problems)
    topics = _topics_by_fault(directory / "faults.jsonl", problems)
    queue = _queue(run, topics["garbage"], problems)
    shards = run["shards"] or [run["read_database"]]
    facts = Facts(
        sends=clients.sends,
        acknowledged=frozenset(clients.acknowledged),
        answers=clients.answers,
        stored=read_shards(shards, problems),
        published=queue.published,
        trimmed=frozenset(queue.trimmed),
        subscribers=run.get("subscribers", ()),
        handled=read_handled(directory / "subscribers", problems),
        log=queue.log,
        log_is_whole=queue.is_whole,
        samples=[*read_samples(directory / "offsets.jsonl", problems), *queue.samples],
        dead=read_dead_letters(shards, problems),
        garbage=queue.garbage,
        tables=read_side.tables,
        checkpoints=read_side.checkpoints,
        parked=read_side.parked,
        command_topic=run.get("command_topic", "commands"),
        event_topic=run.get("event_topic", "events"),
        widened=topics["add-queues"],
        group=run.get("group", "processors"),
    )
    return facts, problems


def _description(directory: Path) -> dict[str, Any]:
    path = directory / "run.json"
    try:
        run: dict[str, Any] = json.loads(path.read_bytes())
        missing = {"read_database", "shards", "queue"} - run.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise NoRun(f"{str(path)!r} describes no run ({error}); name the directory that a run has written") from error
    if missing:
        raise NoRun(f"{str(path)!r} lacks {sorted(missing)}; name the directory that a run has written")
    return run


def _queue(run: dict[str, Any], garbage: frozenset[str], problems: Problems) -> QueueLog:
    queue = run["queue"]
    topics = Topics(run.get("command_topic", "commands"), run.get("event_topic", "events"), garbage)
    if queue["kind"] == "broker":
        return read_broker_log(Path(queue["directory"]), topics, problems)
    is_cluster = queue["kind"] == "redis-cluster"
    return read_redis(queue["url"], queue["prefix"], topics, problems, is_cluster=is_cluster)


def _topics_by_fault(path: Path, problems: Problems) -> Mapping[str, frozenset[str]]:
    """Return the topics that each fault of the queue has affected, from the run's list of faults."""
    topics: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
    if path.exists():
        for line in read_lines(path, problems):
            topics[str(line.values.get("fault"))] |= {str(line.values.get("target")).split()[-1]}
    return topics

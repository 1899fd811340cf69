"""The contents of the archive, whatever happens while it is written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from django.core.management import call_command
from django.db import connection
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.buckets import BUCKETS, bucket_of
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ArchiveBusy, ArchiveError, ArchiveMismatch
from enode_django.spark import archive, archive_reading, compaction
from enode_django.spark.archive import check_history, export_events, tail_held
from enode_django.spark.archive_files import ArchiveFiles
from enode_django.spark.archive_reading import archived_events
from enode_django.spark.hadoop_files import HadoopFiles
from enode_django.spark.holding import held
from enode_django.spark.horizons import horizon_of
from enode_django.spark.layout import BucketRange, range_of
from enode_django.spark.manifests import EMPTY, Increment, Manifest
from enode_django.spark.source import events
from tests.spark.accounts import ACCOUNT, account, poison, refused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


def silent(stage: str, /, **figures: object) -> None:
    pass


def export(spark: SparkSession, path: Path, **options: bool) -> dict[str, Any]:
    return export_events(spark, str(path), silent, **options)


def files_at(spark: SparkSession, path: Path) -> ArchiveFiles:
    return ArchiveFiles(HadoopFiles(spark, str(path)))


def manifest(path: Path, history: str = "history-0001") -> dict[str, Any]:
    newest = max((path / history / "_manifests").glob("[0-9]*.json"))
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def archived_rows(path: Path, history: str = "history-0001") -> list[dict[str, Any]]:
    """Return the rows as pandas or any other reader finds them: by the files that the manifest names."""
    names = [
        str(path / history / f"increment={increment['name']}" / file)
        for increment in manifest(path, history)["increments"]
        for file in increment["files"]
    ]
    rows: list[dict[str, Any]] = (
        ds.dataset(names, partitioning="hive", partition_base_dir=str(path / history)).to_table().to_pylist()
    )
    return rows


def keys(rows: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return sorted((row["aggregate_root_id"], row["version"] or 0, row["command_id"]) for row in rows)


def keys_of(records: list[StreamRecord]) -> list[tuple[str, int, str]]:
    return sorted((record.aggregate_root_id, record.version or 0, record.command_id) for record in records)


def test_everything_is_in_it_once_with_what_it_says(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path
) -> None:
    first = [*account("a", range(1, 4)), refused("a"), poison("p", 1)]
    other = [one._replace(aggregate_root_type="odd/type") for one in account("o", [1])]
    store.append([*first, *other])
    figures = export(spark, tmp_path)
    assert (figures["rows"], figures["refusals"], figures["history"]) == (6, 1, "history-0001")
    more = account("a", range(4, 8))
    for record in more:
        store.append([record])
    figures = export(spark, tmp_path)
    assert (figures["rows"], figures["refusals"]) == (4, 0)
    out = io.StringIO()
    call_command("enode", "exportevents", str(tmp_path), stdout=out)
    assert out.getvalue().splitlines()[-1] == "0 event streams and 0 refusals added to history-0001"
    assert len(list((tmp_path / "history-0001").glob("increment=*"))) == 2

    rows = archived_rows(tmp_path)
    assert keys(rows) == keys_of([*first, *other, *more])
    by_id = {(row["aggregate_root_id"], row["version"]): row for row in rows}
    deposit = by_id["a", 2]
    assert (deposit["event_types"], deposit["decoded"]) == (["bank.Deposited"], None)
    assert (deposit["bucket"], deposit["buckets"]) == (bucket_of("a"), "0000-1023")
    assert deposit["created_at"] == first[1].created_at
    assert (deposit["events"], deposit["metadata"]) == (first[1].events, first[1].metadata)
    assert by_id["a", None]["event_types"] == []
    assert (by_id["p", 1]["decoded"], by_id["p", 1]["event_types"]) == (None, None)
    assert by_id["p", 1]["events"] == first[-1].events
    assert by_id["o", 1]["aggregate_root_type"] == "odd/type"

    said = manifest(tmp_path)
    assert (said["format"], said["number"], said["rows"], said["refusals"]) == (3, 2, 10, 1)
    assert len(said["increments"][1]["files"]) == 1, "of a type, whatever number of tasks has read them"
    assert said["increments"][1]["after"] == said["increments"][0]["horizon"]
    assert said["horizon"] == said["increments"][1]["horizon"]


def test_a_crash_before_the_manifest_leaves_the_archive_as_it_was(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = account("a", range(1, 4))
    store.append(records)

    def crash(self: ArchiveFiles, manifest: Manifest) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveFiles, "add", crash)
        with pytest.raises(KeyboardInterrupt):
            export(spark, tmp_path)
    (left,) = (tmp_path / "history-0001").glob("increment=*")
    unfinished = tmp_path / "history-0001" / "_manifests" / "_000001.json"
    unfinished.parent.mkdir()
    unfinished.write_text('{"form')
    with (
        pytest.raises(ArchiveError, match="there is no archive in"),
        archived_events(spark, str(tmp_path), store, horizon_of(store)),
    ):
        pass

    export(spark, tmp_path)
    assert keys(archived_rows(tmp_path)) == keys_of(records)
    assert not left.exists()
    assert not unfinished.exists()


def test_a_second_export_at_the_same_time_is_refused(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path
) -> None:
    files = files_at(spark, tmp_path)
    with held("default", f"archive {files.root}"):
        for path in (f"{tmp_path}", f"{tmp_path}/", f"file:{tmp_path}"):
            with pytest.raises(ArchiveBusy, match="is running"):
                export_events(spark, path, silent)
    assert not list(tmp_path.iterdir())


def test_of_two_manifests_with_one_number_the_first_counts(spark: SparkSession, tmp_path: Path) -> None:
    """This is the last defence if nothing else has kept two exports apart."""
    files = files_at(spark, tmp_path)
    increments = [Increment(name, {}, {}, 1, 0, "", []) for name in ("first", "second")]
    one, other = (EMPTY.followed_by(increment, {}) for increment in increments)
    files.add(one)
    with pytest.raises(ArchiveBusy, match="has added to"):
        files.add(other)
    files.add(one.followed_by(increments[1], {}))
    with pytest.raises(ArchiveBusy):
        files.add(other)
    assert [[i.name for i in found.increments] for found in files.manifests()] == [["first", "second"], ["first"]]


def test_old_manifests_are_dropped(spark: SparkSession, tmp_path: Path) -> None:
    files = files_at(spark, tmp_path)
    manifest = EMPTY
    for number in range(12):
        manifest = manifest.followed_by(Increment(f"{number}", {}, {}, 1, 0, "", ["f"]), {0: ("c", "a")})
        files.add(manifest)
    assert [found.number for found in files.manifests()] == list(range(12, 2, -1))
    assert files.newest() == manifest


def test_a_damaged_or_later_manifest_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "history-0001" / "_manifests"
    directory.mkdir(parents=True)
    for text, said in (
        ("", "not a manifest"),
        ('{"format": 4}', "use the version that wrote it"),
        ('{"format": 3}', "not a manifest"),
    ):
        (directory / "000001.json").write_text(text)
        with pytest.raises(ArchiveError, match=said):
            files_at(spark, tmp_path).newest()


def test_a_store_that_was_set_back_is_refused_and_begins_another_history(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path
) -> None:
    records = account("a", range(1, 4))
    store.append(records)
    export(spark, tmp_path)
    store.begin_generation(0)
    store.append(account("a", [4]))
    with pytest.raises(ArchiveMismatch, match="begin a new one beside it with --anew"):
        export(spark, tmp_path)
    with pytest.raises(ArchiveMismatch), archived_events(spark, str(tmp_path), store, horizon_of(store)):
        pass
    assert export(spark, tmp_path, anew=True)["history"] == "history-0002"
    assert len(archived_rows(tmp_path, "history-0002")) == 4
    assert keys(archived_rows(tmp_path)) == keys_of(records), "what was archived stays"
    assert export(spark, tmp_path)["history"] == "history-0002"


def test_another_store_is_known_by_what_it_lacks(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(account("a", [1]))
    position = store.position()
    increment = Increment("1", {}, {0: position}, 1, 0, "", [])
    check_history(EMPTY.followed_by(increment, {0: (next(store.load("a")).command_id, "a")}), store, "here")
    with pytest.raises(ArchiveMismatch, match="here ends at position"):
        check_history(EMPTY.followed_by(increment, {0: ("some command", "a")}), store, "here")
    ahead = increment._replace(horizon={0: position._replace(transaction_id=position.transaction_id + 1_000_000)})
    with pytest.raises(ArchiveMismatch):
        check_history(EMPTY.followed_by(ahead, {}), store, "here")
    with pytest.raises(ArchiveMismatch, match=r"has shards \[0, 1\]"):
        check_history(EMPTY.followed_by(increment._replace(horizon={0: position, 1: position}), {}), store, "here")


def in_places(frame: DataFrame) -> Iterator[list[tuple[str, int, bytes]]]:
    """Yield the rows of each partition, in its order."""
    places: dict[int, list[tuple[str, int, bytes]]] = {}
    for row in frame.withColumn("place", spark_partition_id()).collect():
        places.setdefault(row.place, []).append((row.aggregate_root_id, row.version, bytes(row.events)))
    return iter(places.values())


def plan_of(frame: DataFrame) -> str:
    """Return the plan that Spark executes."""
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def increments_at(path: Path) -> list[str]:
    return sorted(one.name.partition("=")[2] for one in (path / "history-0001").glob("increment=*"))


RANGES = 4
"""Ranges of buckets: two tasks for each of the two cores."""


def test_archive_and_tail_are_what_the_source_gives(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([*(one for n in range(12) for one in account(f"a{n:02}", range(1, 13))), refused("a00")])
    store.append([one._replace(aggregate_root_type="other") for one in account("o", range(1, 3))])
    export(spark, tmp_path)
    store.append([*account("a03", range(13, 16)), *account("new", range(1, 3)), refused("a03")])
    horizon = horizon_of(store)
    store.append(account("a03", [16]))

    with connection.cursor() as cursor:  # rows that are pruned from the store stay in the archive
        cursor.execute("DELETE FROM enode_django_eventstream WHERE version IS NULL")
    expected = events(spark, horizon=horizon).collect()
    monkeypatch.setattr(archive_reading, "LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(archive_reading, "TASKS_PER_CORE", 2)
    with archived_events(spark, str(tmp_path), store, horizon) as frame:
        assert frame.columns == events(spark).columns
        plan = plan_of(frame.mapInArrow(same, frame.schema))
        assert "Exchange" not in plan
        assert plan.count("FileScan parquet") == RANGES
        places = list(in_places(frame))
    ranges = [{bucket_of(id) * RANGES // BUCKETS for id, _, _ in place} for place in places]
    assert all(len(one) == 1 for one in ranges), "a task has the buckets of one range"
    assert len(ranges) == len(set().union(*ranges)) > RANGES // 2
    assert all(place == sorted(place) for place in places)
    ids = [{id for id, _, _ in place} for place in places]
    assert sum(map(len, ids)) == len(set().union(*ids))
    whole = sorted((row.aggregate_root_id, row.version, bytes(row.events)) for row in expected)
    assert sorted(row for place in places for row in place) == whole
    assert increments_at(tmp_path) == [one["name"] for one in manifest(tmp_path)["increments"]], "the tail is gone"

    export(spark, tmp_path)
    with archived_events(spark, str(tmp_path), store, horizon, [ACCOUNT]) as frame:
        narrow = sorted(map(tuple, frame.select("aggregate_root_id", "version").collect()))
    assert narrow == [key[:2] for key in whole if key[0] != "o"], "of the older manifest"
    beyond = {0: horizon[0]._replace(transaction_id=1)}
    with (
        pytest.raises(ArchiveMismatch, match="beyond the horizon"),
        archived_events(spark, str(tmp_path), store, beyond),
    ):
        pass


def test_what_is_new_is_found_by_its_position(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then costs what lies there, as `test_postgres_positions` says, and not what lies in the whole store."""
    store.append(account("a", range(1, 4)))
    export(spark, tmp_path)
    store.append(account("a", [4]))
    asked = list[dict[str, Any]]()

    def watched(*arguments: Any, **options: Any) -> DataFrame:
        asked.append(options)
        return events(*arguments, **options)

    monkeypatch.setattr(archive, "events", watched)
    with archived_events(spark, str(tmp_path), store, horizon_of(store), [ACCOUNT]):
        pass
    assert [(options["order"], options["after"]) for options in asked] == [
        ("position", files_at(spark, tmp_path).newest().horizon)
    ]


def is_sorted(path: Path) -> bool:
    """Return True if each file that counts has its rows in the order that the archive promises."""
    (increment,) = manifest(path)["increments"]
    files = [path / "history-0001" / f"increment={increment['name']}" / file for file in increment["files"]]
    found = [pq.ParquetFile(file).read(["bucket", "aggregate_root_id", "version"]).to_pylist() for file in files]
    keys = [[(row["bucket"], row["aggregate_root_id"], row["version"] or 0) for row in rows] for rows in found]
    return all(rows == sorted(rows) for rows in keys)


def test_merged_increments_lie_by_bucket_and_are_deleted_when_no_job_can_need_them(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ENOUGH", 2)
    monkeypatch.setattr(archive, "FILE_BYTES", 8_000)  # for a few ranges: each is a task of every step
    stored = list[StreamRecord]()
    for version in (1, 2):
        new = [*account("a", [version]), *account("b", [version]), refused("a")]
        new += [one for number in range(4) for one in account(f"c{version}{number}", [1])]
        store.append(new)
        stored += new
        figures = export(spark, tmp_path)
    assert (figures["merged"], figures["increments"]) == (2, 1)
    rows = archived_rows(tmp_path)
    assert keys(rows) == keys_of(stored)
    ranges = {row["buckets"] for row in rows}
    assert len(ranges) > 1
    assert all(range_of(row["buckets"]).meets(BucketRange(row["bucket"], row["bucket"])) for row in rows)
    assert is_sorted(tmp_path)

    files = files_at(spark, tmp_path)
    newest, *older = files.manifests()
    assert [len(one.increments) for one in older] == [2, 1], "a job that has read one of them can go on"
    at = datetime.fromisoformat(newest.replaced[0].at)
    assert files.clean(newest, at - timedelta(microseconds=1), is_unused) == (newest, [])
    assert len(files.clean(newest, at, is_unused)[1]) == 2
    assert list(files.manifests()) == [newest]
    assert increments_at(tmp_path) == [newest.increments[0].name]


def is_unused(tail: str) -> bool:
    return True


def test_json_is_stored_from_the_run_on_that_asks_for_it(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path
) -> None:
    store.append(account("a", [1]))
    export(spark, tmp_path)
    store.append([*account("a", [2]), refused("a"), poison("p", 1)])
    export(spark, tmp_path, json=True)
    store.append(account("a", [3]))
    export(spark, tmp_path)
    texts = {(row["aggregate_root_id"], row["version"]): row["decoded"] for row in archived_rows(tmp_path)}
    assert {key: text is not None for key, text in texts.items()} == {
        ("a", 1): False, ("a", 2): True, ("a", None): True, ("p", 1): False, ("a", 3): True
    }  # fmt: skip
    assert json.loads(texts["a", 2]) == {
        "events": [{"type": "bank.Deposited", "schema_version": 1, "fields": {"amount": "1", "balance": "1"}}],
        "result": None,
        "metadata": {"correlation_id": "c2"},
    }
    assert json.loads(texts["a", None])["refusal"]["type"] == "bank.InsufficientFunds"

    out = io.StringIO()
    call_command("enode", "exportevents", str(tmp_path), "--compact", stdout=out)
    assert out.getvalue().splitlines()[-1] == "3 increments were merged into one; there are 1"
    rows = {(row["aggregate_root_id"], row["version"]): row for row in archived_rows(tmp_path)}
    assert rows["a", 1]["decoded"] is not None
    assert (rows["p", 1]["decoded"], rows["p", 1]["event_types"]) == (None, None)
    assert {key: row["decoded"] for key, row in rows.items() if key != ("a", 1)} == {
        key: text for key, text in texts.items() if key != ("a", 1)
    }


def test_a_merge_that_lost_rows_is_given_up(spark: SparkSession, store: PostgresEventStore, tmp_path: Path) -> None:
    store.append(account("a", range(1, 4)))
    export(spark, tmp_path)
    store.append(account("a", range(4, 6)))
    export(spark, tmp_path)
    before = manifest(tmp_path)
    name = before["increments"][0]["name"]
    (file,) = (tmp_path / "history-0001" / f"increment={name}").rglob("*.parquet")
    file.unlink()
    with pytest.raises(ArchiveError, match=r"2 rows .* should have 5 with 0: files were changed"):
        export(spark, tmp_path, compact=True)
    assert manifest(tmp_path) == before
    with (
        pytest.raises(ArchiveError, match=f"1 files of the increment {name} are missing"),
        archived_events(spark, str(tmp_path), store, horizon_of(store)) as streams,
    ):
        streams.count()


def test_a_tail_that_a_job_reads_stays(spark: SparkSession, store: PostgresEventStore, tmp_path: Path) -> None:
    store.append(account("a", [1]))
    export(spark, tmp_path)
    files = files_at(spark, tmp_path)
    used, left = files.new_tail(), files.new_tail()
    for name in (used, left):
        (tmp_path / "history-0001" / f"increment={name}").mkdir()
    elsewhere = tmp_path / "mounted"  # as in another container
    elsewhere.symlink_to(tmp_path)
    with tail_held(store, used):
        export(spark, elsewhere)
    assert left not in increments_at(tmp_path)
    assert used in increments_at(tmp_path)
    export(spark, tmp_path)
    assert used not in increments_at(tmp_path)


class WrittenMeanwhile(str):
    """A text during whose writing ``meanwhile`` is called."""

    meanwhile: Callable[[], object]

    def encode(self, *arguments: str) -> bytes:
        self.meanwhile()
        return super().encode(*arguments)


def test_of_two_that_create_a_file_at_once_neither_writes_into_the_others(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, str(tmp_path))
    created: list[bool] = []
    slow = WrittenMeanwhile("of the slow one")
    slow.meanwhile = lambda: created.append(files.create("a/file.json", "of the fast one"))
    created.append(files.create("a/file.json", slow))
    assert created == [True, False]
    assert files.read("a/file.json") == "of the fast one"
    assert files.names("a") == ["file.json"]

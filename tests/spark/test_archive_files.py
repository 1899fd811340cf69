"""The files of an archive, and the choice of increments to merge, without Spark."""

from __future__ import annotations

import doctest
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enode_django.eventstore.buckets import BUCKETS
from enode_django.eventstore.positions import Position
from enode_django.exceptions import ArchiveBusy, ArchiveError
from enode_django.spark import compaction, layout
from enode_django.spark.archive_files import ArchiveFiles
from enode_django.spark.archive_rows import label_in
from enode_django.spark.compaction import ENOUGH, begin_of_merge
from enode_django.spark.layout import BucketRange, bucket_ranges, count_ranges, labels_meeting, range_of
from enode_django.spark.manifests import Increment, Manifest, Replaced, manifest_of, text_of
from tests.docs.pages import DOCS, tables_of

NOW = datetime(2026, 5, 4, tzinfo=UTC)
KEPT_FOR = timedelta(days=1)
EVERY = timedelta(hours=9)
"""From one export to the next."""


def test_the_examples_hold() -> None:
    assert doctest.testmod(layout).failed == 0
    assert doctest.testmod(compaction).failed == 0
    assert label_in("aggregate_root_type=a%2Fb/buckets=0000-0511/part-0.parquet") == "0000-0511"


@pytest.mark.parametrize("count", [1, 2, 8, 1024])
def test_each_bucket_is_in_one_range(count: int) -> None:
    ranges = bucket_ranges(count)
    assert len(ranges) == count
    assert [bucket for one in ranges for bucket in range(one.first, one.last + 1)] == list(range(BUCKETS))
    assert [range_of(one.label) for one in ranges] == ranges


counts = st.sampled_from([2**power for power in range(7)])


@given(st.lists(counts, min_size=1, max_size=3), counts)
def test_tasks_read_each_directory_that_has_their_buckets(written: list[int], tasks: int) -> None:
    labels = {one.label for count in written for one in bucket_ranges(count)}
    for wanted in bucket_ranges(tasks)[::7]:
        found = set(labels_meeting(labels, wanted))
        buckets = set(range(wanted.first, wanted.last + 1))
        for label in labels:
            one = range_of(label)
            assert (label in found) == bool(buckets & set(range(one.first, one.last + 1)))


@given(st.integers(0, 2**42), st.integers(1, 500))
@example(4 * 2**25 + 1, 1)
def test_ranges_are_neither_too_large_nor_needlessly_many(size: int, wanted: int) -> None:
    most, least = 2**25, 2**18
    count = count_ranges(size, most=most, least=least, wanted=wanted)
    assert range_of(bucket_ranges(count)[0].label).first == 0
    assert count == BUCKETS or size <= count * most
    assert count == 1 or count < 2 * wanted or size > count / 2 * most
    assert count == 1 or size > count / 2 * least


def exported(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the rows of each increment after exports of these sizes, and the number of rows that merges wrote."""
    rows, rewritten = list[int](), 0
    for size in sizes:
        rows.append(size)
        begin = begin_of_merge(rows)
        if begin is not None:
            rewritten += sum(rows[begin:])
            rows[begin:] = [sum(rows[begin:])]
    return rows, rewritten


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_increments_stay_few_and_rows_are_rewritten_seldom(sizes: list[int]) -> None:
    rows, rewritten = exported(sizes)
    total = sum(sizes)
    assert sum(rows) == total
    assert len(rows) <= ENOUGH * total.bit_length()
    assert rewritten <= total * total.bit_length()


def test_a_year_of_daily_exports_makes_few_increments() -> None:
    most = max(len(exported([1_000] * days)[0]) for days in range(1, 366))
    _, rewritten = exported([1_000] * 365)
    assert (most, rewritten // 365_000) == (12, 3)


def position(number: int) -> dict[int, Position]:
    return {0: Position(0, number)}


def increment(name: str, after: int, horizon: int, files: Sequence[str] = ()) -> Increment:
    return Increment(name, position(after) if after else {}, position(horizon), horizon - after, 0, "", list(files), 5)


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest(0, (), {}).followed_by(increment("a", 0, 3, ["x"]), {0: ("c", "a")})
    manifest = manifest.followed_by(increment("b", 3, 4)._replace(json=True), {})
    merged = manifest.merged(increment("c", 0, 4)._replace(json=True), NOW, NOW)
    assert (manifest.json, merged.number, merged.horizon) == (True, 3, position(4))
    assert merged.replaced == (Replaced("a", 3, NOW.isoformat()), Replaced("b", 3, NOW.isoformat()))
    for one in (manifest, merged):
        assert manifest_of(text_of(one)) == one
    later = merged.followed_by(increment("d", 4, 5), {}).merged(increment("e", 4, 5), NOW + KEPT_FOR, NOW)
    assert later.json
    assert [one.name for one in later.replaced] == ["d"], "what was deleted by then is forgotten"


def test_a_manifest_is_documented() -> None:
    value = json.loads(text_of(Manifest(0, (), {}).followed_by(increment("a", 0, 3, ["x"]), {})))
    _, section = (DOCS / "howto" / "archive.md").read_text().split("## The manifest\n")
    rows = {key: row[1] for row in next(tables_of(section)) for key in codes_of(row[0])}
    assert rows.keys() == value.keys()
    assert rows["format"] == f"{value['format']}"
    assert set(codes_of(rows["increments"])) == value["increments"][0].keys()


def codes_of(cell: str) -> list[str]:
    return re.findall("`(.+?)`", cell)


@pytest.mark.parametrize("number", [2, 4])
def test_another_format_is_refused(number: int) -> None:
    value = json.loads(text_of(Manifest(0, (), {}).followed_by(increment("a", 0, 3, ["x"]), {})))
    with pytest.raises(ArchiveError, match="use the version that wrote it"):
        manifest_of(json.dumps({**value, "format": number}))


class Crash(Exception):
    """The process is gone."""


class LocalFiles:
    """A directory as `Files` says, in which a process dies before the change with a number."""

    def __init__(self, root: Path, changes: int | None = None) -> None:
        self.root = str(root)
        self._left = itertools.count() if changes is None else iter(range(changes))

    def _change(self) -> None:
        if next(self._left, None) is None:
            raise Crash

    def uri(self, path: str) -> str:
        return str(Path(self.root, path))

    def names(self, path: str = "") -> list[str]:
        directory = Path(self.root, path)
        return sorted(one.name for one in directory.iterdir()) if directory.exists() else []

    def files_below(self, path: str) -> dict[str, int]:
        base = Path(self.root, path)
        return {str(one.relative_to(base)): one.stat().st_size for one in sorted(base.rglob("*")) if one.is_file()}

    def read(self, path: str) -> str:
        return Path(self.root, path).read_text()

    def create(self, path: str, text: str) -> bool:
        target = Path(self.root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._change()
        beside = target.with_name(f"_{target.name}")
        beside.write_text(text[: len(text) // 2])
        self._change()
        beside.write_text(text)
        self._change()
        beside.rename(target)
        return True

    def delete(self, path: str) -> None:
        """Delete a directory file by file, as file systems do."""
        target = Path(self.root, path)
        for file in sorted(target.rglob("*.rows")):
            self._change()
            file.unlink()
        self._change()
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def write(self, path: str, numbers: Sequence[int]) -> list[str]:
        """Write rows, which are numbers, as two files."""
        target = Path(self.root, path)
        target.mkdir(parents=True)
        for part in range(2):
            self._change()
            (target / f"{part}.rows").write_text(json.dumps(list(numbers[part::2])))
        return ["0.rows", "1.rows"]


def run(root: Path, stored: int, now: datetime, changes: int | None = None) -> None:
    """Export the numbers below ``stored`` that are not there yet, and merge three increments, in the steps of
    `export_events`."""
    local = LocalFiles(root, changes)
    files = ArchiveFiles(local)
    manifest = files.newest()
    manifest, _ = files.clean(manifest, now - KEPT_FOR, lambda tail: True)
    begin = manifest.horizon[0].transaction_id if manifest.horizon else 0
    if begin < stored:
        name = files.new_increment(manifest)
        found = local.write(f"{files.history}/increment={name}", range(begin, stored))
        manifest = manifest.followed_by(increment(name, begin, stored, found), {})
        files.add(manifest)
    if len(manifest.increments) >= 3:
        name = files.new_increment(manifest)
        found = local.write(f"{files.history}/increment={name}", range(stored))
        manifest = manifest.merged(increment(name, 0, stored, found), now, now - KEPT_FOR)
        files.add(manifest)


def rows_of(root: Path, manifest: Manifest) -> list[int]:
    paths = [
        root / "history-0001" / f"increment={one.name}" / file for one in manifest.increments for file in one.files
    ]
    return sorted(number for path in paths for number in json.loads(path.read_text()))


def check_readable(root: Path) -> None:
    """Each manifest that is there can be read, and has each row below its horizon once."""
    for manifest in ArchiveFiles(LocalFiles(root)).manifests():
        assert rows_of(root, manifest) == list(range(manifest.horizon[0].transaction_id if manifest.horizon else 0))


def test_whatever_step_a_run_dies_at_the_archive_can_be_read(tmp_path: Path) -> None:
    """The run is one that cleans up after merges, exports and merges again."""
    before = tmp_path / "before"
    exports = 9
    for number in range(1, exports):
        run(before, 10 * number, NOW + number * EVERY)
        check_readable(before)
    last = NOW + exports * EVERY + KEPT_FOR
    for changes in itertools.count():
        root = tmp_path / str(changes)
        shutil.copytree(before, root)
        try:
            run(root, 10 * exports, last, changes)
        except Crash:
            check_readable(root)
            run(root, 10 * exports, last)
            check_end(root, exports)
        else:
            check_end(root, exports)
            break
    assert changes > 15, "files of merged increments were deleted, too"


def check_end(root: Path, exports: int) -> None:
    check_readable(root)
    newest = ArchiveFiles(LocalFiles(root)).newest()
    assert rows_of(root, newest) == list(range(10 * exports))
    named = {one.name for one in (*newest.increments, *newest.replaced)}
    assert {path.name.partition("=")[2] for path in (root / "history-0001").glob("increment=*")} == named
    assert not list((root / "history-0001" / "_manifests").glob("_*"))


def begun(root: Path, stored: int) -> tuple[ArchiveFiles, Manifest]:
    """Export as `run` does, up to the step that adds the manifest. Return that manifest."""
    local = LocalFiles(root)
    files = ArchiveFiles(local)
    before = files.newest()
    begin = before.horizon[0].transaction_id if before.horizon else 0
    name = files.new_increment(before)
    found = local.write(f"{files.history}/increment={name}", range(begin, stored))
    return files, before.followed_by(increment(name, begin, stored, found), {})


@pytest.mark.parametrize("archived", [0, 10])
def test_an_export_whose_files_another_one_has_deleted_adds_nothing(tmp_path: Path, archived: int) -> None:
    """Two run at once if they name the archive by different paths, or if the database was restarted meanwhile."""
    run(tmp_path, archived, NOW)
    slow, added = begun(tmp_path, 20)
    run(tmp_path, archived, NOW)
    with pytest.raises(ArchiveBusy):
        slow.add(added)
    check_readable(tmp_path)
    run(tmp_path, 20, NOW)
    assert rows_of(tmp_path, ArchiveFiles(LocalFiles(tmp_path)).newest()) == list(range(20))


def test_missing_and_added_files_are_found(tmp_path: Path) -> None:
    run(tmp_path, 10, NOW)
    files = ArchiveFiles(LocalFiles(tmp_path))
    (one,) = files.newest().increments
    files.check_files([one])
    for wrong in (
        one._replace(files=["0.rows"]),
        one._replace(files=[*one.files, "2.rows"]),
        one._replace(name="gone"),
    ):
        with pytest.raises(ArchiveError, match="restore"):
            files.check_files([wrong])


def test_a_history_that_was_not_finished_is_no_archive_yet(tmp_path: Path) -> None:
    run(tmp_path, 10, NOW)
    anew = ArchiveFiles(LocalFiles(tmp_path), anew=True)
    LocalFiles(tmp_path).write(f"{anew.history}/increment={anew.new_increment(anew.newest())}", range(20))
    assert rows_of(tmp_path, ArchiveFiles(LocalFiles(tmp_path)).newest()) == list(range(10))
    assert ArchiveFiles(LocalFiles(tmp_path), anew=True).history == "history-0003"


def test_who_reads_a_merged_increment_has_a_day_for_it(tmp_path: Path) -> None:
    for number in range(1, 3):
        run(tmp_path, number, NOW)
    reading = ArchiveFiles(LocalFiles(tmp_path)).newest()
    assert len(reading.increments) == 2
    run(tmp_path, 3, NOW)
    run(tmp_path, 4, NOW + KEPT_FOR - timedelta(microseconds=1))
    assert rows_of(tmp_path, reading) == [0, 1]
    run(tmp_path, 5, NOW + KEPT_FOR)
    with pytest.raises(FileNotFoundError):
        rows_of(tmp_path, reading)
    check_readable(tmp_path)


def test_ranges_meet_where_they_have_buckets_in_common() -> None:
    assert BucketRange(0, 127).meets(BucketRange(127, 300))
    assert BucketRange(127, 300).meets(BucketRange(0, 127))
    assert not BucketRange(0, 127).meets(BucketRange(128, 255))


def test_the_manifest_that_another_export_is_writing_stays_until_its_number_is_taken(tmp_path: Path) -> None:
    run(tmp_path, 10, NOW)
    files = ArchiveFiles(LocalFiles(tmp_path))
    manifests = tmp_path / "history-0001" / "_manifests"
    (manifests / "_000002.json.5f0c93ab").write_text("{}")
    (manifests / "_000001.json.0a1b2c3d").write_text("{}")
    files.clean(files.newest(), NOW, lambda tail: True)
    assert sorted(one.name for one in manifests.iterdir()) == ["000001.json", "_000002.json.5f0c93ab"]
    run(tmp_path, 20, NOW)
    files.clean(files.newest(), NOW, lambda tail: True)
    assert sorted(one.name for one in manifests.iterdir()) == ["000001.json", "000002.json"]

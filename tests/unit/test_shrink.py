"""shrink: one shard from its files, in order; a bad file costs itself, a failing store the whole shard."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ingest import store
from ingest.build import isolate
from ingest.build.image import encode_jpeg, engine_versions
from ingest.build.limits import Limits
from ingest.build.pending import pending_shards
from ingest.build.planned import PlanHead, PlannedFile, PlannedShard, ShardHead
from ingest.build.shrink import ShardTask, build_shard, moments
from ingest.build.tally import Tally
from ingest.errors import DeviceError, StoreError
from ingest.recipe import Recipe
from ingest.shard import make_key, members_of, read_receipt

NAME = "train/000000-ab"
PLANTED = Path(__file__).parents[1] / "planted"


def _photo(number: int) -> bytes:
    image = np.full((240, 320, 3), number * 20, np.uint8)
    image[:, :100] = (200, 30, 60)
    return encode_jpeg(image, 90)


def _task(folder: Path, files: dict[str, tuple[bytes | None, int | None]], **changes: object) -> ShardTask:
    planned = []
    for name, (data, class_id) in files.items():
        path = folder / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)
        label = None if class_id is None else f"c{class_id}"
        size = 7 if data is None else len(data)
        planned.append(PlannedFile(make_key(name.encode()), name.encode(), size, "v", label, class_id))
    values = {
        "roots": (str(folder / "raw"),),
        "dataset": str(folder / "out"),
        "recipe": Recipe(),
        "labelled": True,
        "engines": engine_versions(),
    }
    shard = PlannedShard(NAME, "train", tuple(planned))
    return ShardTask(**{**values, "shard": shard, **changes})  # type: ignore[arg-type]


def _head(task: ShardTask) -> PlanHead:
    shards = (ShardHead(NAME, "train", 1, 0),)
    return PlanHead(
        roots=task.roots, dataset=task.dataset, recipe=task.recipe, classes=("c0",), shards=shards
    )


def _ignore(_: Tally) -> None:
    pass


def _pending(task: ShardTask, **limits: float) -> list[str]:
    present = store.list_files(task.dataset)
    return pending_shards(_head(task), present, {}, Limits(**limits))  # type: ignore[arg-type]


def _codes(task: ShardTask) -> dict[str, str]:
    rows = read_receipt(task.dataset, NAME)[1].to_pylist()
    return {row["path"].decode(): row["code"] for row in rows}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch):
    """Have processes that decode meet the faults of `tests/planted`."""
    isolate.end_idle()
    monkeypatch.setattr(sys, "path", [str(PLANTED), *sys.path])
    yield
    isolate.end_idle()


def test_shard_holds_its_files_in_order(tmp_path: Path) -> None:
    """Samples stand in the order of the plan, each with its class; the receipt says where each came from."""
    task = _task(tmp_path, {f"{n}.jpg": (_photo(n), n % 3) for n in range(9)})
    ticks: list[Tally] = []

    (summary,) = build_shard(task, ticks.append)

    data = (tmp_path / "out/train/000000-ab.tar").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    keys = [file.key for file in task.shard.files]
    assert names == [f"{key}.{field}" for key in keys for field in ("jpg", "cls")]
    assert (summary.samples, summary.rejects, summary.bytes, summary.pixels) == (
        9,
        0,
        len(data),
        9 * 224 * 224,
    )
    assert ticks == [Tally(files=1)] * 9
    _, receipt = read_receipt(task.dataset, NAME)
    for number, (key, (image, label)) in enumerate(members_of(receipt)):
        assert key == keys[number]
        assert data[image.offset : image.offset + 2] == b"\xff\xd8"
        assert data[label.offset : label.offset + label.size] == b"%d" % (number % 3)
    first = receipt.to_pylist()[0]
    assert (first["source"], first["source_width"], first["source_height"]) == (
        f"{task.roots[0]}/0.jpg",
        320,
        240,
    )
    assert len(first["source_sha256"]) == 64


def test_bad_files_cost_only_themselves(tmp_path: Path) -> None:
    """Empty, cut, foreign, vanished and unlabelled files are rejected with a code each; the others arrive."""
    photo = _photo(1)
    task = _task(
        tmp_path,
        {
            "good.jpg": (photo, 0),
            "empty.jpg": (b"", 0),
            "cut.jpg": (photo[: len(photo) // 2], 1),
            "text.jpg": (b"just text", 1),
            "gone.jpg": (None, 1),
            "no class.jpg": (photo, None),
            "good too.jpg": (photo, 1),
        },
    )

    (summary,) = build_shard(task, _ignore)

    _, receipt = read_receipt(task.dataset, summary.name)
    outcome = {Path(row["source"]).name: row["code"] for row in receipt.to_pylist()}
    assert (summary.samples, summary.rejects) == (2, 5)
    assert outcome == {
        "good.jpg": None, "empty.jpg": "empty", "cut.jpg": "truncated", "text.jpg": "not_an_image",
        "gone.jpg": "unreadable", "no class.jpg": "no_label", "good too.jpg": None,
    }  # fmt: skip
    assert all(len(row["reason"]) > 10 for row in receipt.to_pylist() if row["status"] == "rejected")


def test_dataset_without_classes_has_no_class_field(tmp_path: Path) -> None:
    """Where no file has a class, samples are pictures alone."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), None)}, labelled=False)

    build_shard(task, _ignore)

    with tarfile.open(tmp_path / "out/train/000000-ab.tar") as tar:
        assert tar.getnames() == [f"{task.shard.files[0].key}.jpg"]


def test_shard_of_rejects_leaves_a_receipt_alone(tmp_path: Path) -> None:
    """When no file becomes a sample there is no tar, and the shard counts as done."""
    task = _task(tmp_path, {"1.jpg": (b"", 0)})
    head = _head(task)

    build_shard(task, _ignore)

    present = store.list_files(task.dataset)
    assert list(present) == ["train/000000-ab.parquet"]
    assert pending_shards(head, present, {}) == []


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("name", "reason"), [("ETIMEDOUT.jpg", "Connection timed out"), ("ESTALE.jpg", "Stale file handle")]
)
def test_failing_store_leaves_nothing(tmp_path: Path, name: str, reason: str) -> None:
    """A read that may pass the next time is no reject: the shard stays unbuilt and the error says why."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), name: (_photo(2), 0)})

    with pytest.raises(StoreError, match=rf"{name}: cannot read: {reason}"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}


@pytest.mark.usefixtures("planted")
def test_bad_sector_costs_one_file(tmp_path: Path) -> None:
    """A local file that gives EIO twice is unreadable, one that gives it once is read, as are the others."""
    files = {name: (_photo(1), 0) for name in ("1.jpg", "EIO.jpg", "HICCUP.jpg", "2.jpg")}
    task = _task(tmp_path, files)  # type: ignore[arg-type]

    (summary,) = build_shard(task, _ignore)

    assert (summary.samples, summary.rejects) == (3, 1)
    assert _codes(task)["EIO.jpg"] == "unreadable"
    assert json.loads((tmp_path / f"out/{NAME}.retry").read_bytes()) == {
        "memory_limit": 4 * 2**30, "time_limit": 120.0,
    }  # fmt: skip


@pytest.mark.usefixtures("planted")
def test_crash_costs_one_file(tmp_path: Path) -> None:
    """What kills, hangs or fills the process that decodes is rejected; the rest is as it is without."""
    bad = {"SEGFAULT": "crashed", "HANG": "timed_out", "GREEDY": "out_of_memory", "ODD": "crashed"}
    good = {f"{number}.jpg": (_photo(number), 0) for number in range(6)}
    limits = Limits(time_limit=2, memory_limit=2**28)
    mixed = {name: (name.encode(), 1) for name in bad}
    names = sorted({**good, **mixed}, key=lambda name: make_key(name.encode()))  # mixed up
    files = {name: {**good, **mixed}[name] for name in names}
    task = _task(tmp_path, files, limits=limits)  # type: ignore[arg-type]
    only_good = {name: file for name, file in files.items() if name in good}
    clean = _task(tmp_path, only_good, dataset=str(tmp_path / "clean"))  # type: ignore[arg-type]
    total = Tally()

    def tick(tally: Tally) -> None:
        nonlocal total
        total += tally

    (summary,) = build_shard(task, tick)

    assert {name: code for name, code in _codes(task).items() if code} == bad
    assert summary.sha256 == build_shard(clean, _ignore)[0].sha256
    assert (total.files, total.samples, dict(total.rejects)) == (
        10, 6, {"crashed": 2, "timed_out": 1, "out_of_memory": 1},
    )  # fmt: skip
    assert total.examples["timed_out"] == (
        f"{task.roots[0]}/HANG: Decoding takes longer than 2 s: raise 'time_limit' to have it tried again."
    )
    rows = {row["path"].decode(): row for row in read_receipt(task.dataset, NAME)[1].to_pylist()}
    assert (rows["SEGFAULT"]["source_bytes"], len(rows["SEGFAULT"]["source_sha256"])) == (8, 64)


@pytest.mark.usefixtures("planted")
def test_shards_of_a_worker_share_a_process(tmp_path: Path) -> None:
    """Shards built one after the other are decoded by one process."""
    noted = tmp_path / "pids"
    task = _task(tmp_path, {"1.jpg": (b"PID %s" % os.fsencode(noted), 0), "2.jpg": (_photo(1), None)})

    for _ in range(3):
        build_shard(task, _ignore)

    pids = noted.read_text().split()
    assert (len(pids), len(set(pids))) == (3, 1)
    assert int(pids[0]) != os.getpid()


def test_task_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """An error of the tick, by which a build is stopped, ends the shard in the middle."""
    task = _task(tmp_path, {f"{n}.jpg": (_photo(n), 0) for n in range(4)})
    seen: list[Tally] = []

    def tick(tally: Tally) -> None:
        seen.append(tally)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_shard(task, tick)

    assert store.list_files(task.dataset) == {}


def test_file_too_large_to_decode_is_not_read(tmp_path: Path) -> None:
    """A file of more than half the memory limit is too large, unread, until the limit is raised."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)}, limits=Limits(memory_limit=2 * len(_photo(1)) - 2))

    build_shard(task, _ignore)

    row = read_receipt(task.dataset, NAME)[1].to_pylist()[0]
    assert (row["code"], row["source_bytes"], row["source_sha256"]) == ("too_large", len(_photo(1)), None)
    assert "larger than half of 'memory_limit' (0 MiB): raise it" in row["reason"]
    assert _pending(task, memory_limit=task.limits.memory_limit) == []
    assert _pending(task, memory_limit=2**28) == [NAME]


def test_enlarged_samples_are_counted(tmp_path: Path) -> None:
    """A picture smaller than the output counts as enlarged, another does not."""
    small = encode_jpeg(np.zeros((100, 300, 3), np.uint8), 90)
    task = _task(tmp_path, {"small.jpg": (small, 0), "large.jpg": (_photo(1), 0)})
    ticks: list[Tally] = []

    build_shard(task, ticks.append)

    assert [tick.enlarged for tick in ticks] == [1, 0]


def test_shard_is_pending_until_both_files_are_there(tmp_path: Path) -> None:
    """A tar without a receipt, and a receipt whose tar is gone, are not whole."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    head = _head(task)
    build_shard(task, _ignore)
    present = store.list_files(task.dataset)

    assert pending_shards(head, present, {}) == []
    assert pending_shards(head, {}, {}) == [NAME]
    for name in present:
        assert pending_shards(head, {name: 1}, {}) == [NAME]


def test_same_task_gives_the_same_bytes(tmp_path: Path) -> None:
    """Building a shard twice gives identical tars."""
    files = {f"{n}.jpg": (_photo(n), 0) for n in range(3)}
    task = _task(tmp_path, files)  # type: ignore[arg-type]
    other = _task(tmp_path, files, dataset=str(tmp_path / "other"))  # type: ignore[arg-type]

    assert build_shard(task, _ignore)[0].sha256 == build_shard(other, _ignore)[0].sha256


def test_moments_are_exact() -> None:
    """Sums over pixels from the histogram equal those over the pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), np.uint8)
    counts = [
        int(n) for channel in range(3) for n in np.bincount(pixels[..., channel].ravel(), minlength=256)
    ]
    wide = pixels.astype(np.int64)

    assert moments(counts) == (50 * 40, wide.sum((0, 1)).tolist(), (wide**2).sum((0, 1)).tolist())


def test_sealed_shard_of_another_size_is_pending(tmp_path: Path) -> None:
    """A tar whose size is not that of the index was cut or replaced: it is built again."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    size = build_shard(task, _ignore)[0].bytes
    present = store.list_files(task.dataset)

    assert pending_shards(_head(task), present, {NAME: size}) == []
    assert pending_shards(_head(task), present, {NAME: size + 512}) == [NAME]


def test_unreadable_file_is_tried_again_once_it_can_be_read(tmp_path: Path) -> None:
    """A file that was away is rejected; the shard is pending again when, and only when, it is back."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), "2.jpg": (_photo(2), 0)})
    away = tmp_path / "raw/2.jpg"
    away.rename(tmp_path / "2.jpg")
    assert build_shard(task, _ignore)[0].rejects == 1
    assert _pending(task) == []

    (tmp_path / "2.jpg").rename(away)

    assert _pending(task) == [NAME]
    assert build_shard(task, _ignore)[0].rejects == 0
    assert _pending(task) == []
    assert f"{NAME}.retry" not in store.list_files(task.dataset)


def test_empty_mark_of_an_earlier_version_still_counts(tmp_path: Path) -> None:
    """Marks that hold nothing stand for files that could not be read, as they did."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), "2.jpg": (None, 0)})
    build_shard(task, _ignore)
    (tmp_path / f"out/{NAME}.retry").write_bytes(b"")
    assert _pending(task) == []

    (tmp_path / "raw/2.jpg").write_bytes(_photo(2))

    assert _pending(task) == [NAME]


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("fault", "higher", "other"),
    [
        ("HANG", {"time_limit": 2}, {"memory_limit": 2**30}),
        ("GREEDY", {"memory_limit": 2**30}, {"time_limit": 99}),
    ],
)
def test_limited_file_is_tried_again_under_higher_limits(
    tmp_path: Path, fault: str, higher: dict[str, float], other: dict[str, float]
) -> None:
    """A shard is pending again when the limit that cost it a file has been raised, not when another has."""
    now = {"time_limit": 1, "memory_limit": 2**28}
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), "x": (fault.encode(), 0)}, limits=Limits(**now))
    build_shard(task, _ignore)

    assert _pending(task, **now) == []
    assert _pending(task, **{**now, **other}) == []
    assert _pending(task, **{**now, **higher}) == [NAME]
    assert pending_shards(_head(task), store.list_files(task.dataset), {}) == []


@pytest.mark.parametrize("state", ["gone", "empty"])
def test_unmounted_root_is_no_reject(tmp_path: Path, state: str) -> None:
    """When the whole raw folder is missing or empty the shard fails with its name, and nothing is written."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    if state == "empty":
        (tmp_path / "raw").mkdir()

    with pytest.raises(StoreError, match=f"{task.roots[0]}: is missing or empty on .*: mount it"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}


def test_other_engines_are_refused(tmp_path: Path) -> None:
    """A worker whose engines are not those of the driver builds nothing: its bytes would differ."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)}, engines={"pillow": "0.1"})

    with pytest.raises(DeviceError, match=r"expected \{'pillow': '0.1'\}: install the same versions"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}


def test_siblings_are_what_they_would_be_alone(tmp_path: Path) -> None:
    """Shards of two datasets, built of the same pictures at once, have the bytes of those built alone."""
    files = {"1.jpg": (_photo(1), 0), "bad.jpg": (b"<html>", 0), "2.jpg": (_photo(2), 1), "x.jpg": (None, 1)}
    small = _task(tmp_path, files)
    large = _task(tmp_path, files, dataset=str(tmp_path / "b"), recipe=Recipe(size=300, encoding="png"))
    ticks: list[Tally] = []

    both = build_shard(dataclasses.replace(small, siblings=(large,)), ticks.append)

    alone = [
        build_shard(dataclasses.replace(task, dataset=str(tmp_path / f"alone{number}")), _ignore)[0]
        for number, task in enumerate((small, large))
    ]
    assert list(both) == alone
    assert [summary.samples for summary in both] == [2, 2]
    assert sum(tick.files for tick in ticks) == 4
    for name in ("out", "b"):
        receipt = read_receipt(str(tmp_path / name), NAME)[1]
        assert receipt["code"].to_pylist() == [None, "not_an_image", None, "unreadable"]


def test_failing_sibling_leaves_nothing_of_either(tmp_path: Path) -> None:
    """When the build of a shard is stopped, no tar of any dataset is left."""
    files = {"1.jpg": (_photo(1), 0), "2.jpg": (_photo(2), 1)}
    other = _task(tmp_path, files, dataset=str(tmp_path / "b"))  # type: ignore[arg-type]
    task = dataclasses.replace(_task(tmp_path, files), siblings=(other,))  # type: ignore[arg-type]

    def stop(_: Tally) -> None:
        raise StoreError("enough")

    with pytest.raises(StoreError, match="enough"):
        build_shard(task, stop)

    assert [path for name in ("out", "b") for path in (tmp_path / name).rglob("*.*") if path.is_file()] == []

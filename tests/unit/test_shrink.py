"""shrink: one shard from its files, in order; a bad file costs itself, a failing store the whole shard."""

from __future__ import annotations

import errno
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ingest import store
from ingest.build import shrink as shrink_module
from ingest.build.image import encode_jpeg, engine_versions
from ingest.build.plan import PlanHead, PlannedFile, PlannedShard, ShardHead
from ingest.build.shrink import Histogram, ShardTask, build_shard, pending_shards
from ingest.errors import DeviceError, StoreError
from ingest.recipe import Recipe
from ingest.shard import make_key, members_of, read_receipt


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
        planned.append(PlannedFile(make_key(name.encode()), name.encode(), 7, "v", label, class_id))
    values = {
        "raw": str(folder / "raw"),
        "dataset": str(folder / "out"),
        "recipe": Recipe(),
        "labelled": True,
        "engines": engine_versions(),
    }
    shard = PlannedShard("train/000000-ab", "train", tuple(planned))
    return ShardTask(**{**values, "shard": shard, **changes})  # type: ignore[arg-type]


def _head(task: ShardTask) -> PlanHead:
    shards = (ShardHead("train/000000-ab", "train", 1, 0),)
    return PlanHead(raw=task.raw, dataset=task.dataset, recipe=task.recipe, classes=("c0",), shards=shards)


def _ignore(_: tuple[int, ...]) -> None:
    pass


def test_shard_holds_its_files_in_order(tmp_path: Path) -> None:
    """Samples stand in the order of the plan, each with its class; the receipt says where each came from."""
    task = _task(tmp_path, {f"{n}.jpg": (_photo(n), n % 3) for n in range(9)})
    ticks: list[tuple[int, ...]] = []

    summary = build_shard(task, ticks.append)

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
    assert ticks == [(1, 0)] * 9
    _, receipt = read_receipt(task.dataset, "train/000000-ab")
    for number, (key, (image, label)) in enumerate(members_of(receipt)):
        assert key == keys[number]
        assert data[image.offset : image.offset + 2] == b"\xff\xd8"
        assert data[label.offset : label.offset + label.size] == b"%d" % (number % 3)
    first = receipt.to_pylist()[0]
    assert (first["source"], first["source_width"], first["source_height"]) == (f"{task.raw}/0.jpg", 320, 240)
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

    summary = build_shard(task, _ignore)

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


def test_failing_store_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that may pass the next time is no reject: the shard stays unbuilt and the error says why."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), "2.jpg": (_photo(2), 0)})

    def fail(url: str) -> bytes:
        raise StoreError(f"{url}: cannot read: {errno.errorcode[errno.EIO]}")

    monkeypatch.setattr(shrink_module.store, "read_bytes", fail)

    with pytest.raises(StoreError, match=r"1\.jpg: cannot read: EIO"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}


def test_shard_is_pending_until_both_files_are_there(tmp_path: Path) -> None:
    """A tar without a receipt, and a receipt whose tar is gone, are not whole."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    head = _head(task)
    build_shard(task, _ignore)
    present = store.list_files(task.dataset)

    assert pending_shards(head, present, {}) == []
    assert pending_shards(head, {}, {}) == ["train/000000-ab"]
    for name in present:
        assert pending_shards(head, {name: 1}, {}) == ["train/000000-ab"]


def test_same_task_gives_the_same_bytes(tmp_path: Path) -> None:
    """Building a shard twice gives identical tars."""
    files = {f"{n}.jpg": (_photo(n), 0) for n in range(3)}
    task = _task(tmp_path, files)  # type: ignore[arg-type]
    other = _task(tmp_path, files, dataset=str(tmp_path / "other"))  # type: ignore[arg-type]

    assert build_shard(task, _ignore).sha256 == build_shard(other, _ignore).sha256


def test_histogram_sums_are_exact() -> None:
    """Sums over pixels from the histogram equal those over the pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), np.uint8)
    counts = [
        int(n) for channel in range(3) for n in np.bincount(pixels[..., channel].ravel(), minlength=256)
    ]
    histogram = Histogram()

    histogram.add(counts)
    histogram.add(counts)

    wide = pixels.astype(np.int64)
    assert histogram.pixels == 2 * 50 * 40
    assert histogram.sums(1) == tuple(2 * wide.sum((0, 1)))
    assert histogram.sums(2) == tuple(2 * (wide**2).sum((0, 1)))


def test_sealed_shard_of_another_size_is_pending(tmp_path: Path) -> None:
    """A tar whose size is not that of the index was cut or replaced: it is built again."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    size = build_shard(task, _ignore).bytes
    present = store.list_files(task.dataset)

    assert pending_shards(_head(task), present, {"train/000000-ab": size}) == []
    assert pending_shards(_head(task), present, {"train/000000-ab": size + 512}) == ["train/000000-ab"]


def test_unreadable_file_is_tried_again_once_it_can_be_read(tmp_path: Path) -> None:
    """A file that was away is rejected; the shard is pending again when, and only when, it is back."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0), "2.jpg": (_photo(2), 0)})
    away = tmp_path / "raw/2.jpg"
    away.rename(tmp_path / "2.jpg")
    assert build_shard(task, _ignore).rejects == 1
    assert pending_shards(_head(task), store.list_files(task.dataset), {}) == []

    (tmp_path / "2.jpg").rename(away)

    assert pending_shards(_head(task), store.list_files(task.dataset), {}) == ["train/000000-ab"]
    assert build_shard(task, _ignore).rejects == 0
    assert pending_shards(_head(task), store.list_files(task.dataset), {}) == []
    assert "train/000000-ab.retry" not in store.list_files(task.dataset)


@pytest.mark.parametrize("state", ["gone", "empty"])
def test_unmounted_root_is_no_reject(tmp_path: Path, state: str) -> None:
    """When the whole raw folder is missing or empty the shard fails with its name, and nothing is written."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)})
    (tmp_path / "raw").rename(tmp_path / "elsewhere")
    if state == "empty":
        (tmp_path / "raw").mkdir()

    with pytest.raises(StoreError, match=f"{task.raw}: is missing or empty on .*: mount it"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}


def test_other_engines_are_refused(tmp_path: Path) -> None:
    """A worker whose engines are not those of the driver builds nothing: its bytes would differ."""
    task = _task(tmp_path, {"1.jpg": (_photo(1), 0)}, engines={"pillow": "0.1"})

    with pytest.raises(DeviceError, match=r"expected \{'pillow': '0.1'\}: install the same versions"):
        build_shard(task, _ignore)

    assert store.list_files(task.dataset) == {}

"""Samples of older shards are copied, byte for byte, and only where they are of the same file or content."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from ingest import store
from ingest.build import reuse, shrink
from ingest.build.drive import missing_shards
from ingest.build.history import update_plan
from ingest.build.image import encode_jpeg, engine_versions
from ingest.build.isolate import decode
from ingest.build.plan import PlanSettings
from ingest.build.planned import PlanHead, read_planned_shards
from ingest.build.reuse import Pool, gather, merge_engines
from ingest.build.scan import scan
from ingest.build.seal import seal
from ingest.build.shrink import ShardTask, build_shard
from ingest.errors import StoreError
from ingest.index import Index, read_index
from ingest.recipe import Recipe
from ingest.shard import read_receipt
from ingest.verify import verify


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder with 12 photos and an empty file of two classes."""
    for number in range(12):
        _write(tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg", _photo(number))
    _write(tmp_path / "raw/a/empty.jpg", b"")
    return tmp_path / "raw"


def _photo(number: int) -> bytes:
    grain = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
    return encode_jpeg(np.ascontiguousarray(np.kron(grain, np.ones((16, 16, 1), np.uint8))), 90)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that fills with the path of every file that is handed to a decoder."""
    seen: list[bytes] = []

    def watch(files, **options):
        known = options.get("known", frozenset())
        results = decode(files, **options)
        for (path, _), result in zip(files, results, strict=True):
            if result.sha256 not in known:
                seen.append(path)
            yield result

    monkeypatch.setattr(shrink, "decode", watch)
    return seen


def _build(folder: Path, out: str = "out", **changes: object) -> PlanHead:
    """Run the rooms of a build as the workflow does, but for the cluster."""
    scan(str(folder / "raw"), folder / "m.parquet")
    options = {name: changes.pop(name) for name in ("reshuffle",) if name in changes}
    values = {"dataset": str(folder / out), "recipe": Recipe(size=64), "samples_per_shard": 3, **changes}
    plan = folder / f"{out}.plan"
    head = update_plan(
        folder / "m.parquet", plan, PlanSettings(**values), allow_delete=True, **options  # type: ignore[arg-type]
    ).head  # fmt: skip
    missing = set(missing_shards(head))
    with gather(head, store.list_files(head.dataset), folder) as known:
        for shard in read_planned_shards(plan, head, missing):
            build_shard(_task(head, shard, known), lambda _: None)
    seal(head, missing_shards(head))
    return head


def _task(head: PlanHead, shard, known: Pool) -> ShardTask:
    return ShardTask(
        roots=head.roots,
        dataset=head.dataset,
        recipe=head.recipe,
        shard=shard,
        labelled=True,
        engines=engine_versions(),
        origins=known.origins(shard.files),
    )


def _samples(dataset: Path) -> dict[str, tuple[object, ...]]:
    """Return for each source of a dataset its picture, class and all that its receipt says of the making."""
    found = {}
    for shards in read_index(str(dataset)).splits.values():
        for entry in shards:
            data = (dataset / f"{entry.name}.tar").read_bytes()
            for row in read_receipt(str(dataset), entry.name)[1].to_pylist():
                if row["status"] == "sample":
                    begin, made = row["image_offset"], [str(row[name]) for name in shrink._DESCRIPTION]
                    picture = data[begin : begin + row["image_bytes"]]
                    found[row["path"].decode()] = (picture, row["class_id"], row["source_sha256"], *made)
    return found


def _is_like_new(folder: Path) -> bool:
    """Return whether the dataset holds what one does that is built from nothing, and is whole."""
    _build(folder, "new")
    assert verify(str(folder / "out"), cores=1, on_done=lambda *_: None).faults == ()
    grown, new = read_index(str(folder / "out")), read_index(str(folder / "new"))
    assert (grown.mean, grown.std, grown.rejects) == (new.mean, new.std, new.rejects)
    return _without_ids(folder, grown) == _without_ids(folder, new)


def _without_ids(folder: Path, index: Index) -> dict[str, tuple[object, ...]]:
    name = "out" if index == read_index(str(folder / "out")) else "new"
    samples = _samples(folder / name)
    return {path: (image, index.classes[ids], *rest) for path, (image, ids, *rest) in samples.items()}


def test_added_files_alone_are_decoded(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """The shard that takes a new file copies the samples that it had."""
    _build(tmp_path)
    decoded.clear()
    _write(raw / "b/new.jpg", _photo(50))

    _build(tmp_path)

    assert decoded == [b"b/new.jpg"]
    assert _is_like_new(tmp_path)


def test_moved_and_touched_files_are_not_decoded(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """A renamed class, a new time stamp, an upload under another name: read, and copied by content."""
    _build(tmp_path)
    decoded.clear()
    (raw / "b").rename(raw / "renamed")
    os.utime(raw / "a/0.jpg", (1, 1))
    (raw / "a/2.jpg").rename(raw / "a/two.jpg")

    _build(tmp_path)

    assert decoded == []
    assert read_index(str(tmp_path / "out")).classes == ("a", "b", "renamed")
    assert _is_like_new(tmp_path)


def test_edited_file_is_decoded(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """Other content of the same size under the same name is not taken for what was there."""
    _write(raw / "a/0.jpg", _photo(0) + b"x")
    _build(tmp_path)
    decoded.clear()
    changed = _photo(77)
    size = (raw / "a/0.jpg").stat().st_size
    _write(raw / "a/0.jpg", changed + b"\0" * (size - len(changed)) if len(changed) < size else changed)

    _build(tmp_path)

    assert decoded == [b"a/0.jpg"]
    assert _is_like_new(tmp_path)


def test_reshuffle_copies_all(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """Dealing anew decodes nothing, and not the reject either."""
    assert raw.is_dir()
    before = _build(tmp_path)
    decoded.clear()

    after = _build(tmp_path, seed=9)

    assert len({shard.name for shard in after.shards} - {shard.name for shard in before.shards}) >= 4
    assert decoded == []
    assert _is_like_new(tmp_path)


def test_another_recipe_copies_nothing(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """A sample of another size or quality is not what is wanted."""
    assert raw.is_dir()
    _build(tmp_path)
    decoded.clear()

    _build(tmp_path, recipe=Recipe(size=32))

    assert len(decoded) == 13


def test_archived_photos_are_copied(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """With `missing: keep`, samples outlive their photos, even in a shard that has to change."""
    _build(tmp_path)
    samples = _samples(tmp_path / "out")
    decoded.clear()
    for path in [*(raw / "a").iterdir(), *(raw / "b").iterdir()]:
        path.unlink()
    _write(raw / "b/new.jpg", _photo(50))

    _build(tmp_path, missing="keep", seed=3)

    assert decoded == [b"b/new.jpg"]
    kept = _samples(tmp_path / "out")
    assert kept.pop("b/new.jpg")
    assert kept == samples


def test_damaged_sample_is_decoded_instead(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """A flipped bit in an older shard is not passed on: the photo is decoded again."""
    _build(tmp_path)
    decoded.clear()
    for tar in sorted((tmp_path / "out").rglob("*.tar")):
        name = str(tar.relative_to(tmp_path / "out").with_suffix(""))
        row = read_receipt(str(tmp_path / "out"), name)[1].to_pylist()[1]
        if row["status"] == "sample":
            data = bytearray(tar.read_bytes())
            data[row["image_offset"] + 900] ^= 1
            tar.write_bytes(data)
            break

    _build(tmp_path, seed=4)

    assert decoded == [row["path"]]
    assert raw.is_dir()
    assert _is_like_new(tmp_path)


def test_marked_and_cut_shards_are_not_copied_from(tmp_path: Path, raw: Path) -> None:
    """What verify marked as damaged, or is not of the size that its receipt says, is no origin."""
    assert raw.is_dir()
    head = _build(tmp_path)
    nothing = dataclasses.replace(head, shards=())
    present = store.list_files(head.dataset)
    with gather(nothing, present, tmp_path) as known:
        assert len(known) == 13

    first, second, *_ = (shard.name for shard in head.shards)
    present |= {f"{first}.damaged": 0, f"{second}.tar": present[f"{second}.tar"] - 1}
    with gather(nothing, present, tmp_path) as known:
        assert len(known) == 13 - 3 - 3
    assert list(tmp_path.glob(".tmp-*")) == []


def test_marked_shard_is_built_again_as_it_was(tmp_path: Path, raw: Path, decoded: list[bytes]) -> None:
    """A shard with a mark is pending, comes back byte for byte, and the mark goes."""
    assert raw.is_dir()
    head = _build(tmp_path)
    name = head.shards[1].name
    tar, mark = tmp_path / f"out/{name}.tar", tmp_path / f"out/{name}.damaged"
    whole = tar.read_bytes()
    tar.write_bytes(b"\0" * len(whole))
    mark.write_bytes(b"")
    decoded.clear()

    assert missing_shards(head) == [name]
    _build(tmp_path)

    assert tar.read_bytes() == whole
    assert not mark.exists()
    assert len(decoded) == 3


def test_damaged_shard_is_not_replaced_by_one_with_less(tmp_path: Path, raw: Path) -> None:
    """Where the photo of a sample is gone, the marked shard that holds it stays."""
    head = _build(tmp_path)
    name = head.shards[1].name
    tar = tmp_path / f"out/{name}.tar"
    before = tar.read_bytes()
    (tmp_path / f"out/{name}.damaged").write_bytes(b"")
    shard = next(read_planned_shards(tmp_path / "out.plan", head, {name}))
    (raw / shard.files[0].path.decode()).unlink()

    with gather(head, store.list_files(head.dataset), tmp_path) as known:
        with pytest.raises(StoreError, match=f"{name}: is damaged, and the photo of its sample"):
            build_shard(_task(head, shard, known), lambda _: None)

    assert tar.read_bytes() == before


def test_mark_beside_a_broken_receipt_is_no_obstacle(tmp_path: Path, raw: Path) -> None:
    """A damaged shard that also waits for another try, with a receipt that cannot be read, is pending."""
    assert raw.is_dir()
    head = _build(tmp_path)
    name = head.shards[1].name
    for suffix, data in ((".retry", b"{}"), (".damaged", b""), (".parquet", b"PAR1 broken")):
        (tmp_path / f"out/{name}{suffix}").write_bytes(data)

    assert missing_shards(head) == [name]


def test_candidates_of_one_size_are_bounded(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files have the size of a new one, a task carries no more rows than the limit."""
    assert raw.is_dir()
    head = _build(tmp_path)
    shard = next(read_planned_shards(tmp_path / "out.plan", head, {head.shards[0].name}))
    moved = [file._replace(path=b"moved/" + file.path) for file in shard.files]
    monkeypatch.setattr(reuse, "_MOST_ALIKE", 2)

    nothing = dataclasses.replace(head, shards=())
    with gather(nothing, store.list_files(head.dataset), tmp_path) as known:
        origins = known.origins(moved)

    assert (len(origins.rows), origins.same) == (2, {})


def test_engines_of_different_ages_are_joined() -> None:
    """A shard with copied samples names every version that made one of them, each once."""
    merged = merge_engines([{"a": "2", "b": "1"}, {"a": "1 | 2"}, {"a": "3", "c": "9"}])

    assert merged == {"a": "1 | 2 | 3", "b": "1", "c": "9"}

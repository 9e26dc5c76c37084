"""seal: the index comes last and says what the receipts say; nothing unfinished is sealed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ingest import store
from ingest.build.drive import missing_shards
from ingest.build.history import update_plan
from ingest.build.image import decode_jpeg, encode_jpeg, engine_versions
from ingest.build.plan import PlanSettings
from ingest.build.planned import PlanHead, read_planned_shards
from ingest.build.scan import scan
from ingest.build.seal import seal
from ingest.build.shrink import ShardTask, build_shard
from ingest.errors import BuildError
from ingest.index import read_index
from ingest.recipe import Recipe
from ingest.verify import verify


def _build(folder: Path, *, seal_it: bool = True, recipe: Recipe | None = None) -> PlanHead:
    """Run scan, plan and shrink over `folder`/raw without Dask or Snakemake."""
    scan(str(folder / "raw"), folder / "m.parquet")
    settings = PlanSettings(
        dataset=str(folder / "out"), recipe=recipe or Recipe(size=64), samples_per_shard=3
    )
    head = update_plan(folder / "m.parquet", folder / "p.parquet", settings, allow_delete=True).head
    _build_missing(folder, head, seal_it=seal_it)
    return head


def _build_missing(folder: Path, head: PlanHead, *, seal_it: bool = True) -> None:
    """Build the shards that are not whole yet, and seal them."""
    missing = missing_shards(head)
    for shard in read_planned_shards(folder / "p.parquet", head, set(missing)):
        task = ShardTask(
            roots=head.roots, dataset=head.dataset, recipe=head.recipe, shard=shard,
            labelled=bool(head.classes), engines=engine_versions(),
        )  # fmt: skip
        build_shard(task, lambda _: None)
    if seal_it:
        seal(head, missing_shards(head, as_sealed=False))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify shards in this process: starting others takes a second, and tests/workflow does that."""
    monkeypatch.setattr(
        "ingest.verify.processes.run", lambda check, items, **_: ((item, check(item)) for item in items)
    )


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return a folder of 8 photos in two classes, and an empty file."""
    folder = tmp_path / "raw"
    for number in range(8):
        path = folder / ("ab"[number % 2]) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grain = np.random.default_rng(number).integers(0, 256, (12, 16, 3), np.uint8)
        path.write_bytes(encode_jpeg(np.ascontiguousarray(np.kron(grain, np.ones((8, 8, 1), np.uint8))), 90))
    (folder / "a/empty.jpg").write_bytes(b"")
    return folder


def test_sealed_dataset_says_what_it_holds(tmp_path: Path, raw: Path) -> None:
    """Samples, classes, fields and rejects of the index are those of the raw folder, and verify agrees."""
    head = _build(tmp_path)

    index = read_index(head.dataset)

    assert (index.num_samples("train"), index.classes, index.fields) == (8, ("a", "b"), ("jpg", "cls"))
    assert index.rejects == {"empty": 1}
    assert [shard.name for shard in index.splits["train"]] == [shard.name for shard in head.shards]
    rejects = pq.read_table(tmp_path / "out/rejects.parquet").to_pylist()
    assert [(row["source"], row["code"]) for row in rejects] == [(f"{raw}/a/empty.jpg", "empty")]
    found = verify(head.dataset, cores=1, on_done=lambda *_: None)
    assert (found.samples, found.faults) == (8, ())


def test_mean_and_std_are_those_of_the_pixels(tmp_path: Path, raw: Path) -> None:
    """The index's mean and std match the decoded samples up to JPEG loss."""
    assert raw.is_dir()
    head = _build(tmp_path)
    index = read_index(head.dataset)
    pixels = np.concatenate([_images(head.dataset, shard.name) for shard in index.splits["train"]]) / 255

    assert np.allclose(index.mean, pixels.mean((0, 1, 2)), atol=0.01)
    # 4:2:0 takes some of the variance out of coloured grain.
    assert np.allclose(index.std, pixels.std((0, 1, 2)), atol=0.03)


def _images(dataset: str, name: str) -> np.ndarray:
    from ingest.shard import members_of, read_receipt

    data = store.read_bytes(f"{dataset}/{name}.tar")
    places = [image for _, (image, *_) in members_of(read_receipt(dataset, name)[1])]
    return np.stack([decode_jpeg(data[p.offset : p.offset + p.size]) for p in places])


def test_missing_shards_are_not_sealed(tmp_path: Path, raw: Path) -> None:
    """As long as a planned shard is missing there is no dataset to open."""
    assert raw.is_dir()
    head = _build(tmp_path, seal_it=False)

    with pytest.raises(BuildError, match="1 shard of 3 not built yet"):
        seal(head, [head.shards[1].name])

    assert not (tmp_path / "out/dataset.json").exists()


def test_sealing_again_changes_nothing(tmp_path: Path, raw: Path) -> None:
    """A second seal of the same shards says so and leaves every file alone."""
    assert raw.is_dir()
    head = _build(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}

    assert not seal(head, []).changed
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_nothing_but_rejects_is_not_sealed(tmp_path: Path) -> None:
    """When no file became a sample the error says why, with an example, and no dataset appears."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/1.jpg").write_bytes(b"")
    (tmp_path / "raw/2.jpg").write_bytes(b"text")

    with pytest.raises(
        BuildError, match=r"none of 2 files became a sample \(1 \w+, 1 \w+; first .*raw/[12]\.jpg"
    ):
        _build(tmp_path)

    assert not (tmp_path / "out/dataset.json").exists()


def test_changed_recipe_leaves_the_old_shards(tmp_path: Path, raw: Path) -> None:
    """A rebuild with another recipe writes new files beside the old ones: a running reader keeps its own."""
    assert raw.is_dir()
    _build(tmp_path)
    old = {shard.name for shard in read_index(str(tmp_path / "out")).splits["train"]}

    _build(tmp_path, recipe=Recipe(size=32))

    new = {shard.name for shard in read_index(str(tmp_path / "out")).splits["train"]}
    assert not old & new
    assert all((tmp_path / f"out/{name}.tar").exists() for name in old | new)


def test_verify_finds_each_kind_of_damage(tmp_path: Path, raw: Path) -> None:
    """A flipped bit, a missing shard, a stale offset file and a lost receipt are each found and named."""
    assert raw.is_dir()
    head = _build(tmp_path)
    names = [tmp_path / "out" / shard.name for shard in head.shards]

    def faults() -> list[str]:
        return list(verify(head.dataset, cores=1, on_done=lambda *_: None).faults)

    def damaged(path: Path, change) -> list[str]:
        whole = path.read_bytes()
        changed = change(bytearray(whole))
        path.unlink() if changed is None else path.write_bytes(bytes(changed))
        found = faults()
        path.write_bytes(whole)
        return found

    def flip(data: bytearray) -> bytearray:
        data[700] ^= 1
        return data

    tar = names[0].with_name(f"{names[0].name}.tar")
    assert any("SHA-256" in fault and tar.name in fault for fault in damaged(tar, flip))
    assert any("bytes long, the index says" in fault for fault in damaged(tar, lambda data: data[:-512]))
    assert any(f"{tar.name}: is missing" in fault for fault in damaged(tar, lambda _: None))
    offsets = tar.with_suffix(".idx")
    assert any(
        f"{offsets.name}: does not agree" in f for f in damaged(offsets, lambda d: d.replace(b"512", b"1024"))
    )
    assert any(f"{offsets.name}: is missing" in fault for fault in damaged(offsets, lambda _: None))
    receipt = tar.with_suffix(".parquet")
    assert any(f"{receipt.name}: is missing" in fault for fault in damaged(receipt, lambda _: None))
    assert faults() == []


def test_shard_built_again_with_another_size_is_sealed(tmp_path: Path, raw: Path) -> None:
    """A photo that was away, and comes back, makes its shard larger: the next build seals it so."""
    away = tmp_path / "away.jpg"
    scan(str(raw), tmp_path / "m.parquet")
    settings = PlanSettings(dataset=str(tmp_path / "out"), recipe=Recipe(size=64), samples_per_shard=3)
    head = update_plan(tmp_path / "m.parquet", tmp_path / "p.parquet", settings).head
    (raw / "b/7.jpg").rename(away)
    _build_missing(tmp_path, head)
    assert read_index(head.dataset).rejects == {"empty": 1, "unreadable": 1}

    away.rename(raw / "b/7.jpg")
    _build_missing(tmp_path, head)

    assert read_index(head.dataset).rejects == {"empty": 1}
    assert verify(head.dataset, cores=1, on_done=lambda *_: None).faults == ()
    assert missing_shards(head) == []


def test_cut_shard_is_built_again(tmp_path: Path, raw: Path) -> None:
    """A sealed tar of another size counts as missing, is built again and sealed."""
    assert raw.is_dir()
    head = _build(tmp_path)
    tar = tmp_path / f"out/{head.shards[1].name}.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[:2048])

    assert missing_shards(head) == [head.shards[1].name]
    _build_missing(tmp_path, head)

    assert tar.read_bytes() == whole
    assert verify(head.dataset, cores=1, on_done=lambda *_: None).faults == ()


def test_flat_folder_has_no_classes(tmp_path: Path, raw: Path) -> None:
    """Photos without class folders make a dataset of pictures alone."""
    for path in list(raw.rglob("*.jpg")):
        path.rename(raw / path.name)

    head = _build(tmp_path)

    index = read_index(head.dataset)
    assert (index.classes, index.fields, index.num_samples("train")) == ((), ("jpg",), 8)
    assert verify(head.dataset, cores=1, on_done=lambda *_: None).faults == ()


def test_list_of_rejects_that_disagrees_is_written_again(tmp_path: Path, raw: Path) -> None:
    """The next seal mends a list of rejects that was changed, though the index stays as it is."""
    assert raw.is_dir()
    head = _build(tmp_path)
    path = tmp_path / "out/rejects.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"hello")

    assert not seal(head, []).changed

    assert path.read_bytes() == whole
    assert verify(head.dataset, cores=1, on_done=lambda *_: None).faults == ()

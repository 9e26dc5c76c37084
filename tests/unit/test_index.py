"""index: comes back as written, and is refused by name when it is not whole."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from ingest.errors import ConfigError, CorruptShardError, IngestError, NotSealedError
from ingest.index import Index, ShardEntry, kept_versions, read_index, write_index
from ingest.recipe import Recipe


def _index() -> Index:
    shard = ShardEntry(name="train/000000-ab", samples=3, bytes=20480, sha256="0" * 64)
    return Index(
        recipe=Recipe(), engines={"pillow": "12"}, classes=("cat", "犬"), fields=("jpg", "cls"),
        splits={"train": (shard, dataclasses.replace(shard, name="train/000001-cd")), "val": (shard,)},
        rejects={"empty": 2}, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6),
    )  # fmt: skip


def test_index_comes_back(tmp_path: Path) -> None:
    """What is written is what is read."""
    assert write_index(str(tmp_path), _index())

    found = read_index(str(tmp_path))

    assert found == _index()
    assert (found.num_samples("train"), found.num_bytes("train"), found.num_samples("val")) == (6, 40960, 3)


def test_same_index_is_not_written_twice(tmp_path: Path) -> None:
    """Sealing the same again does not touch the file."""
    write_index(str(tmp_path), _index())
    stamp = (tmp_path / "dataset.json").stat().st_mtime_ns

    assert not write_index(str(tmp_path), _index())
    assert (tmp_path / "dataset.json").stat().st_mtime_ns == stamp


def test_no_dataset_is_named(tmp_path: Path) -> None:
    """A place without an index is not a sealed dataset, and that is a FileNotFoundError too."""
    with pytest.raises(NotSealedError, match=f"{tmp_path}: no dataset.json there") as caught:
        read_index(str(tmp_path))

    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, IngestError)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_cut_index_is_refused(tmp_path: Path, cut: int) -> None:
    """An index that lost its end is refused by name."""
    path = tmp_path / "dataset.json"
    write_index(str(tmp_path), _index())
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(CorruptShardError, match=r"dataset\.json: not a whole index"):
        read_index(str(tmp_path))


def test_changed_index_is_refused(tmp_path: Path) -> None:
    """An index in which a number was changed does not match its checksum."""
    path = tmp_path / "dataset.json"
    write_index(str(tmp_path), _index())
    path.write_text(path.read_text().replace('"samples": 3', '"samples": 4', 1))

    with pytest.raises(CorruptShardError, match="checksum"):
        read_index(str(tmp_path))


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    """An index of a version that this program does not read says which it is."""
    path = tmp_path / "dataset.json"
    write_index(str(tmp_path), _index())
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))

    with pytest.raises(CorruptShardError, match="format version 99 found, 1 expected"):
        read_index(str(tmp_path))


def test_recipe_hash_tells_recipes_apart() -> None:
    """Every field of a recipe changes its hash, and a recipe survives its own JSON."""
    changes = {"size": 256, "fit": "contain", "fidelity": "exact", "quality": 80, "background": (0, 0, 0)}
    changes |= {"upscale": "reject", "on_truncated": "keep", "max_pixels": 1000, "max_aspect": 4.0}
    changes |= {"encoding": "png", "subsampling": "444"}
    recipes = [Recipe(), *(dataclasses.replace(Recipe(), **{name: value}) for name, value in changes.items())]

    assert set(changes) == {field.name for field in dataclasses.fields(Recipe)}
    assert len({recipe.hash() for recipe in recipes}) == len(recipes)
    assert [Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) for recipe in recipes] == recipes


def test_every_index_is_kept(tmp_path: Path) -> None:
    """An index that was replaced can still be read by its version, the same as it was."""
    first, second = _index(), dataclasses.replace(_index(), rejects={"empty": 3})
    write_index(str(tmp_path), first)
    version = read_index(str(tmp_path)).version
    data = (tmp_path / "dataset.json").read_bytes()

    write_index(str(tmp_path), second)

    assert json.loads(data)["sha256"].startswith(version)
    assert (tmp_path / f"history/dataset-{version}.json").read_bytes() == data
    assert read_index(str(tmp_path), version) == first
    assert read_index(str(tmp_path)) == second
    assert kept_versions(str(tmp_path)) == sorted([version, read_index(str(tmp_path)).version])


def test_index_that_was_not_kept_is_kept_when_it_is_replaced(tmp_path: Path) -> None:
    """Nothing is lost of a dataset whose build was cut off between index and copy, or kept none."""
    write_index(str(tmp_path), _index())
    shutil.rmtree(tmp_path / "history")
    version = read_index(str(tmp_path)).version

    write_index(str(tmp_path), dataclasses.replace(_index(), rejects={}))

    assert read_index(str(tmp_path), version) == _index()


def test_index_that_comes_back_is_the_newest_again(tmp_path: Path) -> None:
    """Where an older index stands again, its copy is the newest file: what is cleared depends on that."""
    write_index(str(tmp_path), _index())
    copy = tmp_path / f"history/dataset-{read_index(str(tmp_path)).version}.json"
    write_index(str(tmp_path), dataclasses.replace(_index(), rejects={}))
    os.utime(copy, (1, 1))

    write_index(str(tmp_path), _index())

    assert copy.stat().st_mtime > 1


def test_version_that_is_gone_is_named(tmp_path: Path) -> None:
    """The error names the version that was asked for, and those that are kept."""
    write_index(str(tmp_path), _index())
    kept = read_index(str(tmp_path)).version

    with pytest.raises(NotSealedError, match=f"no index of version 00000000: .*; kept are {kept}"):
        read_index(str(tmp_path), "00000000")
    with pytest.raises(ConfigError, match=r"index version '\.\./\.\./x': expected 8 hex digits"):
        read_index(str(tmp_path), "../../x")


def test_broken_index_is_not_kept(tmp_path: Path) -> None:
    """What was not a whole index is replaced, and no copy of it is made."""
    (tmp_path / "dataset.json").write_bytes(b"{}")

    assert write_index(str(tmp_path), _index())

    assert kept_versions(str(tmp_path)) == [read_index(str(tmp_path)).version]


def test_index_of_a_later_format_is_not_replaced(tmp_path: Path) -> None:
    """An older ingest does not write over what it cannot read, and says what to do."""
    path = tmp_path / "dataset.json"
    path.write_text('{"format_version": 99}')

    with pytest.raises(
        CorruptShardError, match="format version 99 found, 1 expected, so it was not replaced: "
    ):
        write_index(str(tmp_path), _index())

    assert path.read_text() == '{"format_version": 99}'

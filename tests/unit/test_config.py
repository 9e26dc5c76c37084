"""config: one sentence for a wrong key or value, and settings that reach only the room they concern."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ingest.build.config import Settings, check_settings, load_settings
from ingest.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"sise": 224}, ("'sise'", "unknown", "did you mean 'size'", "fidelity")),
        ({"dask": {"shceduler": "tcp://a:1"}}, ("'dask.shceduler'", "unknown", "'scheduler'")),
        ({"fit": "crop"}, ("'fit'", "'crop'", "'cover'", "'shortest'")),
        ({"size": "big"}, ("'size'", "'big'", "from 8 to 4096")),
        ({"size": 0}, ("'size'", "0", "whole numbers from 8 to 4096")),
        ({"quality": 101}, ("'quality'", "101", "from 1 to 100")),
        ({"limit": 0}, ("'limit'", "0", "1")),
        ({"samples_per_shard": "some"}, ("'samples_per_shard'", "'some'", "'auto'")),
        ({"samples_per_shard": 0}, ("'samples_per_shard'", "0", "'auto'")),
        ({"background": [0, 0]}, ("'background'", "red, green and blue")),
        ({"background": [0, 0, 256]}, ("'background'", "0 to 255")),
        ({"dask": {"scheduler": "localhost"}}, ("'dask.scheduler'", "tcp://")),
        ({"dask": 3}, ("'dask'", "3")),
        ({"raw": ""}, ("'raw'", "''")),
        ({"raw": "/photos/in", "dataset": "/photos"}, ("'dataset'", "may lie inside the other")),
        ({"raw": "/photos", "dataset": "/x/../photos/out"}, ("'dataset'", "may lie inside the other")),
        ({"raw": "/photos", "dataset": "/photos/out"}, ("'dataset'", "may lie inside the other")),
    ],
)
def test_wrong_setting_is_one_sentence(values: dict[str, object], words: tuple[str, ...]) -> None:
    """A wrong key or value gives one line that names the key, what was found and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        check_settings(values)

    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_shipped_file_holds_every_key_with_its_default() -> None:
    """pipelines/config.yaml lists all keys and agrees with the model's defaults."""
    shipped = yaml.safe_load((ROOT / "pipelines/config.yaml").read_text())

    assert set(shipped) == set(Settings.model_fields)
    assert check_settings(shipped) == Settings()


def test_numbers_are_taken_as_names() -> None:
    """`--config dataset=2024` arrives as a number and means the folder of that name."""
    assert check_settings({"raw": "/p", "dataset": 2024}).dataset_url.endswith("/2024")


def test_dataset_has_a_default_beside_raw() -> None:
    """Without `dataset`, the shards go to data/<name of raw>-<size>."""
    assert check_settings({"raw": "/photos/cats/", "size": 256}).dataset_url.endswith("/data/cats-256")


@pytest.mark.parametrize(
    ("change", "rooms"),
    [
        ({"raw": "/other"}, {"scan"}),
        ({"quality": 80}, {"plan"}),
        ({"seed": 1}, {"plan"}),
        ({"limit": 7}, {"plan"}),
        ({"dask": {"scheduler": "tcp://h:1"}}, {"shrink"}),
    ],
)
def test_change_reaches_only_its_rooms(change: dict[str, object], rooms: set[str]) -> None:
    """A changed key changes the settings of the rooms that depend on it and of no other."""
    base = {"raw": "/photos", "dataset": "/out"}
    before, after = check_settings(base), check_settings(base | change)

    changed = {room for room in ("scan", "plan", "shrink") if before.of_room(room) != after.of_room(room)}

    assert changed == rooms


def test_datasets_have_work_folders_of_their_own() -> None:
    """Two datasets of the same name in different places do not share a work folder."""
    one, other = (check_settings({"raw": "/p", "dataset": f"{place}/out"}) for place in ("/a", "/b"))

    assert one.work_folder != other.work_folder


def test_yaml_file_is_checked_too(tmp_path: Path) -> None:
    """A file that is no mapping, or no YAML, is named in the error."""
    path = tmp_path / "mine.yaml"
    path.write_text("- a\n- b\n")

    with pytest.raises(ConfigError, match=r"mine\.yaml: holds a list"):
        load_settings(path)

    path.write_text("a: [\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: cannot be read as YAML"):
        load_settings(path)


def test_room_settings_are_stable_json() -> None:
    """The same settings give the same text, so that nothing reruns because of their order."""
    text = check_settings({"raw": "/p", "dataset": "/d", "size": 96}).of_room("plan")

    assert text == json.dumps(json.loads(text), sort_keys=True)

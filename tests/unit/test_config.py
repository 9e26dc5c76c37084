"""config: one sentence for a wrong key or value, and settings that reach only the room they concern."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ingest.build.config import Settings, check_settings, load_settings
from ingest.build.limits import DEFAULT_LIMITS, Limits
from ingest.build.tally import DEFAULT_MAX_REJECTS
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
        ({"max_rejects": 1.5}, ("'max_rejects' is 1.5: allowed are a share below 1 such as 0.5, a whole ",)),
        ({"max_rejects": 1.0}, ("'max_rejects' is 1.0", "a share below 1")),
        ({"max_rejects": -1}, ("'max_rejects' is -1", "a whole number of 0 or more, or null")),
        ({"max_rejects": True}, ("'max_rejects' is True", "a share below 1")),
        ({"max_rejects": "many"}, ("'max_rejects' is 'many'", "a share below 1")),
        ({"max_rejects": float("nan")}, ("'max_rejects' is nan", "a share below 1")),
        ({"time_limit": 0}, ("'time_limit' is 0: allowed are seconds, a number above 0",)),
        ({"time_limit": float("inf")}, ("'time_limit' is inf", "seconds")),
        ({"time_limit": True}, ("'time_limit' is True", "seconds")),
        (
            {"memory_limit": "100MiB"},
            ("'memory_limit' is '100MiB': allowed are sizes such as 4GiB, from 256",),
        ),
        ({"memory_limit": "much"}, ("'memory_limit' is 'much'", "such as 4GiB")),
        ({"memory_limit": None}, ("'memory_limit' is None", "such as 4GiB")),
        ({"max_aspect": 0.5}, ("'max_aspect' is 0.5: allowed are numbers from 1 on, or null",)),
        ({"max_pixels": 2.5}, ("'max_pixels' is 2.5: allowed are whole numbers from 1 on",)),
        ({"max_pixels": False}, ("'max_pixels' is False", "whole numbers from 1 on")),
        ({"upscale": "no"}, ("'upscale' is 'no': allowed are 'allow' or 'reject'",)),
        ({"on_truncated": True}, ("'on_truncated' is True: allowed are 'reject' or 'keep'",)),
        ({"raw": []}, ("'raw' is []: allowed are a folder, URL, glob or table",)),
        ({"raw": {"a": ""}}, ("'raw'", "names with one each")),
        ({"raw": ["/a/x", "/b/x"]}, ("'raw': /a/x and /b/x are both called 'x'", "name of its own")),
        ({"raw": ["/a", "/photos"], "dataset": "/photos/out"}, ("'dataset'", "may lie inside the other")),
        ({"raw": "/photos/**/*.jpg", "dataset": "/photos/out"}, ("'dataset'", "may lie inside the other")),
        ({"columns": {"lable": "x"}}, ("'columns.lable'", "unknown", "did you mean 'label'")),
        ({"labels": "many"}, ("'labels'", "'many'", "'regression'")),
        ({"split": "random"}, ("'split' is 'random': allowed are 'auto', 'none', or shares such as",)),
        ({"split": {"train": -1}}, ("'split'", "shares such as")),
        ({"split": {"train": 0}}, ("'split'", "shares such as")),
        ({"split": {"a/b": 1}}, ("'split'", "shares such as")),
        ({"duplicates": "forget"}, ("'duplicates'", "'keep' or 'drop'")),
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
    ("raw", "name"),
    [
        ("/photos/**/*.jpg", "photos"),
        ("s3://bucket/rows.csv", "rows"),
        (["/a/cats", "/b/dogs"], "cats-dogs"),
        ({"one": "/a/cats", "two": "/b/cats"}, "cats"),
    ],
)
def test_dataset_is_called_after_its_sources(raw: object, name: str) -> None:
    """A glob is called after its folder, a table after its file, and several after all of them."""
    assert check_settings({"raw": raw}).dataset_url.endswith(f"/data/{name}-224")


@pytest.mark.parametrize(
    ("change", "rooms"),
    [
        ({"raw": "/other"}, {"scan"}),
        ({"raw": ["/other", "/more"]}, {"scan"}),
        ({"labels": "none"}, {"scan"}),
        ({"sidecars": "ignore"}, {"scan"}),
        ({"columns": {"url": "link"}}, {"scan"}),
        ({"split": "none"}, {"scan"}),
        ({"split": {"train": 9, "val": 1}, "split_by": "patient"}, {"scan", "plan"}),
        ({"split": {"train": 9, "val": 1}}, {"scan", "plan"}),
        ({"duplicates": "drop"}, {"scan", "plan"}),
        ({"quality": 80}, {"plan"}),
        ({"seed": 1}, {"plan"}),
        ({"limit": 7}, {"plan"}),
        ({"dask": {"scheduler": "tcp://h:1"}}, {"shrink"}),
        ({"time_limit": 60}, {"shrink"}),
        ({"memory_limit": "2GiB"}, {"shrink"}),
        ({"max_rejects": 10}, {"shrink", "seal"}),
        ({"upscale": "reject"}, {"plan"}),
        ({"on_truncated": "keep"}, {"plan"}),
        ({"max_pixels": 1000}, {"plan"}),
        ({"max_aspect": 20}, {"plan"}),
    ],
)
def test_change_reaches_only_its_rooms(change: dict[str, object], rooms: set[str]) -> None:
    """A changed key changes the settings of the rooms that depend on it and of no other."""
    base = {"raw": "/photos", "dataset": "/out"}
    before, after = check_settings(base), check_settings(base | change)

    rooms_there_are = ("scan", "plan", "shrink", "seal")
    changed = {room for room in rooms_there_are if before.of_room(room) != after.of_room(room)}  # type: ignore[arg-type]

    assert changed == rooms


@pytest.mark.parametrize(
    ("given", "found"),
    [(0, 0), (7, 7), ("3", 3), (0.25, 0.25), ("0.125", 0.125), (0.0, 0.0), (None, None), ("null", None)],
)
def test_number_and_share_of_rejects_stay_apart(given: object, found: float | None) -> None:
    """A whole number stays a count and a float a share, also as a text from the command line."""
    text = check_settings({"raw": "/p", "max_rejects": given}).of_room("shrink")

    value = json.loads(text)["max_rejects"]
    assert (value, type(value)) == (found, type(found))


@pytest.mark.parametrize(
    ("given", "num_bytes"), [("2GiB", 2**31), ("4 GB", 4 * 10**9), (2**30, 2**30), ("1.5GiB", 3 * 2**29)]
)
def test_sizes_are_taken_with_units(given: object, num_bytes: int) -> None:
    """`--config memory_limit=2GiB` arrives as a text, and reaches shrink in bytes."""
    text = check_settings({"raw": "/p", "memory_limit": given}).of_room("shrink")

    assert json.loads(text)["memory_limit"] == num_bytes


def test_defaults_are_those_of_the_verbs() -> None:
    """`ingest shrink` without settings keeps the limits of a configuration that says nothing."""
    settings = Settings()

    assert Limits(time_limit=settings.time_limit, memory_limit=settings.memory_limit) == DEFAULT_LIMITS
    assert settings.max_rejects == DEFAULT_MAX_REJECTS


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


def test_split_by_needs_shares() -> None:
    """Groups without anything to be dealt to would be left alone without a word."""
    with pytest.raises(ConfigError, match="'split_by' is 'patient', and 'split' has no shares"):
        check_settings({"split_by": "patient"})


@pytest.mark.parametrize("key", ["dask", "columns"])
def test_group_that_is_no_group_is_a_sentence(key: str) -> None:
    """A single value where keys and values belong is told in the words of the rest."""
    with pytest.raises(
        ConfigError, match=f"config key '{key}' is 'none': allowed are keys and values, such as"
    ):
        check_settings({key: "none"})

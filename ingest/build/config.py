"""The configuration of a build: one model, checked before any job starts.

Snakemake merges `pipelines/config.yaml`, the user's `--configfile` and `--config key=value`; this module
turns the result into `Settings` or into one sentence that names the key and what is allowed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator

from ingest import store
from ingest.build.artifact import DEMO_FOLDER
from ingest.build.facts import Labels, is_split
from ingest.build.limits import DEFAULT_MEMORY_LIMIT, DEFAULT_TIME_LIMIT
from ingest.build.sources import is_glob, name_sources, read_source, short_name
from ingest.build.tally import DEFAULT_MAX_REJECTS
from ingest.errors import ConfigError
from ingest.recipe import (
    DEFAULT_MAX_PIXELS,
    Encoding,
    Fidelity,
    Fit,
    OnTruncated,
    Recipe,
    Subsampling,
    Upscale,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Room = Literal["scan", "plan", "shrink", "seal"]


class DaskSettings(BaseModel):
    """Where shards are built."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scheduler: str | None = Field(None, pattern=r"^(tcp|tls|ucx|ws|wss)://.+")
    """Address of a running Dask scheduler, such as ``tcp://10.0.0.1:8786``; None starts one here."""


class ColumnSettings(BaseModel):
    """Which columns of a table hold what; None: by the names that docs/inputs.md lists."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None
    label: str | None = None
    split: str | None = None
    text: str | None = None
    size: str | None = None
    version: str | None = None
    numbers: tuple[str, ...] = ()


_LEAST_MEMORY = 2**28
# Python, its imaging libraries and a client of S3 take 80 MB before there is any picture.


class Settings(BaseModel):
    """Every key of the configuration, with its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    raw: str | list[str] | dict[str, str] | None = None
    """Folder, URL, glob or table of the raw photos, or several; None: a small sample made by code."""
    columns: ColumnSettings = ColumnSettings()
    labels: Labels = "auto"
    """What is a label: ``auto``, or one of the ways of docs/inputs.md."""
    sidecars: Literal["read", "ignore"] = "read"
    """Whether ``x.txt`` and ``x.json`` beside ``x.jpg`` say something of it."""
    sizes: Literal["ask", "table"] = "ask"
    """Whether the files that a table names are asked for size and version."""
    split: Literal["auto", "none"] | dict[str, float] = "auto"
    """Stated splits, none, or shares of the files without one, such as ``{train: 0.9, val: 0.1}``."""
    split_by: str | None = Field(None, min_length=1)
    """Name of a value, or ``folder``: files that have it in common share a split."""
    duplicates: Literal["keep", "drop"] = "keep"
    """What becomes of further files of the same content."""
    dataset: str | None = Field(None, min_length=1)
    """Folder or URL of the dataset; None means ``data/<name of raw>-<size>``."""
    splits: tuple[str, ...] | None = None
    """Splits that go into the dataset; None: all."""
    datasets: list[dict[str, Any]] | None = Field(None, min_length=1)
    """Several datasets of the same photos: for each the keys in which it differs, `dataset` among them."""
    work: str = Field(".ingest", min_length=1)
    """Local folder of the build's own small files: manifest, plan, logs."""
    limit: int | None = Field(None, ge=1)
    """Build a preview of this many photos, drawn evenly from all; None builds all."""
    size: int = Field(224, ge=8, le=4096)
    fit: Fit = "cover"
    fidelity: Fidelity = "high"
    encoding: Encoding = "jpeg"
    quality: int = Field(90, ge=1, le=100)
    subsampling: Subsampling = "420"
    background: tuple[int, int, int] = (255, 255, 255)
    upscale: Upscale = "allow"
    on_truncated: OnTruncated = "reject"
    max_pixels: int = Field(DEFAULT_MAX_PIXELS, ge=1)
    max_aspect: float | None = Field(None, ge=1, allow_inf_nan=False)
    max_rejects: int | float | None = DEFAULT_MAX_REJECTS
    """Rejects after which a build stops: a count, or a share below 1 of the files seen; None never stops."""
    time_limit: float = Field(DEFAULT_TIME_LIMIT, gt=0, allow_inf_nan=False)
    """Seconds after which the decoding of one file is given up."""
    memory_limit: ByteSize = Field(ByteSize(DEFAULT_MEMORY_LIMIT), ge=_LEAST_MEMORY, validate_default=True)
    """Memory that the decoding of one file may take, such as ``4GiB``."""
    samples_per_shard: int | Literal["auto"] = Field("auto")
    """Samples in a shard; ``auto`` takes 4,096, fewer where that would leave few shards to work on."""
    seed: int = Field(0, ge=0, le=2**63 - 1)
    """Decides the order in which the photos are dealt to shards."""
    missing: Literal["drop", "keep"] = "drop"
    """What becomes of samples whose photos are not listed any more: they go, or they stay."""
    allow_delete: bool = False
    """Plan even though more than 1 % of the photos have vanished."""
    dask: DaskSettings = DaskSettings()

    @field_validator("max_rejects", "time_limit", "memory_limit", "max_pixels", "max_aspect", mode="before")
    @classmethod
    def _refuse_truth(cls, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, bool):  # which Python takes for 0 or 1
            raise ValueError("no number")  # noqa: TRY004  pydantic wants this one
        return value

    @field_validator("limit", "max_rejects", "max_aspect", mode="before")
    @classmethod
    def _take_null_as_text(cls, value: Any) -> Any:  # noqa: ANN401
        return None if value == "null" else value  # `--config max_rejects=null` arrives so

    @field_validator("subsampling", mode="before")
    @classmethod
    def _take_number_as_text(cls, value: Any) -> Any:  # noqa: ANN401
        return str(value) if isinstance(value, int) else value  # `--config subsampling=444` is a number

    @field_validator("max_rejects")
    @classmethod
    def _check_max_rejects(cls, value: float | None) -> float | None:
        if value is not None and not (0 <= value < 1 or (isinstance(value, int) and value >= 1)):
            raise ValueError("neither a share nor a number")
        return value

    @field_validator("raw")
    @classmethod
    def _refuse_nothing(cls, value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return None
        named = (
            [value] if isinstance(value, str) else [*(value.values() if isinstance(value, dict) else value)]
        )
        if not (named and all(named)):
            raise ValueError("nothing")
        return value

    @field_validator("split")
    @classmethod
    def _check_shares(cls, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, dict) and not (
            any(value.values())
            and all(0 <= share < math.inf and is_split(name) for name, share in value.items())
        ):
            raise ValueError("no shares")
        return value

    @property
    def sources(self) -> dict[str, str]:
        """URL of each source of raw photos by its name: as configured, or the embedded sample."""
        return name_sources(self.raw or DEMO_FOLDER)

    @property
    def dataset_url(self) -> str:
        """Where the dataset goes: as configured, or beside the other data of this folder."""
        name = "-".join(dict.fromkeys(map(short_name, self.sources.values())))[:64]
        return store.normalise(self.dataset or f"data/{name}-{self.size}")

    @property
    def outputs(self) -> tuple[Settings, ...]:
        """The settings of each dataset that is built.

        Raises:
            ConfigError: what is said of one of `datasets` is impossible; one sentence.
        """
        if self.datasets is None:
            return (self,)
        common = self.model_dump(exclude={"datasets"}, exclude_unset=True)
        return tuple(check_settings({**common, **each}) for each in self.datasets)

    @property
    def recipe(self) -> Recipe:
        """The part of the settings that decides a sample's bytes."""
        return Recipe(
            size=self.size,
            fit=self.fit,
            fidelity=self.fidelity,
            encoding=self.encoding,
            quality=self.quality,
            subsampling=self.subsampling,
            background=self.background,
            upscale=self.upscale,
            on_truncated=self.on_truncated,
            max_pixels=self.max_pixels,
            max_aspect=self.max_aspect,
        )

    @property
    def work_folder(self) -> Path:
        """Folder of this dataset's manifest, plan and markers: one for each dataset URL."""
        digest = hashlib.sha256(self.dataset_url.encode(errors="surrogateescape")).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.dataset_url.rsplit("/", 1)[-1])[
            :64
        ]  # braces are wildcards
        return Path(self.work) / f"{name}-{digest}"

    @property
    def scan_needs(self) -> list[str]:
        """Files that must be made before the raw photos can be listed."""
        return [] if self.raw else [f"{DEMO_FOLDER}/demo.json"]

    def of_room(self, room: Room) -> str:
        """Return the settings that `room` depends on as JSON: a change to any other does not rerun it."""
        chosen: dict[str, dict[str, Any]] = {
            "scan": {
                "raw": self.sources if set(self.sources) != {""} else self.sources[""],
                "columns": self.columns.model_dump(),
                "labels": self.labels,
                "sidecars": self.sidecars == "read",
                "sizes": self.sizes == "ask",
                "split": self.split if isinstance(self.split, str) else "auto",
                "split_by": self.split_by,
                "identify": self.duplicates == "drop" or isinstance(self.split, dict),
            },
            "plan": {
                "dataset": self.dataset_url,
                "recipe": self.recipe.to_dict(),
                "samples_per_shard": self.samples_per_shard,
                "seed": self.seed,
                "limit": self.limit,
                "missing": self.missing,
                "split": sorted(self.split.items()) if isinstance(self.split, dict) else [],
                "duplicates": self.duplicates,
                "splits": self.splits,
                "allow_delete": self.allow_delete,
            },
            "shrink": {
                "scheduler": self.dask.scheduler,
                "time_limit": self.time_limit,
                "memory_limit": int(self.memory_limit),
                "max_rejects": self.max_rejects,
            },
            "seal": {"max_rejects": self.max_rejects},
        }
        return json.dumps(chosen[room], sort_keys=True)


def check_settings(values: Mapping[str, Any]) -> Settings:
    """Check a configuration.

    Args:
        values: keys and values as YAML gives them.

    Raises:
        ConfigError: a key is unknown or a value impossible; one sentence.
    """
    try:
        settings = Settings.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from error
    if settings.split_by is not None and isinstance(settings.split, str):
        message = f"config key 'split_by' is {settings.split_by!r}, and 'split' has no shares to deal by it"
        raise ConfigError(f"{message}: set 'split' to shares, such as {{train: 0.9, val: 0.1}}")
    if settings.datasets is None:
        _check_places(settings)
    else:
        _check_datasets(settings.datasets, settings.outputs)
    return settings


_OF_ONE = {"dataset", "splits", "samples_per_shard", "limit", "seed", *Recipe().to_dict()}
"""Keys that each of several datasets may have of its own."""


def _check_datasets(datasets: list[dict[str, Any]], outputs: tuple[Settings, ...]) -> None:
    for values in datasets:
        foreign = sorted(values.keys() - _OF_ONE)
        if "dataset" not in values or foreign:
            found = f"has the key {foreign[0]!r}" if foreign else "has no key 'dataset'"
            message = f"config key 'datasets': one of them {found}: allowed are {', '.join(sorted(_OF_ONE))}"
            raise ConfigError(f"{message}, and 'dataset' must be there")
    places = [output.dataset_url for output in outputs]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        raise ConfigError(f"config key 'datasets': {twice[0]} is there twice: choose another folder for one")


def load_settings(path: Path) -> Settings:
    """Read and check a YAML file of settings.

    Raises:
        ConfigError: the file is missing, no YAML, or its settings are wrong.
    """
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(values or {}, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}, expected keys and values")
    return check_settings(values or {})


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    # Behind the key, pydantic names the member of a union or the position in a list that did not fit.
    depth = 2 if first["loc"][0] in _GROUPS else 1
    key = ".".join(str(part) for part in first["loc"][:depth])
    if key in ("raw", "split", "splits", "datasets"):
        return f"config key {key!r} is {first['input']!r}: {_SPECIAL[key]}"
    if first["type"] == "extra_forbidden":
        return _unknown_key(key)
    return f"config key {key!r} is {first['input']!r}: {_allowed(key, first)}"


def _allowed(key: str, error: Any) -> str:  # noqa: ANN401  pydantic's own record of one error
    if error["type"] == "literal_error" and key != "samples_per_shard":
        return f"allowed are {error['ctx']['expected']}"
    message: str = error["msg"]
    return _SPECIAL.get(key) or _bounds(key) or message[0].lower() + message[1:]


_SPECIAL = {
    "raw": "allowed are a folder, URL, glob or table (.csv, .tsv, .parquet, .jsonl), a list of those, "
    "or names with one each",
    "datasets": "allowed is a list with keys and values for each dataset",
    "splits": "allowed is a list of splits, such as [train]",
    "split": "allowed are 'auto', 'none', or shares such as {train: 0.9, val: 0.1}",
    "samples_per_shard": "allowed are 'auto' or a whole number of 1 or more",
    "background": "allowed are three whole numbers from 0 to 255, red, green and blue",
    "max_aspect": "allowed are numbers from 1 on, or null",
    "max_rejects": "allowed are a share below 1 such as 0.5, a whole number of 0 or more, or null",
    "time_limit": "allowed are seconds, a number above 0",
    "memory_limit": "allowed are sizes such as 4GiB, from 256MiB on",
    "dask": "allowed are keys and values, such as {scheduler: 'tcp://10.0.0.1:8786'}",
    "columns": "allowed are keys and values, such as {url: link, label: class}",
    "dask.scheduler": "allowed is an address such as tcp://10.0.0.1:8786, or null to start one here",
}
_GROUPS: dict[str, type[BaseModel]] = {"dask": DaskSettings, "columns": ColumnSettings}


def _bounds(key: str) -> str | None:
    """Return the allowed range of a key that is a whole number, or None for another kind of key."""
    field = Settings.model_fields.get(key)
    limits = {type(limit).__name__: limit for limit in field.metadata} if field else {}
    if "Ge" not in limits:
        return None
    upper = f" to {limits['Le'].le}" if "Le" in limits else " on"
    return f"allowed are whole numbers from {limits['Ge'].ge}{upper}{', or null' if key == 'limit' else ''}"


def _unknown_key(key: str) -> str:
    group, _, name = key.rpartition(".")
    model = _GROUPS.get(group, Settings)
    known = list(model.model_fields)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"config key {key!r} is unknown: {hint}the keys are {', '.join(known)}"


def _check_places(settings: Settings) -> None:
    for url in settings.sources.values():
        _require_apart(read_source("", url).root.url if is_glob(url) else url, settings.dataset_url)
    if isinstance(settings.samples_per_shard, int) and settings.samples_per_shard < 1:
        raise ConfigError(
            f"config key 'samples_per_shard' is {settings.samples_per_shard}: "
            "allowed are 'auto' or a whole number of 1 or more"
        )
    if not all(0 <= channel <= 255 for channel in settings.background):  # noqa: PLR2004
        raise ConfigError(
            f"config key 'background' is {list(settings.background)}: "
            "allowed are three whole numbers from 0 to 255, red, green and blue"
        )


def _require_apart(raw: str, dataset: str) -> None:
    inner, outer = f"{dataset.rstrip('/')}/", f"{raw.rstrip('/')}/"
    if inner.startswith(outer) or outer.startswith(inner):
        problem = f"neither may lie inside the other, and 'raw' is {raw}"
        raise ConfigError(f"config key 'dataset' is {dataset!r}: {problem}: choose a folder beside it")

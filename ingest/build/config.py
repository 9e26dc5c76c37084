"""The configuration of a build: one model, checked before any job starts.

Snakemake merges `pipelines/config.yaml`, the user's `--configfile` and `--config key=value`; this module
turns the result into `Settings` or into one sentence that names the key and what is allowed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator

from ingest import store
from ingest.build.artifact import DEMO_FOLDER
from ingest.build.limits import DEFAULT_MEMORY_LIMIT, DEFAULT_TIME_LIMIT
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


_LEAST_MEMORY = 2**28
# Python, its imaging libraries and a client of S3 take 80 MB before there is any picture.


class Settings(BaseModel):
    """Every key of the configuration, with its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    raw: str | None = Field(None, min_length=1)
    """Folder or URL of the raw photos; None writes and uses a small sample made by code."""
    dataset: str | None = Field(None, min_length=1)
    """Folder or URL of the dataset; None means ``data/<name of raw>-<size>``."""
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

    @property
    def raw_url(self) -> str:
        """Where the raw photos are: as configured, or the embedded sample."""
        return store.normalise(self.raw or DEMO_FOLDER)

    @property
    def dataset_url(self) -> str:
        """Where the dataset goes: as configured, or beside the other data of this folder."""
        name = self.raw_url.rsplit("/", 1)[-1] or "photos"
        return store.normalise(self.dataset or f"data/{name}-{self.size}")

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
            "scan": {"raw": self.raw_url},
            "plan": {
                "dataset": self.dataset_url,
                "recipe": self.recipe.to_dict(),
                "samples_per_shard": self.samples_per_shard,
                "seed": self.seed,
                "limit": self.limit,
                "missing": self.missing,
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
    _check_places(settings)
    return settings


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
    depth = 2 if first["loc"][0] == "dask" else 1
    key = ".".join(str(part) for part in first["loc"][:depth])
    if first["type"] == "extra_forbidden":
        return _unknown_key(key)
    return f"config key {key!r} is {first['input']!r}: {_allowed(key, first)}"


def _allowed(key: str, error: Any) -> str:  # noqa: ANN401  pydantic's own record of one error
    if error["type"] == "literal_error" and key != "samples_per_shard":
        return f"allowed are {error['ctx']['expected']}"
    special = {
        "samples_per_shard": "allowed are 'auto' or a whole number of 1 or more",
        "background": "allowed are three whole numbers from 0 to 255, red, green and blue",
        "max_aspect": "allowed are numbers from 1 on, or null",
        "max_rejects": "allowed are a share below 1 such as 0.5, a whole number of 0 or more, or null",
        "time_limit": "allowed are seconds, a number above 0",
        "memory_limit": "allowed are sizes such as 4GiB, from 256MiB on",
        "dask.scheduler": "allowed is an address such as tcp://10.0.0.1:8786, or null to start one here",
    }
    message: str = error["msg"]
    return special.get(key) or _bounds(key) or message[0].lower() + message[1:]


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
    model = DaskSettings if group == "dask" else Settings
    known = list(model.model_fields)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"config key {key!r} is unknown: {hint}the keys are {', '.join(known)}"


def _check_places(settings: Settings) -> None:
    raw, dataset = settings.raw_url, settings.dataset_url
    inner, outer = f"{dataset.rstrip('/')}/", f"{raw.rstrip('/')}/"
    if inner.startswith(outer) or outer.startswith(inner):
        problem = f"neither may lie inside the other, and 'raw' is {raw}"
        raise ConfigError(f"config key 'dataset' is {dataset!r}: {problem}: choose a folder beside it")
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

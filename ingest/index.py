"""The index, `dataset.json`: what a sealed dataset holds. It is written last and replaced in one step.

Each index that ever stood there is kept as `history/dataset-<version>.json` too, the same bytes, until
`ingest gc` clears it: whoever began with an older one still finds the shards that it names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from typing import Any

from ingest import store
from ingest.errors import ConfigError, CorruptShardError, NotSealedError, StoreError
from ingest.recipe import Recipe

INDEX_NAME = "dataset.json"
FORMAT_VERSION = 1
# 1: first version.

HISTORY = "history"
"""Folder of a dataset in which each of its indexes is kept."""

_KEPT = re.compile(r"dataset-([0-9a-f]{8})\.json")
_VERSION_DIGITS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard of a split: `name` (path below the dataset, without suffix), `samples`, `bytes`, `sha256`."""

    name: str
    samples: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a sealed dataset holds.

    Attributes:
        recipe: how each picture was shrunk.
        engines: versions of what decoded and encoded, by name.
        classes: label of each class id, in the order of the ids; empty for a dataset without labels.
        fields: members of every sample, such as ``("jpg", "cls")``.
        splits: the shards of each split, in order.
        rejects: number of files that became no sample, by code.
        mean: mean of R, G and B over all pixels, 0 to 1.
        std: standard deviation of R, G and B over all pixels, 0 to 1.
        version: first 8 hex digits of the checksum in the file that it was read from; "" if it was not.
    """

    recipe: Recipe
    engines: dict[str, str]
    classes: tuple[str, ...]
    fields: tuple[str, ...]
    splits: dict[str, tuple[ShardEntry, ...]]
    rejects: dict[str, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    version: str = dataclasses.field(default="", compare=False)

    def num_samples(self, split: str) -> int:
        """Return how many samples `split` holds."""
        return sum(shard.samples for shard in self.splits[split])

    def num_bytes(self, split: str) -> int:
        """Return the size of the tars of `split`."""
        return sum(shard.bytes for shard in self.splits[split])

    def to_json(self) -> bytes:
        """Return the file's bytes; they end with a checksum over everything before."""
        body = {
            "format_version": FORMAT_VERSION,
            "recipe": self.recipe.to_dict(),
            "recipe_sha256": self.recipe.hash(),
            "engines": dict(sorted(self.engines.items())),
            "classes": list(self.classes),
            "fields": list(self.fields),
            "mean": [round(value, 6) for value in self.mean],
            "std": [round(value, 6) for value in self.std],
            "rejects": dict(sorted(self.rejects.items())),
            "splits": {
                name: [dataclasses.asdict(shard) for shard in shards]
                for name, shards in sorted(self.splits.items())
            },
        }
        return (json.dumps({**body, "sha256": _checksum(body)}, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, url: str) -> Index:
        """Parse the file's bytes; `url` is named in errors.

        Raises:
            CorruptShardError: the bytes are not a whole index of a version that this program reads.
        """
        try:
            body = json.loads(data)
            checksum = body.pop("sha256")
            version = body["format_version"]
        except (ValueError, KeyError, AttributeError) as error:
            raise CorruptShardError(f"{url}: not a whole index ({error}): run the build again") from error
        if version != FORMAT_VERSION:
            message = (
                f"{url}: format version {version} found, {FORMAT_VERSION} expected: use an ingest of its time"
            )
            raise CorruptShardError(message)
        if checksum != _checksum(body):
            raise CorruptShardError(
                f"{url}: its checksum does not match, it was changed: run the build again"
            )
        return _from_body(body, checksum[:_VERSION_DIGITS])


def _from_body(body: dict[str, Any], version: str) -> Index:
    red, green, blue = body["mean"]
    std_red, std_green, std_blue = body["std"]
    return Index(
        recipe=Recipe.from_dict(body["recipe"]),
        engines=body["engines"],
        classes=tuple(body["classes"]),
        fields=tuple(body["fields"]),
        splits={
            name: tuple(ShardEntry(**shard) for shard in shards) for name, shards in body["splits"].items()
        },
        rejects=body["rejects"],
        mean=(red, green, blue),
        std=(std_red, std_green, std_blue),
        version=version,
    )


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_index(dataset: str, version: str | None = None) -> Index:
    """Read the index of the dataset at `dataset` (a path or URL).

    Args:
        dataset: where it is.
        version: `Index.version` of one that stood there before; None reads the one that stands there now.

    Raises:
        ConfigError: `version` is none.
        NotSealedError: there is none, or none of that version is kept.
        CorruptShardError: it is not whole, or of another format version.
        StoreError: it cannot be read at the moment.
    """
    url = store.join(dataset, INDEX_NAME) if version is None else kept_url(dataset, version)
    try:
        data = store.read_bytes(url)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotSealedError(_absent(dataset, version)) from error
    except PermissionError as error:
        raise StoreError(f"{url}: may not be read: {error.strerror}") from error
    return Index.from_json(data, url)


def _absent(dataset: str, version: str | None) -> str:
    if version is None:
        why = "nothing was sealed at this place, or its build is not done"
        return f"{dataset}: no {INDEX_NAME} there: {why}: run the build again"
    kept = ", ".join(kept_versions(dataset)) or "none"
    return f"{dataset}: no index of version {version}: `ingest gc` has cleared it; kept are {kept}"


def kept_url(dataset: str, version: str) -> str:
    """Return where the index of a version is kept.

    Raises:
        ConfigError: it is no version.
    """
    if not re.fullmatch(r"[0-9a-f]{8}", version):
        raise ConfigError(f"index version {version!r}: expected 8 hex digits, as in the names in {HISTORY}/")
    return store.join(dataset, HISTORY, f"dataset-{version}.json")


def kept_versions(dataset: str) -> list[str]:
    """Return the versions of all indexes that are kept, sorted.

    Raises:
        StoreError: they cannot be listed.
    """
    names = store.list_files(store.join(dataset, HISTORY))
    return sorted(match[1] for match in map(_KEPT.fullmatch, names) if match)


def last_kept_index(dataset: str) -> Index | None:
    """Return the latest index that was kept and is whole, None where there is none.

    Raises:
        StoreError: they cannot be read at the moment.
    """
    times = {version: store.modified(kept_url(dataset, version)) or 0 for version in kept_versions(dataset)}
    for version in sorted(times, key=lambda version: (times[version], version), reverse=True):
        with contextlib.suppress(CorruptShardError, NotSealedError):
            return read_index(dataset, version)
    return None


def write_index(dataset: str, index: Index) -> bool:
    """Switch the dataset to `index` in one step, and keep it; return False if it already stood there.

    Raises:
        CorruptShardError: the index that stands there is of a later format version.
        StoreError: the place cannot be read or written.
    """
    url, data = store.join(dataset, INDEX_NAME), index.to_json()
    before = store.read_bytes(url) if store.exists(url) else None
    if before is not None:
        _require_no_later(before, url)
        _keep(dataset, before)  # it may be of an ingest that kept none, or its build was cut off
    if before == data:
        return False
    store.write_bytes(url, data)
    # Where the same index stood there before, its file becomes the newest: `ingest gc` looks at that.
    store.write_bytes(kept_url(dataset, _version_of(data)), data)
    return True


def _require_no_later(data: bytes, url: str) -> None:
    """Refuse to replace an index that this program is too old to read; one that is broken may go."""
    found = _format_version_of(data)
    if found > FORMAT_VERSION:
        message = f"{url}: format version {found} found, {FORMAT_VERSION} expected, so it was not replaced"
        raise CorruptShardError(f"{message}: use an ingest of its time, or another place for the dataset")


def _format_version_of(data: bytes) -> int:
    try:
        return int(json.loads(data)["format_version"])
    except (ValueError, KeyError, TypeError):
        return 0


def _keep(dataset: str, data: bytes) -> None:
    version = _version_of(data)
    if version and not store.exists(kept_url(dataset, version)):
        store.write_bytes(kept_url(dataset, version), data)


def _version_of(data: bytes) -> str:
    """Return the version of an index; "" for one that is not whole, and not worth keeping."""
    try:
        body = json.loads(data)
        checksum = body.pop("sha256")
    except (ValueError, KeyError, AttributeError):
        return ""
    return str(checksum)[:_VERSION_DIGITS] if checksum == _checksum(body) else ""

"""Raw photos in, 224x224 WebDataset shards out, and a loader that keeps the GPU fed.

    import ingest

    for images, labels in ingest.loader("/data/photos-224", batch_size=256):
        ...

The build is a Snakemake workflow (`snakemake --cores 32`) around the `ingest` command. Importing this
package imports no torch, DALI, Dask or PIL.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from ingest.errors import (
    BuildError,
    ConfigError,
    CorruptImageError,
    CorruptShardError,
    DataError,
    DeviceError,
    IngestError,
    NotSealedError,
    StoreError,
)

if TYPE_CHECKING:
    from ingest.load.loader import Loader, loader

__all__ = [
    "BuildError",
    "ConfigError",
    "CorruptImageError",
    "CorruptShardError",
    "DataError",
    "DeviceError",
    "IngestError",
    "Loader",
    "NotSealedError",
    "StoreError",
    "loader",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import the loader on first use: a build machine has neither torch nor DALI."""
    if name in ("loader", "Loader"):
        from ingest.load import loader as module  # noqa: PLC0415

        return getattr(module, name)
    if name == "__version__":
        return metadata.version("ingest")
    raise AttributeError(f"module 'ingest' has no attribute {name!r}")

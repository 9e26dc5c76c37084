"""What a sealed dataset holds, as text for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.index import Index, read_index
from ingest.shard import read_rejects
from ingest.units import count, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_CLASSES = 20


def describe(dataset: str) -> str:
    """Return what is in the dataset at `dataset`: splits, classes, samples, bytes, rejects by reason.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: its index cannot be read.
    """
    return "\n".join(_lines(dataset, read_index(dataset)))


def list_rejects(dataset: str) -> str:
    """Return a line for each file that became no sample: its code, its source and the reason.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the list is missing or cannot be read.
    """
    read_index(dataset)
    rows = read_rejects(dataset).to_pylist()
    return "\n".join(f"{row['code']:14} {row['source']}: {row['reason']}" for row in rows) or "no rejects"


def _lines(dataset: str, index: Index) -> Iterator[str]:
    recipe = index.recipe
    yield f"{dataset}"
    yield (
        f"  recipe    {recipe.size} px, fit {recipe.fit}, fidelity {recipe.fidelity},"
        f" JPEG quality {recipe.quality} (sha256 {recipe.hash()[:12]})"
    )
    yield f"  fields    {', '.join(index.fields)}"
    yield f"  mean, std {_triple(index.mean)}, {_triple(index.std)} (R G B, 0 to 1)"
    for name in index.splits:
        samples, shards = index.num_samples(name), len(index.splits[name])
        size = format_bytes(index.num_bytes(name))
        yield f"  split     {name}: {count(samples, 'sample')} in {count(shards, 'shard')}, {size}"
    yield f"  classes   {_classes(index.classes)}"
    yield f"  rejects   {_rejects(index.rejects)}"
    yield f"  engines   {', '.join(f'{name} {version}' for name, version in index.engines.items())}"


def _triple(values: tuple[float, float, float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def _classes(classes: tuple[str, ...]) -> str:
    if not classes:
        return "none"
    shown = ", ".join(f"{number} {label}" for number, label in enumerate(classes[:_MOST_CLASSES]))
    return f"{len(classes)}: {shown}{', ...' if len(classes) > _MOST_CLASSES else ''}"


def _rejects(rejects: dict[str, int]) -> str:
    if not rejects:
        return "none"
    by_number = sorted(rejects.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{number:,} {code}" for code, number in by_number)
    return f"{sum(rejects.values()):,}: {reasons} (list them: ingest inspect --rejects)"

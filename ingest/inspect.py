"""What a sealed dataset holds, as text for a person: a summary, its rejects, what was touched, one sample."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ingest.errors import ConfigError
from ingest.index import Index, read_index
from ingest.receipts import read_columns
from ingest.shard import read_receipt, read_rejects
from ingest.units import count, format_bytes, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

_MOST_CLASSES = 20
_WIDEST = 60  # a column grows no wider; what is longer stands out of it, uncut


def describe(dataset: str) -> str:
    """Return what is in the dataset at `dataset`: splits, classes, samples, bytes, rejects by reason.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: its index cannot be read.
    """
    return "\n".join(_lines(dataset, read_index(dataset)))


# ---- rejects


def list_rejects(dataset: str) -> str:
    """Return the files that became no sample: how many of each code, then a line each, commonest code first.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the list is missing or cannot be read.
    """
    read_index(dataset)
    rejects = read_rejects(dataset)
    if not rejects.num_rows:
        return "no rejects"
    return "\n".join(_reject_lines(dataset, rejects))


def _reject_lines(dataset: str, rejects: pa.Table) -> Iterator[str]:
    codes, sources = rejects["code"].to_pylist(), rejects["source"].to_pylist()
    folder = _common_folder(sources)
    by_number = sorted(Counter(codes).items(), key=lambda item: (-item[1], item[0]))
    below = f"; sources below {plain(folder)}" if folder else ""
    yield f"{count(len(codes), 'reject')} of {dataset}{below}"
    yield ""
    yield from (f"{number:9,}  {code}" for code, number in by_number)
    yield ""
    order = {code: place for place, (code, _) in enumerate(by_number)}
    columns = zip(
        codes,
        map(format_bytes, rejects["source_bytes"].to_pylist()),
        (plain(source.removeprefix(folder)) for source in sources),
        map(plain, rejects["reason"].to_pylist()),
        strict=True,
    )
    rows = sorted(columns, key=lambda row: (order[row[0]], row[2]))
    yield from _table([("code", "size", "source", "reason"), *rows])


def _table(rows: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    code, size, source = (
        max(width for row in rows if (width := len(row[column])) <= _WIDEST) for column in range(3)
    )
    for row in rows:
        yield f"{row[0]:{code}}  {row[1]:>{size}}  {row[2]:{source}}  {row[3]}"


def _common_folder(sources: Sequence[str]) -> str:
    """Return the folder, slash included, below which all sources lie; "" for URLs, which are shown whole."""
    first, last = min(sources), max(sources)  # what these two share, all between them share
    same = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1), len(first)
    )
    folder = first[: first.rfind("/", 0, same) + 1]
    return "" if "://" in first or folder == "/" else folder


# ---- what was touched


class _Touch(NamedTuple):
    """One kind of thing that is done to pictures.

    Attributes:
        meaning: for the summary.
        columns: of the receipt, that the rest needs.
        where: a mask of the samples to which it was done; null is no.
        sentence: what was done, from the columns of one sample.
    """

    meaning: str
    columns: tuple[str, ...]
    where: Callable[[pa.Table], Any]
    sentence: Callable[[dict[str, Any]], str]


_TURNS = {
    2: "mirrored left to right",
    3: "by 180 degrees",
    4: "mirrored top to bottom",
    5: "mirrored along its main diagonal",
    6: "by 90 degrees clockwise",
    7: "mirrored along its other diagonal",
    8: "by 90 degrees anticlockwise",
}
_TOUCHES = {
    "orientation": _Touch(
        "turned or mirrored until upright",
        ("orientation",),
        lambda rows: pc.greater(rows["orientation"], 1),
        lambda row: f"turned: EXIF orientation {row['orientation']}, {_TURNS[row['orientation']]}",
    ),
    "profile": _Touch(
        "colours converted from the file's profile to sRGB",
        ("profile", "profile_use"),
        lambda rows: pc.equal(rows["profile_use"], "converted"),
        lambda row: f"{row['profile'] or 'a profile without a name'} converted to sRGB",
    ),
    "profile_ignored": _Touch(
        "profile broken or for other channels; colours taken as sRGB",
        ("profile", "profile_use"),
        lambda rows: pc.equal(rows["profile_use"], "ignored"),
        lambda row: f"profile ignored, taken as sRGB: {row['profile'] or 'without a name'}",
    ),
    "frames": _Touch(
        "more frames, pages or pictures in the file; the first was taken",
        ("frames_dropped",),
        lambda rows: pc.greater(rows["frames_dropped"], 0),
        lambda row: f"{count(row['frames_dropped'], 'more frame')} dropped",
    ),
    "alpha": _Touch(
        "transparent pixels, laid on the background",
        ("alpha",),
        lambda rows: rows["alpha"],
        lambda _: "transparent pixels laid on the background",
    ),
    "upscaled": _Touch(
        "smaller than the sample, so enlarged",
        ("upscaled", "source_width", "source_height", "width", "height"),
        lambda rows: rows["upscaled"],
        "enlarged from {source_width} x {source_height} to {width} x {height}".format_map,
    ),
    "truncated": _Touch(
        "the end of the file is missing; what is there was kept",
        ("rows_present",),
        lambda rows: pc.less(rows["rows_present"], 1),
        lambda row: f"cut off: {_percent(row['rows_present'])} of its rows are there",
    ),
    "notes": _Touch(
        "something wrong with the file that cost no pixel",
        ("notes",),
        lambda rows: pc.greater(pc.list_value_length(rows["notes"]), 0),
        lambda row: " ".join(row["notes"]),
    ),
}
_ALL = "all"


def count_touched(dataset: str) -> str:
    """Return to how many samples something was done, in total and of each kind.

    Raises:
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index or a receipt cannot be read.
    """
    index = read_index(dataset)
    numbers: Counter[str] = Counter()
    for rows in _receipts(dataset, index, _columns_of(_TOUCHES)):
        masks = {kind: _mask(touch, rows) for kind, touch in _TOUCHES.items()}
        numbers.update({kind: pc.sum(mask).as_py() or 0 for kind, mask in masks.items()})
        numbers[_ALL] += pc.sum(_any(masks.values())).as_py() or 0
    samples = sum(index.num_samples(split) for split in index.splits)
    lines = [f"{numbers[_ALL]:,} of {count(samples, 'sample')} of {dataset} touched", ""]
    width = max(map(len, _TOUCHES))
    lines += [f"{numbers[kind]:9,}  {kind:{width}}  {touch.meaning}" for kind, touch in _TOUCHES.items()]
    if numbers[_ALL]:
        lines += ["", "list them: ingest inspect DATASET --touched KIND, of all kinds: --touched all"]
    return "\n".join(lines)


def list_touched(dataset: str, kind: str) -> Iterator[str]:
    """Yield a line for each sample that was touched: its source, and what was done to it.

    Only one receipt is held at a time.

    Args:
        dataset: folder or URL of a sealed dataset.
        kind: what was done, one of the kinds that `count_touched` names, or "all".

    Raises:
        ConfigError: there is no such kind.
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index or a receipt cannot be read.
    """
    if kind not in (*_TOUCHES, _ALL):
        raise ConfigError(f"--touched {kind}: there is no such kind: use {', '.join(_TOUCHES)} or {_ALL}")
    touches = _TOUCHES if kind == _ALL else {kind: _TOUCHES[kind]}
    for rows in _receipts(dataset, read_index(dataset), ["source", *_columns_of(touches)]):
        yield from (f"{plain(source)}: {done}" for source, done in _touched(rows, touches.values()))


def _touched(rows: pa.Table, touches: Collection[_Touch]) -> Iterator[tuple[str, str]]:
    """Yield source and what was done for each row to which anything was done."""
    masks = [_mask(touch, rows) for touch in touches]
    touched = _any(masks)
    marks = zip(*(mask.filter(touched).to_pylist() for mask in masks), strict=True)
    for row, marked in zip(rows.filter(touched).to_pylist(), marks, strict=True):
        done = (touch.sentence(row) for touch, mark in zip(touches, marked, strict=True) if mark)
        yield row["source"], plain("; ".join(done))


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _mask(touch: _Touch, rows: pa.Table) -> Any:  # noqa: ANN401  pyarrow has no types
    return pc.fill_null(touch.where(rows), False)  # noqa: FBT003  the value that is filled in


def _any(masks: Iterable[Any]) -> Any:  # noqa: ANN401  pyarrow has no types
    first, *others = masks
    for mask in others:
        first = pc.or_(first, mask)
    return first


def _columns_of(touches: dict[str, _Touch]) -> list[str]:
    return list(dict.fromkeys(column for touch in touches.values() for column in touch.columns))


def _receipts(dataset: str, index: Index, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield a few columns of one receipt after the other."""
    for shards in index.splits.values():
        for shard in shards:
            yield read_columns(dataset, shard.name, columns)


# ---- one sample


def describe_source(dataset: str, wanted: str) -> str:
    """Return what the dataset knows of one raw file, a line a column, and how its boxes map to the sample.

    Args:
        dataset: folder or URL of a sealed dataset.
        wanted: its key, its source as receipts write it, or its path below the raw files' root.

    Raises:
        ConfigError: no sample and no reject has this key or source.
        NotSealedError: nothing was sealed there.
        CorruptShardError: the index, a receipt or the list of rejects cannot be read.
    """
    found = _find(dataset, read_index(dataset), wanted)
    if found is None:
        message = f"--source {wanted}: neither a sample nor a reject of {dataset} has this key or source"
        raise ConfigError(
            f"{message}: give it as `ingest inspect` lists it, or as the tar's members are named"
        )
    shard, rows = found
    row = rows.to_pylist()[0]
    told = {name: _value(value) for name, value in row.items() if value is not None or _is_sample(row)}
    lines = {"shard": shard or "of rejects alone", **told, **_mapping(rows, row)}
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines.items())


def _find(dataset: str, index: Index, wanted: str) -> tuple[str | None, pa.Table] | None:
    """Return shard and row of the raw file with this key, source or path."""
    path = wanted.encode("utf-8", "surrogateescape")  # as the terminal gave it
    text = path.decode("utf-8", "backslashreplace")  # as receipts write it
    names: dict[str, str | bytes] = {"key": text, "source": text, "path": path}
    for shard in (shard for shards in index.splits.values() for shard in shards):
        if _rows_named(read_columns(dataset, shard.name, tuple(names)), names).num_rows:
            return shard.name, _rows_named(read_receipt(dataset, shard.name)[1], names).slice(0, 1)
    rejects = _rows_named(read_rejects(dataset), {"key": text, "source": text})
    return (None, rejects.slice(0, 1)) if rejects.num_rows else None  # of a shard of nothing but rejects


def _is_sample(row: dict[str, Any]) -> bool:
    return row.get("status") == "sample"  # rejects.parquet has no status


def _rows_named(rows: pa.Table, names: dict[str, str | bytes]) -> pa.Table:
    return rows.filter(_any([pc.equal(rows[column], name) for column, name in names.items()]))


def _value(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.10g}"
        case bytes():
            return plain(value.decode("utf-8", "backslashreplace"))
        case list():
            return plain(" ".join(value)) or "-"
        case _:
            return plain(str(value))


def _mapping(rows: pa.Table, row: dict[str, Any]) -> dict[str, str]:
    """Return what was done to a sample and how a point (x, y) of its picture maps; nothing for a reject."""
    if row.get("scale_x") is None:
        return {}
    return {
        "done": "; ".join(done for _, done in _touched(rows, _TOUCHES.values())) or "shrunk, nothing else",
        "x in sample": "(x - {crop_left:.10g}) * {scale_x:.10g} + {offset_x}".format_map(row),
        "y in sample": "(y - {crop_top:.10g}) * {scale_y:.10g} + {offset_y}".format_map(row),
        "": "where (x, y) is a point of the upright raw picture, and x runs to the right, y down",
    }


# ---- the whole


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

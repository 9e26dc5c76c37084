"""scan: what is there. Reads folders, buckets and tables; leaves the manifest.

The manifest is a Parquet file with one row for every candidate, in the order of the listing. A candidate is
what says by its ending that it is a picture, unread, for a billion files are not opened to be listed; and
any other file whose first bytes are those of a picture. What is neither is skipped, and counted by kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest import store
from ingest.build import twins
from ingest.build.artifact import replace_if_changed
from ingest.build.folders import ListSettings, Reader, list_folder
from ingest.build.manifest import MANIFEST_SCHEMA, write_rows
from ingest.build.memory import remember
from ingest.build.sources import Raw, Root, Source, name_sources, read_source
from ingest.build.tables import list_table
from ingest.errors import StoreError
from ingest.units import count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ingest.build.folders import Candidate

__all__ = ["MANIFEST_SCHEMA", "ScanSummary", "describe_skipped", "scan"]

logger = logging.getLogger(__name__)

_LOCAL_READERS, _REMOTE_READERS = 8, 32  # a bucket answers slowly, but many at a time
_FIRST_LINE_SECONDS, _LINE_SECONDS = 2.0, 5.0  # silence for longer looks like a hang


@dataclasses.dataclass(frozen=True, slots=True)
class ScanSummary:
    """What a scan found.

    Attributes:
        candidates: number of rows of the manifest.
        bytes: of all candidates together, as far as their sizes are known.
        skipped: number of files that are no candidates, by kind: ``hidden`` or ``litter``, where a folder
            counts as one, ``no file`` (a broken link, a pipe), ``not matched`` (by the glob), ``empty
            folder`` (a class without candidates), or what `group_of` says of their content.
        changed: whether the manifest is new.
    """

    candidates: int
    bytes: int
    skipped: dict[str, int]
    changed: bool


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return for example ``skipped 3 text, 2 hidden, 1 video``; the most first."""
    ordered = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return "skipped " + (", ".join(f"{number:,} {kind}" for kind, number in ordered) or "nothing")


_COLUMNS = ("label", "split", "text", "size", "version")


def list_settings(values: Mapping[str, Any]) -> ListSettings:
    """Return how to list, from the settings of this room (`ingest.build.config.Settings.of_room`)."""
    columns = values.get("columns", {})
    default = ListSettings()
    roles = dataclasses.replace(
        default.roles,
        **{name: (columns[name],) for name in ("label", "split", "text") if columns.get(name)},
        group=values.get("split_by"),
        numbers=tuple(columns.get("numbers", ())),
        labels=values.get("labels", "auto"),
    )
    return ListSettings(
        roles=roles,
        sidecars=values.get("sidecars", True),
        split=values.get("split", "auto"),
        sizes=values.get("sizes", True),
        size_column=columns.get("size"),
        version_column=columns.get("version"),
        url_columns=(columns["url"],) if columns.get("url") else default.url_columns,
        named_columns=frozenset(filter(None, [*map(columns.get, _COLUMNS), *columns.get("numbers", ())])),
    )


_DEFAULTS = ListSettings()


def scan(
    raw: Raw, manifest: Path, settings: ListSettings = _DEFAULTS, *, identify: bool = False
) -> ScanSummary:
    """List the candidates of `raw` into `manifest`, which stays untouched where nothing changed.

    Args:
        raw: a folder, glob or table, or several.
        manifest: the file to write; what was read of files is remembered beside it.
        settings: how to list.
        identify: whether files of equal content are told, also where there is but one split.

    Raises:
        ConfigError: two sources have the same name.
        StoreError: a source is missing, cannot be listed, or holds no candidate; or a file that is to be
            looked at cannot be read in a way that may pass.
    """
    sources = [read_source(name, url) for name, url in name_sources(raw).items()]
    totals: Counter[str] = Counter(candidates=0, bytes=0)
    splits: set[str | None] = set()
    skipped: Counter[str] = Counter()
    with (
        replace_if_changed(manifest) as (temporary, outcome),
        remember(manifest.with_suffix(".looks")) as memory,
        _readers(sources) as pool,
        _heartbeat(totals, skipped),
    ):
        found = _list_all(sources, settings, Reader(pool, memory, skipped))
        write_rows(temporary, roots_of(sources), _count(found, totals, splits))
        _require_some(sources, totals, skipped)
        _require_groups(settings, totals)
        if any(source.kind == "table" for source in sources):
            _require_distinct(temporary)
        if identify or len(splits) > 1:
            twins.identify(temporary, manifest, pool)
    return ScanSummary(totals["candidates"], totals["bytes"], dict(skipped), outcome.changed)


def roots_of(sources: Sequence[Source]) -> list[Root]:
    """Return the roots in their order: one a source and, where there are tables, that of whole URLs."""
    has_tables = any(source.kind == "table" for source in sources)
    return [*(source.root for source in sources), *([Root("", "")] if has_tables else [])]


def _list_all(sources: Sequence[Source], settings: ListSettings, reader: Reader) -> Iterator[Candidate]:
    for number, source in enumerate(sources):
        if source.kind == "table":
            yield from list_table(source, (number, len(sources)), settings, reader)
        else:
            yield from list_folder(source, number, settings, reader)


@contextlib.contextmanager
def _readers(sources: Sequence[Source]) -> Iterator[ThreadPoolExecutor]:
    """Open the threads that read first bytes; what they have not begun when the block ends is left."""
    is_local = all(source.kind != "table" and store.is_local(source.url) for source in sources)
    pool = ThreadPoolExecutor(_LOCAL_READERS if is_local else _REMOTE_READERS, "ingest-heads")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _heartbeat(totals: Counter[str], skipped: Counter[str]) -> Iterator[None]:
    """Say every few seconds how far the scan is: listing one folder of a bucket may itself take minutes."""
    begin, end = time.perf_counter(), threading.Event()

    def beat() -> None:
        wait = _FIRST_LINE_SECONDS
        while not end.wait(wait):
            found = f"{count(totals['candidates'], 'candidate')}, {describe_skipped(dict(skipped))}"
            logger.info("scan: %s so far, %s", found, format_duration(time.perf_counter() - begin))
            wait = _LINE_SECONDS

    thread = threading.Thread(target=beat, name="ingest-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _count(
    candidates: Iterable[Candidate], totals: Counter[str], splits: set[str | None]
) -> Iterator[Candidate]:
    for candidate in candidates:
        totals["candidates"] += 1
        totals["bytes"] += max(0, candidate.size)
        totals["grouped"] += candidate.group is not None
        splits.add(candidate.split)
        yield candidate


def _require_some(sources: Sequence[Source], totals: Counter[str], skipped: Counter[str]) -> None:
    if not totals["candidates"]:
        others = f" ({describe_skipped(skipped)})" if skipped else ""
        places = ", ".join(source.url for source in sources)
        raise StoreError(
            f"{places}: holds no pictures{others}: set the config key 'raw' to a folder that does"
        )


def _require_groups(settings: ListSettings, totals: Counter[str]) -> None:
    """Refuse a `split_by` that no candidate has; say how many lack it, for each of those is dealt alone."""
    name, alone = settings.roles.group, totals["candidates"] - totals["grouped"]
    if name is None or not alone:
        return
    if not totals["grouped"]:
        message = f"config key 'split_by' is {name!r}, and no table or side file has a value of that name"
        raise StoreError(f"{message}: name a column as it is written there, or 'folder'")
    logger.warning(
        "scan: %s without %r, the 'split_by': each is dealt alone", count(alone, "candidate"), name
    )


def _require_distinct(manifest: Path) -> None:
    """Refuse rows that name one picture twice: which of them would count?"""
    keys = pq.read_table(manifest, columns=["key"])["key"]
    if pc.count_distinct(keys).as_py() == len(keys):
        return
    counts = pc.value_counts(keys)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    rows = pq.read_table(manifest, columns=["key", "path"], filters=pc.field("key") == twice[0]["values"])
    path = rows["path"][0].as_py().decode(errors="backslashreplace")
    message = f"{path}: named by {len(rows)} rows, and {len(twice) - 1:,} more pictures by several"
    raise StoreError(f"{message}: keep one row a picture (several labels: a list, see docs/inputs.md)")

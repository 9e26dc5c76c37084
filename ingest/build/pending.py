"""Which planned shards are not whole: not there, damaged, or worth another try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingest import store
from ingest.build.limits import Limits
from ingest.shard import read_receipt

if TYPE_CHECKING:
    from ingest.build.planned import PlanHead

DAMAGED = ".damaged"
"""Ending of the empty file by which `ingest verify` marks a shard that must be built again."""


def pending_shards(
    head: PlanHead, present: dict[str, int], sealed: dict[str, int], limits: Limits | None = None
) -> list[str]:
    """Return the names of planned shards that are not whole yet, in order.

    Args:
        head: the plan.
        present: size of every file below the dataset, by path; a receipt is written after its tar.
        sealed: size of the tar of each shard that is in the index, by name.
        limits: what a file may cost now: a shard with rejects that may have become samples by now is not
            whole either. None: one that was built is whole, whatever it lacks.
    """
    damaged = {name for name, size in sealed.items() if present.get(f"{name}.tar") != size}
    damaged |= {path.removesuffix(DAMAGED) for path in present if path.endswith(DAMAGED)}
    again = set() if limits is None else _worth_another_try(head, present, limits, damaged)
    names = (shard.name for shard in head.shards)
    return [name for name in names if name in damaged | again or not _is_whole(head, name, present)]


def _is_whole(head: PlanHead, name: str, present: dict[str, int]) -> bool:
    if f"{name}.parquet" not in present:
        return False
    # A shard of nothing but rejects has no tar: only then is the receipt worth a look.
    return f"{name}.tar" in present or read_receipt(head.dataset, name)[0].samples == 0


def _worth_another_try(
    head: PlanHead, present: dict[str, int], limits: Limits, damaged: set[str]
) -> set[str]:
    names = [shard.name for shard in head.shards if shard.name not in damaged]
    marked = [name for name in names if {f"{name}.retry", f"{name}.parquet"} <= present.keys()]
    return {name for name in marked if _may_be_mended(head, name, limits)}


def _may_be_mended(head: PlanHead, name: str, limits: Limits) -> bool:
    """Return whether a file that shard `name` lacks may become a sample by now."""
    _, receipt = read_receipt(head.dataset, name)
    before = Limits.from_json(store.read_bytes(store.join(head.dataset, f"{name}.retry")))
    rows = receipt.select(["path", "root", "code", "source_sha256"]).to_pylist()
    return any(
        limits.allow_more_than(before, row["code"])
        if is_limited(row)
        else _is_readable(head.roots[0] if len(head.roots) == 1 else row["root"] or "", row["path"])
        for row in rows
        if is_passing(row)
    )


def is_limited(row: dict[str, Any]) -> bool:
    """Return whether the file of a receipt's row was given up because of the limits of that build.

    A file that was not even read is ``too_large`` for the memory limit; others are for the recipe.
    """
    unread = row.get("code") == "too_large" and row["source_sha256"] is None
    return unread or row.get("code") in {"timed_out", "out_of_memory"}


def is_passing(row: dict[str, Any]) -> bool:
    """Return whether the file of a receipt's row was rejected for a reason that may have passed later."""
    return row.get("code") == "unreadable" or is_limited(row)


def _is_readable(root: str, path: bytes) -> bool:
    """Return whether the whole file can be read: a bad sector may lie anywhere in it."""
    try:
        store.read_bytes(store.place(root, path))
    except OSError:
        return False
    return True

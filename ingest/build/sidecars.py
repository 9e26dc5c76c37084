"""Side files: ``x.txt`` and ``x.json`` beside ``x.jpg`` say something of it. Pure."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from ingest.build.facts import NO_FACTS, Facts, Roles, sort_facts
from ingest.build.names import claims_to_be_a_picture, stem_of, suffix_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ingest.tree import FileInfo

SIDE_SUFFIXES = frozenset({b"txt", b"json"})
MOST_BYTES = 2**20
"""Side files larger than this are not read: some programs put a whole picture into theirs."""


def families(infos: Iterable[FileInfo]) -> Iterator[list[FileInfo]]:
    """Yield the files of a sorted listing in runs; a picture and its side files are in the same one.

    All names that begin with a stem and a dot stand together, in a folder's order as in that of a bucket.
    """
    run: list[FileInfo] = []
    prefix = b""
    for info in infos:
        if run and not info.path.startswith(prefix):
            yield run
            run = []
        if not run:
            prefix = stem_of(info.path) + b"."
        run.append(info)
    if run:
        yield run


def stems_of_pictures(run: Iterable[FileInfo]) -> frozenset[bytes]:
    """Return the paths without endings of all files that say that they are pictures."""
    return frozenset(stem_of(info.path) for info in run if claims_to_be_a_picture(info.path))


def is_side_file(info: FileInfo, stems: frozenset[bytes]) -> bool:
    """Return whether a file may say something of one of the pictures with `stems`."""
    if not stems or not 0 < info.size <= MOST_BYTES:
        return False
    return suffix_of(info.path) in SIDE_SUFFIXES and stem_of(info.path) in stems


def read_facts(sides: Mapping[bytes, bytes], roles: Roles) -> Facts:
    """Return what the side files of one picture say.

    Args:
        sides: content of each by its ending; a caption in ``txt`` counts before one in ``json``.
        roles: what the names in a ``json`` stand for.

    Raises:
        ValueError: one of them is not what its ending says; the text says why.
    """
    if not sides:
        return NO_FACTS
    facts = sort_facts(_read_object(sides[b"json"]), roles) if b"json" in sides else NO_FACTS
    text = _read_text(sides[b"txt"]) if b"txt" in sides else None
    return facts._replace(text=text or facts.text)


def _read_text(data: bytes) -> str | None:
    return data.decode("utf-8-sig").strip() or None


def _read_object(data: bytes) -> dict[str, Any]:
    values = json.loads(data.decode("utf-8-sig"))
    if not isinstance(values, dict):
        raise ValueError(f"holds a {type(values).__name__}, expected an object of names and values")  # noqa: TRY004
    return values


def side_roles(roles: Roles) -> Roles:
    """Return the roles of names in side files: those of tables are settled by the config key `columns`."""
    default = Roles()
    return dataclasses.replace(roles, label=default.label, split=default.split, text=default.text)

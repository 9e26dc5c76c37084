"""What is said of a picture beside it: label, split, caption, group, and all else as JSON. Pure.

A row of a table and a side file give the same kind of thing, a mapping of names to values; here it is sorted
into what the manifest keeps.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ingest.build.names import SPLIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

Labels = Literal["auto", "folder", "column", "none", "multi", "regression"]

_SPLIT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BETWEEN_LABELS = ";"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which names stand for what; the first of several that is there counts.

    Attributes:
        label: names of the label.
        split: names of the split.
        text: names of the caption.
        group: name of what decides which files must share a split; None: nothing does.
        numbers: names of values that are numbers even if they are written as texts, as all are in CSV.
        labels: what is made of a label; see `docs/inputs.md`.
    """

    label: tuple[str, ...] = ("label", "labels", "class")
    split: tuple[str, ...] = ("split",)
    text: tuple[str, ...] = ("caption", "text")
    group: str | None = None
    numbers: tuple[str, ...] = ()
    labels: Labels = "auto"


class Facts(NamedTuple):
    """What is known of one picture; None where nothing is said."""

    label: str | None = None
    split: str | None = None
    text: str | None = None
    meta: str | None = None
    group: str | None = None


NO_FACTS = Facts()


def sort_facts(values: Mapping[str, Any], roles: Roles) -> Facts:
    """Sort the values that are known of a picture by what they stand for.

    Args:
        values: by name; as JSON, Parquet or CSV gave them.
        roles: which names stand for what.

    Raises:
        ValueError: a value cannot be what it stands for; the text names it.
    """
    rest = {name: _plain(value) for name, value in values.items()}
    for name in roles.numbers:
        if name in rest:
            rest[name] = _to_number(name, rest[name])
    group = rest.get(roles.group) if roles.group is not None else None
    name, label = _take(rest, roles.label)
    _, split = _take(rest, roles.split)
    _, text = _take(rest, roles.text)
    kept = _sort_label(name, label, roles.labels, rest)
    rest = {key: value for key, value in rest.items() if value is not None}
    return Facts(
        label=kept,
        split=read_split(split),
        text=None if text is None else _to_text(text),
        meta=to_json(rest).encode(errors="replace").decode() if rest else None,
        group=None if group is None else _to_text(group),
    )


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """Take the first of the names that holds something out of `rest`; empty ones go too."""
    for name in names:
        value = rest.pop(name, None)
        if value is not None:
            return name, value
    return names[0] if names else "", None


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return what counts as nothing, an empty text or no number, as None."""
    return None if value == "" or (isinstance(value, float) and math.isnan(value)) else value


def _sort_label(name: str, label: Any, labels: Labels, rest: dict[str, Any]) -> str | None:  # noqa: ANN401
    """Return a label that is a class; put one that is something else to the rest."""
    if label is None or labels == "none":
        return None
    if labels == "multi":
        rest["labels"] = _to_list(label)
    elif labels == "regression":
        rest[name] = _to_number(name, label)
    elif labels == "folder" or isinstance(label, float | list | dict):
        rest["labels" if isinstance(label, list) else name] = label
    else:
        return _to_text(label)
    return None


def _to_list(label: Any) -> list[str]:  # noqa: ANN401
    if isinstance(label, str):
        label = json.loads(label) if label.startswith("[") else label.split(_BETWEEN_LABELS)
    parts = label if isinstance(label, list) else [label]
    return [text for part in parts if (text := _to_text(part).strip())]


def _to_number(name: str, value: Any) -> Any:  # noqa: ANN401
    """Return a number, or a list of some; texts are read.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, list):
        return [_to_number(name, part) for part in value]
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} is {value!r}, expected a number") from error
    if not math.isfinite(number):
        return None
    return int(number) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", str(value)) else number


def _to_text(value: Any) -> str:  # noqa: ANN401
    text = value if isinstance(value, str) else to_json(value)
    return text.encode(errors="replace").decode()  # JSON may escape half a character


def to_json(value: Any) -> str:  # noqa: ANN401
    """Return a value as JSON, the same for the same value; what JSON has no word for as a text."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # not a number, or infinite, somewhere inside
        return json.dumps(
            _without_nan(value), sort_keys=True, ensure_ascii=False, allow_nan=False, default=str
        )


def _without_nan(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_split(value: Any) -> str | None:  # noqa: ANN401
    """Return the split that a value names: train, val or test by any of their names, or another name.

    Raises:
        ValueError: it cannot be the name of a folder of shards.
    """
    if value is None:
        return None
    name = _to_text(value).strip()
    if not is_split(name):
        raise ValueError(f"the split is {name!r}, expected letters, digits, '-' and '_', 64 at most")
    return SPLIT_NAMES.get(name.lower(), name)


def is_split(name: str) -> bool:
    """Return whether a text can be the name of a split, which is that of a folder of shards."""
    return bool(_SPLIT.fullmatch(name))

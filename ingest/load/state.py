"""Where a training run stood in its data: a small dictionary for JSON, the same on every rank. Pure.

One step of all ranks takes the next samples of an order that depends on neither the number of ranks nor the
size of their batches. So one number says what was seen, and a run may go on with others of both.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ingest.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What has to be known to go on at the next sample.

    Attributes:
        index: version of the index of the dataset, which names its samples and their order on disk.
        split: which split of it.
        shuffle: whether the order is shuffled.
        seed: of the order.
        epoch: number of the epoch.
        seen: samples of that epoch, over all ranks, in batches that were handed out.
    """

    index: str
    split: str
    shuffle: bool
    seed: int
    epoch: int
    seen: int

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values that JSON has."""
        return {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> State:
        """Read a state.

        Raises:
            ConfigError: it is none, or one of another version of this package.
        """
        if not hasattr(values, "keys") or "format_version" not in values:
            raise ConfigError(f"a {type(values).__name__} is no state: pass what state_dict() returned")
        if values["format_version"] != FORMAT_VERSION:
            found = values["format_version"]
            message = f"the state has format version {found!r}, expected {FORMAT_VERSION}"
            raise ConfigError(f"{message}: use an ingest of its time")
        return cls(**{field.name: _value(field.name, values) for field in dataclasses.fields(cls)})


_MOST = 2**64 - 1  # what the order can be made of

_KINDS: dict[str, type] = {
    "index": str,
    "split": str,
    "shuffle": bool,
    "seed": int,
    "epoch": int,
    "seen": int,
}


_WORDS = {str: "a text", bool: "true or false", int: "a whole number from 0 to 2^64 - 1"}


def _value(name: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    kind = _KINDS[name]
    found: Any = values.get(name)
    if type(found) is not kind or (isinstance(found, int) and not 0 <= found <= _MOST):
        message = f"the state has {name} {found!r}, expected {_WORDS[kind]}"
        raise ConfigError(f"{message}: it is damaged, take another one")
    return found

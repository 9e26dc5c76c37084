"""What the decoding of one file may cost; beyond that it is given up, and the rest of its shard goes on."""

from __future__ import annotations

import dataclasses
import json

DEFAULT_TIME_LIMIT = 120.0
"""Seconds: lossless JPEG XL, the slowest, takes 2.5 for 25 megapixels, so 20 for 200, on one 2.5 GHz core."""

DEFAULT_MEMORY_LIMIT = 4 * 2**30
"""Bytes: a PNG of 196 megapixels, RGBA of 16 bits, takes the process to 3.2 GB; an RGB one to 1.6 GB."""

_MIB, _GIB = 2**20, 2**30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one file may cost.

    Attributes:
        time_limit: seconds of decoding, on the clock; reading the file is not counted.
        memory_limit: bytes of memory of the process that decodes.
    """

    time_limit: float = DEFAULT_TIME_LIMIT
    memory_limit: int = DEFAULT_MEMORY_LIMIT

    @property
    def largest_file(self) -> int:
        """Bytes of the largest file that is read: the other half is for its pixels."""
        return self.memory_limit // 2

    def allow_more_than(self, other: Limits, code: str) -> bool:
        """Return whether a file that was rejected as `code` under `other` might pass under these."""
        if code == "timed_out":
            return self.time_limit > other.time_limit
        return self.memory_limit > other.memory_limit

    def to_json(self) -> bytes:
        """Return the limits as a line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Limits:
        """Rebuild limits from `to_json`; bytes that hold none stand for limits below all others."""
        try:
            values = json.loads(data)
            return cls(time_limit=float(values["time_limit"]), memory_limit=int(values["memory_limit"]))
        except (ValueError, KeyError, TypeError):
            return cls(time_limit=0.0, memory_limit=0)


DEFAULT_LIMITS = Limits()
"""Those of a build that says nothing of them."""


def format_limit(num_bytes: int) -> str:
    """Return a memory limit as one writes it in the configuration, such as ``4 GiB`` or ``300 MiB``."""
    if num_bytes % _GIB == 0:
        return f"{num_bytes // _GIB} GiB"
    return f"{num_bytes / _MIB:.0f} MiB"

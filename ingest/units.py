"""How numbers and names are written for a person: bytes, rates, durations, odd characters."""

from __future__ import annotations

_STEPS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(num_bytes: float) -> str:
    """Return `num_bytes` with a decimal unit (kB = 1000 bytes), such as ``2.4 MB``."""
    for step, unit in _STEPS:
        if num_bytes >= step:
            return f"{num_bytes / step:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as ``3 h 20 min`` or ``45 s``."""
    total = max(0, round(seconds))
    hours, minutes = divmod(total // 60, 60)
    if hours >= 48:  # noqa: PLR2004  beyond two days, days read better
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {total % 60:02d} s"
    return f"{total} s"


def count(number: int, noun: str) -> str:
    """Return ``1 shard``, ``2 shards``, ``1,234 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(text: str) -> str:
    """Escape what would move the cursor: a file's name may hold newlines and worse."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

"""What became of files: counts that add up over files and shards, and when there are too many rejects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from ingest.errors import REJECT_CODES
from ingest.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MAX_REJECTS = 0.5
"""Share of the files: where most are rejected, the folder, the mount or a setting is wrong, not the files."""

LOOK_AFTER_FILES = 100
"""Files after which rejects are looked at: a share of fewer says little."""

_COMMONEST = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """Counts of files that are done; tallies add up.

    Attributes:
        files: samples and rejects together.
        enlarged: samples that were smaller than the output.
        rejects: number of rejects by code; codes without any may be missing.
        examples: for each code, one file that was rejected with it: where it is, and the sentence.
    """

    files: int = 0
    enlarged: int = 0
    rejects: Mapping[str, int] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        """Return the counts of both; where both have an example of a code, that of the first."""
        return Tally(
            self.files + other.files,
            self.enlarged + other.enlarged,
            Counter(self.rejects) + Counter(other.rejects),
            {**other.examples, **self.examples},
        )

    @property
    def num_rejects(self) -> int:
        """Number of rejects of all codes."""
        return sum(self.rejects.values())

    @property
    def samples(self) -> int:
        """Number of files that became samples."""
        return self.files - self.num_rejects

    def sentence(self) -> str:
        """Return for example ``1,000 samples (12 enlarged), 3 rejects: 2 truncated, 1 empty``."""
        enlarged = f" ({self.enlarged:,} enlarged)" if self.enlarged else ""
        return f"{count(self.samples, 'sample')}{enlarged}, {describe_rejects(self.rejects)}"


def commonest(rejects: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return code and number of rejects, the commonest first; equals in the order of `REJECT_CODES`."""
    places = {code: place for place, code in enumerate(REJECT_CODES)}  # a receipt may know codes of later
    return sorted(rejects.items(), key=lambda pair: (-pair[1], places.get(pair[0], len(places)), pair[0]))


def describe_rejects(rejects: Mapping[str, int], most: int | None = None) -> str:
    """Return for example ``3 rejects: 2 truncated, 1 empty``, with at most `most` codes."""
    codes = ", ".join(f"{number:,} {code}" for code, number in commonest(rejects)[:most])
    return count(sum(rejects.values()), "reject") + (f": {codes}" if codes else "")


def too_many(max_rejects: float | None, tally: Tally) -> bool:
    """Return whether there are more rejects than a build may have.

    Args:
        max_rejects: a whole number n is exceeded by n + 1 rejects; a float s, a share below 1, by more than
            s times the files seen; None never.
        tally: the files seen. With fewer than `LOOK_AFTER_FILES` there are never too many, be the limit a
            number or a share.
    """
    if max_rejects is None or tally.files < LOOK_AFTER_FILES:
        return False
    return tally.num_rejects > (max_rejects * tally.files if _is_share(max_rejects) else max_rejects)


def _is_share(max_rejects: float) -> bool:
    return isinstance(max_rejects, float)


def too_many_sentence(max_rejects: float | None, tally: Tally) -> str:
    """Say how many files were rejected, the three commonest reasons, an example, and what to do."""
    reasons = commonest(tally.rejects)[:_COMMONEST]
    codes = ", ".join(f"{number:,} {code}" for code, number in reasons)
    example = next((tally.examples[code] for code, _ in reasons if code in tally.examples), "")
    example = f"; for example {example}" if example else "."
    return (
        f"{tally.num_rejects:,} of {count(tally.files, 'file')} were rejected ({codes}), more than the "
        f"config key 'max_rejects' allows ({max_rejects}){example} Mend the cause, or raise 'max_rejects' "
        "(null: never stop), and run again"
    )

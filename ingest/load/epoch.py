"""The order of an epoch, as pure arithmetic: which rank sees which sample in which batch.

Every order follows from (number of samples, seed, epoch) alone: it is the same on every machine, for every
version of numpy, and for every world size.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash64(seed: int, epoch: int, stream: int, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64 random-looking bits for each of `values`; other seeds, epochs or streams give other bits.

    numpy's own generators may change what they draw from one version to the next, and cannot be asked for
    the 10^9th number without drawing those before it.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, epoch, stream):
        state = _scramble(state ^ np.uint64(part))
    return _scramble(state ^ _scramble(values))


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply splitmix64, a bijection of 64-bit numbers (Steele, Lea, Flood: OOPSLA 2014)."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def permutation(num_samples: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the numbers 0 to num_samples - 1 in the order of this epoch: int64 (num_samples,)."""
    drawn = hash64(seed, epoch, 0, np.arange(num_samples, dtype=np.uint64))
    return np.argsort(drawn, kind="stable")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How the order of an epoch is cut into batches.

    One step of all ranks takes the next world_size x batch_size samples of the order, so what is seen until
    a step does not depend on how that product is made up. The samples left over at the end make a last,
    smaller step unless `drop_last`; its batches differ by at most one sample. Fewer left-over samples than
    ranks are left out, because a rank without a batch would stall the others.

    Attributes:
        num_samples: samples in the epoch, over all ranks.
        batch_size: samples in a full batch of one rank.
        rank: this rank, 0 to world_size - 1.
        world_size: number of ranks.
        drop_last: whether the samples that fill no whole step are left out.
        seen: samples at the begin of the order that are left out because they were seen before.
    """

    num_samples: int
    batch_size: int
    rank: int
    world_size: int
    drop_last: bool
    seen: int = 0

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, or of what is left of it, the same on every rank."""
        full, rest = divmod(max(0, self.num_samples - self.seen), self.world_size * self.batch_size)
        return full + int(not self.drop_last and rest >= self.world_size)

    def span(self, step: int) -> tuple[int, int]:
        """Return begin and end, in the order of the epoch, of this rank's batch number `step`."""
        begin = self.seen + step * self.world_size * self.batch_size
        size = min(self.num_samples - begin, self.world_size * self.batch_size)
        return (
            begin + size * self.rank // self.world_size,
            begin + size * (self.rank + 1) // self.world_size,
        )

    def seen_after(self, step: int) -> int:
        """Return how many samples all ranks together have seen once batch number `step` is done."""
        return min(self.num_samples, self.seen + (step + 1) * self.world_size * self.batch_size)

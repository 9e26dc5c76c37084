"""How well classes are mixed over shards: one number that is 1 for a draw by lot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WELL_MIXED = 2.0
"""From here on a loader that mixes a few shards at a time sees that classes come in runs."""


def mixing(shards: NDArray[np.int64], classes: NDArray[np.int64]) -> float:
    """Return how unevenly classes lie over shards, in units of what a draw by lot would give.

    It is Pearson's chi-square of the table of shards by classes, over its expectation under a random
    permutation, (shards - 1)(classes - 1) N / (N - 1) for N samples: each cell is then hypergeometric, with
    variance E (1 - row/N)(1 - column/N) N / (N - 1) about its expectation E. 1: as by lot; shards of one
    class each: about the number of samples in a shard.

    Args:
        shards: number of the shard of each sample.
        classes: class of each sample, as long.

    Returns:
        0 or more; 1 where there is only one shard or one class.
    """
    _, rows = np.unique(shards, return_inverse=True)
    _, columns = np.unique(classes, return_inverse=True)
    if not len(rows) or not rows.max() or not columns.max():
        return 1.0
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    number = float(table.sum())
    expected = np.outer(table.sum(1), table.sum(0)) / number
    chi_square = float(((table - expected) ** 2 / expected).sum())
    freedom = float((table.shape[0] - 1) * (table.shape[1] - 1))
    return chi_square / (freedom * number / (number - 1))

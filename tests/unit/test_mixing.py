"""mixing: 1 for a draw by lot, far more where classes come in runs."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.build.mixing import WELL_MIXED, mixing

_SHARDS = np.repeat(np.arange(50), 100)


def test_draw_by_lot_is_one() -> None:
    """The mean over many random deals is 1, and each is near it."""
    chance = np.random.default_rng(0)
    classes = np.repeat(np.arange(10), 500)

    values = [mixing(_SHARDS, chance.permutation(classes)) for _ in range(200)]

    # 441 degrees of freedom: a standard deviation of sqrt(2 / 441) = 0.067 each, 0.005 of the mean.
    assert abs(np.mean(values) - 1) < 0.02
    assert max(values) < 1.35


def test_sorted_classes_are_as_many_as_a_shard_holds() -> None:
    """One class a shard: the chi-square is at its largest, the samples of a shard."""
    assert mixing(_SHARDS, _SHARDS // 5) == pytest.approx(100 * 9 * 50 / (49 * 9) * 4999 / 5000)


def test_class_that_came_later_is_seen() -> None:
    """Half of the shards without a class that fills the others is far from a draw by lot."""
    late = np.where(_SHARDS < 25, np.arange(5000) % 5, 5)

    assert mixing(_SHARDS, late) > WELL_MIXED


@pytest.mark.parametrize(("shards", "classes"), [([], []), ([0, 0, 0], [0, 1, 2]), ([0, 1, 2], [0, 0, 0])])
def test_nothing_to_mix_is_one(shards: list[int], classes: list[int]) -> None:
    """With one shard or one class there is nothing that could be uneven."""
    assert mixing(np.array(shards, np.int64), np.array(classes, np.int64)) == 1
